"""Every snippet of README.md, GUIDE.md and EXPORTING.md runs as written, in order, in one
folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.frontends.weights.gguf_models import write_gguf
from tests.lib.language_model import STATES, byte_tokenizer, language_model

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "GUIDE.md", "compiler/frontends/EXPORTING.md")
TEXT = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
NIGHTLY = "it needs several machines or minutes; tests/scripts/test_ci_tune.py runs the commands"
SUFFIXES = {"rust": "rs"}
TRAINED = "it needs a trained model; tests/cli/test_quantize.py runs the command"
INT8 = "it needs a larger model; tests/e2e/test_int8.py compiles such models"
WEIGHTS = "it needs weights; tests/frontends/weights and tests/models/test_generate.py have some"
# Snippets that this test does not run, and the reason.
ELSEWHERE = {
    "scripts/demo": "it compiles and times a larger model, for minutes",
    "scripts/test": "it runs this test",
    "pip install . onnxruntime": "tests/arch/test_wheel.py installs, in environments of its own",
    "pip install 'tcc[gpu]'": "tests/arch/test_wheel.py installs, in environments of its own",
    "tcc quantize magika.onnx --data samples --check others --top1 0.99 -o q.onnx": TRAINED,
    "tcc quantize yolox.onnx --data photos:bgr,letterbox=114 --error 0.1 -o q.onnx": TRAINED,
    "tcc compile bert.onnx --precision int8": INT8,
    "tcc compile resnet50.onnx --precision int8 --calibrate images.npz": INT8,
    "tcc tune model.onnx --time 10m": "it measures for minutes; tests/cli/test_tune.py measures",
    "tcc compile model.gguf -o lm.so --bucket seq=1,128": WEIGHTS,
    'models/examples/generate lm.so --prompt "What is the capital of France?" --greedy': WEIGHTS,
    'tcc bench new.so --compare base.so --gate 1.05 --markdown >> "$GITHUB_STEP_SUMMARY"': NIGHTLY,
    "tcc tune model.onnx --records K.jsonl --shard K/3 --time 20m --cpu x86-64-v3": NIGHTLY,
    "cat 1.jsonl 2.jsonl 3.jsonl > all.jsonl": NIGHTLY,
    "tcc tune model.onnx --records all.jsonl --time 5m --cpu x86-64-v3": NIGHTLY,
}


def lines(block: str) -> list[tuple[str, str]]:
    """Returns the commands of a shell block, each with its comment."""
    parts = [line.partition("    #") for line in block.splitlines() if line]
    return [(command.strip(), comment.strip()) for command, _, comment in parts]


COMMANDS = [command for kind, text in BLOCKS if kind == "sh" for command, _ in lines(text)]


def is_missing(command: str) -> bool:
    """Returns True for a cargo command on a machine without cargo."""
    return command.startswith("cargo ") and shutil.which("cargo") is None


def promised(text: str) -> str:
    """Returns the output that the comments of a snippet promise."""
    return "".join(f"{said}\n" for said in re.findall(r"# prints (.*)", text))


def compile_language_models(folder: Path) -> None:
    """Writes lm.so and batched.so, language models with a token for each byte.

    The first takes single texts, the second takes batches.
    """
    onnx.save(language_model(257), folder / "lm.onnx")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    flags = [word for state in STATES for word in ("--state", state)]
    words = ["compile", "lm.onnx", "-o", "lm.so", "--tokenizer", "tokenizer.json", *flags]
    run([sys.executable, "-m", "tcc", *words], folder)
    write_gguf("llama", folder / "batched.gguf", vocab_size=257, num_hidden_layers=1)
    words = ["compile", "batched.gguf", "--tokenizer", "tokenizer.json", "--input=tokens=batchxseq"]
    run([sys.executable, "-m", "tcc", *words], folder)


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 0, f"{command}:\n{process.stdout}{process.stderr}"
    return process.stdout


@pytest.mark.gpu
def test_every_snippet_runs_as_written(tmp_path: Path) -> None:
    compile_language_models(tmp_path)
    for kind, text in BLOCKS:
        if kind == "python":
            printed = run([sys.executable, "-c", text], tmp_path)
            assert printed == promised(text), text
        elif kind in ("c", "cpp", "rust"):
            (tmp_path / f"main.{SUFFIXES.get(kind, kind)}").write_text(text)
        elif kind != "text":  # a picture
            assert kind == "sh", f"a block of {kind or 'no language'}"
            for command, comment in lines(text):
                if command in ELSEWHERE or is_missing(command):
                    continue
                printed = run(["bash", "-euc", command], tmp_path)
                if "prints" in comment:
                    assert printed == promised(f"# {comment}"), command
    x = np.load(tmp_path / "x.npy").astype(np.float64)
    exact = np.exp(x) / np.exp(x).sum()
    assert promised(TEXT).splitlines()[-1] == " ".join(f"{y:.5f}" for y in exact)
    (result,) = (tmp_path / "results").iterdir()
    np.testing.assert_allclose(np.load(result), exact, rtol=1e-6, atol=1e-7)  # adds up to 1


def test_commands_that_run_elsewhere_are_in_the_readme_and_name_what_there_is() -> None:
    assert set(COMMANDS) >= set(ELSEWHERE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in re.findall(r"\.\[(\w+)\]", TEXT):
        assert name in extras["optional-dependencies"]
    for name in ("scripts/demo", "scripts/test"):
        assert os.access(ROOT / shlex.split(name)[0], os.X_OK)
