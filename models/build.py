"""Builds the models of the manifest as ONNX files.

`python models/build.py resnet50 lstm --out build/models`, or `python models/build.py all`.
`resnet50.b8` is resnet50 for a batch of 8, `resnet50.bn` for any.
`--open image=2,3` makes axes 2 and 3 of the input `image` symbols: any height and width.
"""

import argparse
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import onnx

# Run as a script, Python puts only this folder on the path, not the package `models`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.export import Recipe, export_onnx, module_arguments
from models.inputs import make_input
from models.manifest import ModelSpec, manifest, model_spec, opened
from models.open_sizes import check_open_sizes

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "build" / "models"
_SHARED_SOURCES = ("export", "inputs", "seeding")
_AXIS = re.compile(r"([0-9]+)(?::([A-Za-z_]\w*))?")
_PACKAGES = ("numpy", "torch", "transformers", "onnx", "onnxscript")


def builder_hash(spec: ModelSpec) -> str:
    """Returns the hash of everything that decides a model's bytes: sources, inputs, exporter
    versions."""
    digest = hashlib.sha256()
    for module in (*_SHARED_SOURCES, spec.family):
        digest.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    versions = [f"{package}={version(package)}" for package in _PACKAGES]
    decisive = (spec.builder, spec.inputs, spec.outputs, versions, spec.symbols)
    digest.update(repr(decisive).encode())
    return digest.hexdigest()


def recipe(spec: ModelSpec) -> Recipe:
    """Returns the model's module with its seeded weights, and the way to export it."""
    family = importlib.import_module(f"models.{spec.family}")
    builder: Callable[[], Recipe] = getattr(family, spec.builder.partition(":")[2])
    return builder()


def build_proto(name: str) -> onnx.ModelProto:
    """Builds model `name` in memory. Builds with equal packages give equal bytes."""
    return _proto(model_spec(name))


def _proto(spec: ModelSpec) -> onnx.ModelProto:
    """Builds a model; raises ValueError if the export fixed a size that should be symbolic."""
    made, inputs = recipe(spec), {entry.name: make_input(entry, 0) for entry in spec.inputs}
    model = export_onnx(made, module_arguments(inputs), [*inputs], spec.outputs, spec.symbols)
    if spec.symbols:
        check_open_sizes(spec, made.module, model)
    model.graph.name = spec.name
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
    return build_spec(model_spec(name), out_dir)


def build_spec(spec: ModelSpec, out_dir: Path) -> Path:
    """Does the work of `build` for a model that the manifest may lack, such as a result of
    `opened`."""
    path, stamp = out_dir / f"{spec.name}.onnx", out_dir / f"{spec.name}.hash"
    wanted = builder_hash(spec)
    if path.exists() and stamp.exists() and stamp.read_text(encoding="utf-8").strip() == wanted:
        return path
    out_dir.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    _write_atomically(path, _proto(spec).SerializeToString(deterministic=True))
    _write_atomically(stamp, f"{wanted}\n".encode())
    return path


def read_open(text: str) -> tuple[str, dict[int, str]]:
    """Returns the input and the symbols of the text `NAME=AXES`; the default symbol is `NAME_AXIS`.

    Raises ValueError for a text of another form.
    """
    name, _, axes = text.partition("=")
    symbols: dict[int, str] = {}
    for item in axes.split(","):
        match = _AXIS.fullmatch(item)
        if not name or match is None:
            raise ValueError(f"--open {text}: this is no NAME=AXES, as in image=2,3 or x=0:n")
        symbols[int(match[1])] = match[2] or re.sub(r"\W", "_", f"{name}_{match[1]}")
    return name, symbols


def main() -> None:
    """Reads the command line (model names or `all`, and the output folder), and builds the
    models."""
    parser = argparse.ArgumentParser(description="Build the models of models/manifest.toml.")
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="as in resnet50, resnet50.b8, resnet50.bn, all"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument(
        "--open", action="append", default=[], metavar="NAME=AXES",
        help="axes of an input of any size, as in image=2,3; equal symbols are equal sizes, as in "
        "input_ids=1:s attention_mask=1:s; repeat for more inputs",
    )  # fmt: skip
    arguments = parser.parse_args()
    names = list(manifest()) if "all" in arguments.names else arguments.names
    try:
        symbols = dict(read_open(text) for text in arguments.open)
        specs = [opened(model_spec(n), symbols) if symbols else model_spec(n) for n in names]
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    for spec in specs:
        path = build_spec(spec, arguments.out)
        print(f"{spec.name:16} {path.stat().st_size / 1e6:8.1f} MB  {path}", flush=True)


if __name__ == "__main__":
    main()
