"""Builds the folder for a machine with a GPU: the part of `scripts/gpu_check` that needs tcc."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from environment import ROOT
from tcc import __version__
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain
from tcc.driver import compile_model
from tcc.errors import TccError
from tcc.options import TOLERANCES, read_options

from gpu.carry import pack
from gpu.draws import ArrayDraw
from gpu.graphs import graph_json, reseed
from gpu.kernels import CHECKED, SMALL, MeasuredKernel, Sizes, host_kernels, kernels
from gpu.names import COLLECTIVES, MODELS, is_wanted, split
from gpu.names import SMALL as PREFIX
from gpu.news import digest_of, measured, news_of
from gpu.priced import price_parts, priced_steps
from models.manifest import InputSpec, model_spec

REHEARSED = ("infogan",)
MOST_BYTES = 64 << 20
# The tolerance of tf32 is larger than that of f32, because tf32 rounds the operands of matmuls to
# eleven significant bits.
# Sums of integers are exact.
_TOLERANCES = {**TOLERANCES, "tf32": 1e-3, "i8": 0.0}
_RUNTIME = "tcc/runtime"
# The run whose items are no news.
_LAST = ROOT / "scripts" / "results" / "gpu_check.json"
# The processors for which the matmuls of the machine's CPU are compiled, and their size. A run
# uses those that its CPU can execute.
_HOSTS, _HOST_SIZE, _REHEARSED_SIZE = ("sapphirerapids", "znver4", "x86-64-v3"), 2048, 128
_DTYPES = {
    onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.FLOAT16: "f16",
    onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.INT64: "i64",
    onnx.TensorProto.INT8: "i8", onnx.TensorProto.FLOAT8E4M3FN: "f8",
}  # fmt: skip

Compile = Callable[[onnx.ModelProto, Mapping[str, Any], Path], None]


@dataclass(frozen=True, slots=True)
class Item:
    """A model to check.

    `draws` has its weights that seeds determine, `options` are those of its compile, and `facts`
    are the fields of its row in the index (name, kind, tolerance, inputs, ...).
    """

    model: onnx.ModelProto
    draws: Mapping[str, ArrayDraw]
    options: Mapping[str, Any]
    facts: dict[str, Any]


def target_of(archs: Sequence[str]) -> str:
    """Returns `cuda:...` or `rocm:...` for architectures of one vendor, or `cpu`."""
    if archs == ["cpu"]:
        return "cpu"
    return f"{'rocm' if archs[0].startswith('gfx') else 'cuda'}:{','.join(archs)}"


def compile_with_tcc(model: onnx.ModelProto, options: Mapping[str, Any], out: Path) -> None:
    compile_model(model, read_options(dict(options)), out)


def kernel_item(kernel: MeasuredKernel) -> Item:
    """Returns the item of a kernel.

    An input is drawn as random floats or, if `kernel.indices` names it, as integers in [0, bound).
    Inputs in i8 have all values of the type.
    """
    draws = reseed(kernel.model)
    inputs = []
    for port in kernel.model.graph.input:
        kind = port.type.tensor_type
        dtype, bound = _DTYPES[kind.elem_type], kernel.indices.get(port.name)
        low, high = (-128, 127) if dtype == "i8" else (0, (bound or 1) - 1)
        inputs.append(
            {
                "name": port.name,
                "shape": [d.dim_value for d in kind.shape.dim],
                "dtype": dtype,
                "draw": "normal" if bound is None and dtype != "i8" else "integers",
                "low": low,
                "high": high,
            }
        )
    precision = kernel.options.get("precision", kernel.dtype)
    facts = {
        "name": kernel.name, "kind": "kernel", "group": kernel.group, "precision": precision,
        "tolerance": _TOLERANCES[precision], "inputs": inputs, "graph": kernel.name,
        "bytes": kernel.bytes, "flops": kernel.flops, "peer": kernel.peer,
    }  # fmt: skip
    return Item(kernel.model, draws, kernel.options, facts)


def twin_item(item: Item) -> Item:
    """Returns a copy of the item that is compiled with Triton only, without kernels in Gluon.

    The difference of their times is what Gluon gains.
    """
    facts = {**item.facts, "name": f"{item.facts['name']}_triton", "twin_of": item.facts["name"]}
    return replace(item, options={**item.options, "gpu_kernels": "triton"}, facts=facts)


def _may_be_gluon(facts: Mapping[str, Any], archs: Sequence[str]) -> bool:
    units = facts["precision"] in ("bf16", "f16", "tf32", "i8")
    return "sm_90" in archs and units and facts["group"] in ("matrix", "other", "model")


def model_items(name: str, precisions: Sequence[str] = ("bf16", "f32")) -> Iterator[Item]:
    """Yields the model `name` of models/ with seeded weights, once for each precision."""
    # imported here, because only models need torch
    builder = importlib.import_module("models.build")
    model = onnx.load(builder.build(name, builder.DEFAULT_OUT))
    draws = reseed(model)
    spec = model_spec(name)
    for precision in precisions:
        facts = {
            "name": f"{name}_{precision}", "kind": "model", "group": "model",
            "precision": precision, "tolerance": _TOLERANCES[precision],
            "inputs": [_input(i) for i in spec.inputs], "graph": name, "bytes": 0,
            "flops": round(2e9 * spec.gmac),
        }  # fmt: skip
        yield Item(model, draws, {"precision": precision}, facts)


def _input(spec: InputSpec) -> dict[str, Any]:
    return {
        "name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype,
        "draw": spec.generator, "low": spec.low, "high": spec.high,
    }  # fmt: skip


def add(item: Item, target: str, folder: Path, compile_item: Compile) -> list[dict[str, Any]]:
    """Compiles an item into `folder`; returns its row of the index in a list.

    Returns [] for a twin whose artifact equals that of the original item. Raises TccError.
    """
    graph = folder / "graphs" / f"{item.facts['graph']}.json"
    if not graph.exists():
        graph.write_text(json.dumps(graph_json(item.model, item.draws)))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch) / "model.so"
        with price_parts() as parts:
            compile_item(item.model, {"target": target, **item.options}, artifact)
        priced = priced_steps(artifact, parts)
        archive = folder / "artifacts" / f"{item.facts['name']}.zip"
        carried_bytes = pack(artifact, item.draws, archive)
    original = folder / "artifacts" / f"{item.facts.get('twin_of')}.zip"
    if original.exists() and original.read_bytes() == archive.read_bytes():
        archive.unlink()
        return []
    row = {**item.facts, "carried_bytes": carried_bytes, "file_bytes": archive.stat().st_size}
    digest, before = digest_of(archive), measured(_LAST)
    row |= {"digest": digest, "news": news_of(row["name"], digest, before)}
    row |= {"priced": priced, "price": sum(step.get("seconds", 0.0) for step in priced)}
    print(
        f"{row['name']:28} {time.perf_counter() - started:6.1f} s, "
        f"{row['file_bytes'] / 1e6:6.2f} MB",
        flush=True,
    )
    return [row]


def make_folder(
    folder: Path, items: Iterator[Item], archs: Sequence[str], compile_item: Compile
) -> dict[str, Any]:
    """Empties `folder`, compiles the items into it, and returns the index.

    "refused" in the index maps each item that does not compile to the reason. `compile_item`
    compiles a model with options to a file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("graphs", "artifacts", "gpu", _RUNTIME):
        (folder / name).mkdir(parents=True)
    index: dict[str, Any] = {
        "tcc": __version__, "archs": list(archs), "device": "cpu" if archs == ["cpu"] else "cuda",
        "items": [], "refused": {},
    }  # fmt: skip
    for item in items:
        try:
            index["items"] += add(item, target_of(archs), folder, compile_item)
        except (TccError, ValueError) as error:
            index["refused"][item.facts["name"]] = str(error)
            print(f"{item.facts['name']}: {error}", flush=True)
        (folder / "index.json").write_text(json.dumps(index, indent=1))
    _copy_programs(folder)
    return index


