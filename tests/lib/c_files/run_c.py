"""Compiles models to C files, compiles the C files with a C compiler, and runs the result."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from tcc import driver
from tcc.ir.graph import Graph, Value
from tcc.ir.index import as_int
from tcc.ir.narrow import decode, pack, unpack
from tcc.ir.types import DType
from tcc.options import read_options

from tests.lib.op_matrix.batch import Variant, feeds_of, graph_of
from tests.lib.op_matrix.cases import Array, Case

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")


def write_c(model: Any, folder: Path, name: str = "m", **options: Any) -> Path:
    """Writes the C file of a model or of a graph, and its header beside it."""
    path = folder / f"{name}.c"
    settings = read_options({"target": "c"} | options)
    if isinstance(model, Graph):
        with patch.object(driver, "load_batched", lambda graph, *_, **__: (graph, None)):
            driver.compile_model(model, settings, path)
    else:
        driver.compile_model(model, settings, path)
    return path


def build(source: Path, compiler: str = "gcc", *flags: str) -> ctypes.CDLL:
    """Compiles a C file to a library and loads it; warnings are errors."""
    library = source.with_suffix(f".{compiler}.so")
    command = [compiler, *STRICT, "-O1", "-shared", "-fPIC", *flags, "-o", library, source, "-lm"]
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[:4000]
    return ctypes.CDLL(str(library))


def as_bytes(array: Array, dtype: DType) -> Array:
    """Returns an input as bytes for the C function; elements of less than a byte are packed."""
    if dtype.is_packed:
        return pack(np.asarray(array).astype(np.uint8), dtype)
    return np.frombuffer(np.ascontiguousarray(array).tobytes() or b"\0", np.uint8)


def from_bytes(data: Array, value: Value) -> Array:
    """Returns an output as artifacts return it: bf16 and narrow floats as their bits."""
    dtype, shape = value.type.dtype, [as_int(dim) or 0 for dim in value.type.shape]
    count = int(np.prod(shape))
    if dtype.is_packed:
        codes = unpack(data, count, dtype)
        array = codes if dtype.is_float else decode(codes, dtype)
    else:
        bits = dtype.is_float and dtype.name not in ("f16", "f32", "f64")
        kind = np.dtype(f"u{dtype.bytes}") if bits else np.dtype(dtype.carrier)
        array = np.frombuffer(data.tobytes(), kind, count)
    return np.asarray(array).reshape(shape)


def run_c(
    library: ctypes.CDLL, graph: Graph, feeds: Mapping[str, Array], name: str = "m"
) -> dict[str, Array]:
    """Runs the graph's C function, which must return 0, and returns the outputs."""
    inputs = [as_bytes(feeds[value.name], value.type.dtype) for value in graph.inputs]
    outputs = []
    for value in graph.outputs:
        count = int(np.prod([as_int(dim) or 0 for dim in value.type.shape]))
        outputs.append(np.full((count * value.type.dtype.bits + 7) // 8 + 64, 0x5A, np.uint8))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, *outputs)]
    assert getattr(library, f"{name}_run")(*pointers) == 0
    for value, data in zip(graph.outputs, outputs, strict=True):
        assert (data[-64:] == 0x5A).all(), f"{value.name}: written behind its end"
    pairs = zip(graph.outputs, outputs, strict=True)
    return {value.name: from_bytes(data[:-64], value) for value, data in pairs}


def run_together(
    cases: Sequence[Case], cpu: str, variants: Mapping[str, Variant]
) -> dict[str, Array]:
    """Runs the cases of the op matrix as one C file and returns the outputs."""
    graph = graph_of(cases, variants)
    with TemporaryDirectory() as folder:
        library = build(write_c(graph, Path(folder)))
        return run_c(library, graph, feeds_of(cases, variants))
