"""Builds the models of the manifest as ONNX files.

`python models/build.py resnet50 lstm --out build/models`, or `python models/build.py all`.
`resnet50.b8` is resnet50 for a batch of 8, `resnet50.bn` for any.
"""

import argparse
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import torch

# run as a script, only the folder itself would be on the path, not the package `models`
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.export import Recipe, export_onnx
from models.inputs import Array, make_inputs
from models.manifest import ModelSpec, manifest, model_spec

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "build" / "models"
_SHARED_SOURCES = ("export", "inputs", "seeding")
_PACKAGES = ("numpy", "torch", "transformers", "onnx", "onnxscript")


def builder_hash(spec: ModelSpec) -> str:
    """Hash of all that decides the bytes of a model: sources, inputs, exporter versions."""
    digest = hashlib.sha256()
    for module in (*_SHARED_SOURCES, spec.family):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    versions = [f"{package}={version(package)}" for package in _PACKAGES]
    decisive = (spec.builder, spec.inputs, spec.outputs, versions, spec.symbol)
    digest.update(repr(decisive).encode())
    return digest.hexdigest()


def module_arguments(inputs: Mapping[str, Array]) -> tuple[Any, ...]:
    """Arguments in the module's order; inputs named x.0, x.1, ... form one list."""
    arguments: list[Any] = []
    lists: dict[str, list[torch.Tensor]] = {}
    for name, array in inputs.items():
        stem, dot, _ = name.partition(".")
        tensor = torch.from_numpy(array)
        if not dot:
            arguments.append(tensor)
            continue
        if stem not in lists:
            lists[stem] = []
            arguments.append(lists[stem])
        lists[stem].append(tensor)
    return tuple(arguments)


def recipe(spec: ModelSpec) -> Recipe:
    """The model's module with its seeded weights, and how it is exported."""
    family = importlib.import_module(f"models.{spec.family}")
    builder: Callable[[], Recipe] = getattr(family, spec.builder.partition(":")[2])
    return builder()


def build_proto(name: str) -> onnx.ModelProto:
    """Builds model `name` in memory: equal bytes for every build with the same packages."""
    spec = model_spec(name)
    inputs = [entry.name for entry in spec.inputs]
    arguments = module_arguments(make_inputs(name, 0))
    model = export_onnx(recipe(spec), arguments, inputs, spec.outputs, spec.symbol)
    model.graph.name = name
    return model


def _write_atomically(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def build(name: str, out_dir: Path) -> Path:
    """Writes out_dir/NAME.onnx and returns its path; raises KeyError for an unknown name.

    Skips the work when the file is there and NAME.hash beside it holds the current builder hash.
    The file appears whole or not at all, and the hash only after it.
    """
    spec = model_spec(name)
    path, stamp = out_dir / f"{name}.onnx", out_dir / f"{name}.hash"
    wanted = builder_hash(spec)
    if path.exists() and stamp.exists() and stamp.read_text(encoding="utf-8").strip() == wanted:
        return path
    out_dir.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    _write_atomically(path, build_proto(name).SerializeToString(deterministic=True))
    _write_atomically(stamp, f"{wanted}\n".encode())
    return path


def main() -> None:
    """Command line: names or `all`, and the output folder."""
    parser = argparse.ArgumentParser(description="Build the models of models/manifest.toml.")
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="as in resnet50, resnet50.b8, resnet50.bn, all"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    names = list(manifest()) if "all" in arguments.names else arguments.names
    try:
        for name in names:
            model_spec(name)
    except KeyError as error:
        parser.error(str(error.args[0]))
    for name in names:
        path = build(name, arguments.out)
        print(f"{name:16} {path.stat().st_size / 1e6:8.1f} MB  {path}", flush=True)


if __name__ == "__main__":
    main()