# The model that `gpu.collectives.check_model` runs and checks.
_SUMMING = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (float[8,16] x) => (float[8,16] y) {
  s = com.microsoft.AllReduce(x) r = Relu(x) y = Add(r, s) }"""


def add_collectives(folder: Path, archs: Sequence[str]) -> dict[str, Any]:
    """Adds the communication library and a model with a collective; returns its row of the index.

    Raises TccError.
    """
    out = folder / "artifacts" / f"{COLLECTIVES}.so"
    compile_with_tcc(onnx.parser.parse_model(_SUMMING), {"target": target_of(archs)}, out)
    build_comm_library(find_toolchain(), folder / _RUNTIME / "lib")
    return {
        "name": COLLECTIVES, "kind": COLLECTIVES, "group": COLLECTIVES, "precision": "f32",
        "tolerance": 0.0,
    }  # fmt: skip


def _copy_programs(folder: Path) -> None:
    shutil.copy(ROOT / "scripts" / "gpu_check", folder / "gpu_check")
    for source in sorted((ROOT / "scripts" / "gpu").glob("*.py")):
        shutil.copy(source, folder / "gpu" / source.name)
    for source in sorted((ROOT / "runtime").glob("*.py")):
        if source.name != "_wheel.py":
            shutil.copy(source, folder / _RUNTIME / source.name)
    (folder / "tcc" / "__init__.py").write_text("")


def all_items(names: Sequence[str], archs: Sequence[str]) -> Iterator[Item]:
    """Yields all kernels and models; with `names`, only items whose name begins with one of these.

    Each item that may have kernels in Gluon is followed by its twin in Triton.
    """
    yield from _small_items(names, CHECKED, archs)
    yield from _items(names, Sizes(), MODELS, archs)
    yield from host_items(names, _HOSTS, _HOST_SIZE)


def rehearsed_items(names: Sequence[str]) -> Iterator[Item]:
    """Yields small kernels and a small model, in precisions that a CPU supports.

    With `names`, yields all items whose name begins with one of these, even large models.
    """
    models = MODELS if names else REHEARSED
    small = _small_items(names, SMALL, ["cpu"])
    hosts = host_items(names, ("x86-64-v3",), _REHEARSED_SIZE)
    for item in (*small, *_items(names, SMALL, models, ["cpu"]), *hosts):
        options = {**item.options}
        if options.get("precision") == "tf32":
            del options["precision"]
        yield replace(item, options=options)


def _items(
    names: Sequence[str], sizes: Sizes, models: Sequence[str], archs: Sequence[str]
) -> Iterator[Item]:
    for kernel in kernels(sizes):
        if is_wanted(kernel.name, names):
            yield from _with_twin(kernel_item(kernel), archs)
    for model in models:
        # models with a batch ("bert_base.b16") are compiled in bf16 only
        for precision in ("bf16",) if ".b" in model else ("bf16", "f32"):
            if is_wanted(f"{model}_{precision}", names):
                for item in model_items(model, (precision,)):
                    yield from _with_twin(item, archs)


def host_items(names: Sequence[str], processors: Sequence[str], size: int) -> Iterator[Item]:
    """Yields the matmuls that run on the machine's CPU, for each of the `processors`."""
    for processor in processors:
        for kernel in host_kernels(size):
            item = kernel_item(replace(kernel, name=f"{kernel.name}_{processor}"))
            if is_wanted(item.facts["name"], names):
                options = {**kernel.options, "target": "cpu:x86-64", "cpu": processor}
                yield replace(item, options=options, facts={**item.facts, "kind": "host"})


