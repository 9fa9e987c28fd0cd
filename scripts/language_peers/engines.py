"""Installs other runtimes for language models by pip, and converts a GGUF file for each of them.

All share one virtual environment, `build/engines/language`. It includes the packages of `.venv`,
because the model builder of onnxruntime-genai needs torch and transformers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT
from language_peers.shapes import LlamaShape, write_folder, write_model

ENGINES = ROOT / "build" / "engines" / "language"
HERE = Path(__file__).resolve().parent
INTEGERS = ("int8", "int4")
ALL = ("f32", "bf16", *INTEGERS)
_LAST_WORDS = 300  # the number of characters of a failed command's output in its reason


class AbsentError(Exception):
    """A runtime that cannot be made here, or not for a model; the text says why."""


@dataclass(frozen=True, slots=True)
class LanguageEngine:
    """A runtime beside tcc.

    `requirement` is what pip installs, from its source package if `from_source`, and `module` is
    what the environment can import then. `worker` is a file of this folder. `precisions` are those
    that it has for these models. `convert` gets the GGUF file, the model's shape and the precision.
    It makes the file or folder that the worker reads, if it is missing, and returns its path.
    """

    title: str
    requirement: str
    module: str
    worker: str
    convert: Callable[[Path, LlamaShape, str], Path]
    precisions: Sequence[str] = ALL
    from_source: bool = False


def python() -> Path:
    return ENGINES / "bin" / "python"


def install(engine: LanguageEngine) -> None:
    """Installs the runtime if the environment lacks it; raises AbsentError if that fails."""
    if not python().exists():
        venv.create(ENGINES, with_pip=True)
        (folder,) = ENGINES.glob("lib/python*/site-packages")
        (folder / "tcc_environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if (
        subprocess.run(
            (python(), "-c", f"import {engine.module}"), check=False, capture_output=True
        ).returncode
        == 0
    ):
        return
    print(f"installing {engine.title} ...", file=sys.stderr, flush=True)
    source = ("--no-binary", engine.requirement) if engine.from_source else ()
    pip = (python(), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(f"pip cannot install {engine.requirement}", *pip, *source, engine.requirement)


def run(failure: str, *command: str | Path) -> None:
    """Runs a command; raises AbsentError with `failure` and the end of its output if it fails."""
    result = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        words = " ".join(result.stdout.split())[-_LAST_WORDS:]
        raise AbsentError(f"{failure}: {words or f'exit code {result.returncode}'}")


def _as_it_is(model: Path, shape: LlamaShape, precision: str) -> Path:
    return model


def _to_openvino(model: Path, shape: LlamaShape, precision: str) -> Path:
    """OpenVINO GenAI has one name for what it makes, so each model gets a folder.

    It reads no GGUF files in f32 or bf16: for both it gets the model in f16.
    """
    folder = model.with_suffix(".openvino")
    result = folder / "openvino_model.xml"
    if result.exists():
        return result
    folder.mkdir(exist_ok=True)
    source = folder / model.name
    source.unlink(missing_ok=True)
    if precision in ("f32", "bf16"):
        write_model(source, shape, "f16")
    else:
        os.link(model, source)
    worker = HERE / "openvino_worker.py"
    run("OpenVINO GenAI cannot read the GGUF file", python(), worker, "convert", source)
    source.unlink()
    if not result.exists():
        raise AbsentError("OpenVINO GenAI saved no openvino_model.xml")
    return result


def _to_ort(model: Path, shape: LlamaShape, precision: str) -> Path:
    """The builder looks up a GGUF file's name in the network, so it gets a folder in f32."""
    folder = model.with_suffix(".ort")
    if not (folder / "genai_config.json").exists():
        with tempfile.TemporaryDirectory(prefix="tcc-language-", dir=model.parent) as source:
            write_folder(Path(source), shape)
            builder = ("-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder)
            kind = {"f32": "fp32"}.get(precision, precision)
            cache = Path(source) / "cache"
            run("its builder failed", python(), *builder, "-p", kind, "-e", "cpu", "-c", cache)
    return folder


PEERS = {
    "llama": LanguageEngine(
        "llama.cpp", "llama-cpp-python", "llama_cpp", "llama_worker.py", _as_it_is, from_source=True
    ),
    "openvino": LanguageEngine(
        "OpenVINO", "openvino-genai", "openvino_genai", "openvino_worker.py", _to_openvino
    ),
    "ort": LanguageEngine(
        "onnxruntime-genai", "onnxruntime-genai", "onnxruntime_genai", "ort_worker.py", _to_ort,
        precisions=("f32", "int4"),
    ),
}  # fmt: skip