def _small_items(names: Sequence[str], sizes: Sizes, archs: Sequence[str]) -> Iterator[Item]:
    """Yields a kernel of each kind at `sizes`, which are small: sanitizers watch every access."""
    for kernel in kernels(sizes):
        if is_wanted(PREFIX + kernel.name, names):
            item = kernel_item(replace(kernel, name=PREFIX + kernel.name))
            yield from _with_twin(replace(item, facts={**item.facts, "kind": "small"}), archs)


def _with_twin(item: Item, archs: Sequence[str]) -> Iterator[Item]:
    yield item
    if _may_be_gluon(item.facts, archs):
        yield twin_item(item)


def main() -> int:
    """Returns the exit code: 1 if something was not compiled, or if the folder is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--archs", default="sm_90", help="or cpu for a rehearsal")
    parser.add_argument("--only", default="", metavar="A,B", help="items whose names begin so")
    options = parser.parse_args()
    names = split(options.only)
    archs = options.archs.split(",")
    items = rehearsed_items(names) if archs == ["cpu"] else all_items(names, archs)
    index = make_folder(options.out, items, archs, compile_with_tcc)
    if archs != ["cpu"] and is_wanted(COLLECTIVES, names):
        index["items"].append(add_collectives(options.out, archs))
        (options.out / "index.json").write_text(json.dumps(index, indent=1))
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(
        f"{options.out}: {len(index['items'])} items, {len(index['refused'])} refused, "
        f"{size / 1e6:.1f} MB",
        flush=True,
    )
    if size > MOST_BYTES:
        print(f"larger than {MOST_BYTES >> 20} MiB: seeds explain too few weights (see the rows)")
    return 1 if index["refused"] or not index["items"] or size > MOST_BYTES else 0
