"""Runs a few tiles of every kernel of a model in Triton's interpreter and in the tile evaluator.

    python -m gpu.sample_units MODEL TARGET PRECISION UNITS SECONDS SEED SCHEDULES

The interpreter and the evaluator get the same random data. Each distinct kernel gets a line of
JSON with the distance between the two results. The last line has the number of kernels for which no
time was left.

SCHEDULES is "chosen" or "first". "chosen" are the schedules of a finished compile, which replaces a
schedule whose kernel turns out to need too many registers or too much shared memory. "first" are
the schedules before any kernel is compiled. Needs tcc, triton and torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

from environment import ROOT

sys.path[:0] = [str(ROOT / "tests" / "lib" / "interpreter"), str(ROOT)]

import interpret  # sets TRITON_INTERPRET, so it is imported before Triton
import numpy as np
from tcc.backends.gpu.triton.print import triton_source
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.expr import extent
from tcc.ir.graph import carrier, constant_bytes
from tcc.ir.index import Var, evaluate
from tcc.ir.tile import MemorySpace, TileBuffer, TileKernel
from tcc.ir.types import BF16, BOOL, F16
from tcc.options import read_options
from tcc.variants import optimise, resolve_targets, variant_backends

from tests.lib.oracle.tile.evaluate import evaluate_kernel

# The largest distance between correct results: _EXACT without values in 16-bit types, else
# _ROUNDED. It allows for another order of sums, and for one rounding more or less.
_EXACT, _ROUNDED = 1e-4, 3e-2
_UNWRITTEN, _TYPICAL = 77, 64
_POOL = 1 << 20  # a longer buffer repeats this many random numbers


def kernels(
    model: Path, target: str, precision: str, schedules: str
) -> dict[str, tuple[str, TileKernel]]:
    """Returns the distinct kernels of a compile: maps the Triton text to (nodes, kernel).

    `nodes` names the nodes that the kernel computes. With `schedules` "first", a kernel has the
    schedule that the planner chooses first, which may need more registers or shared memory than
    the target has. With "chosen", kernels are compiled for the target, and a schedule that does not
    fit is replaced.
    """
    options = read_options({"target": target, "precision": precision})
    graph = load_model(model, {})
    sources_and_kernels: dict[str, tuple[str, TileKernel]] = {}
    trace = Trace(None, None)
    with ExitStack() as stack:
        targets, constants = resolve_targets(options), constant_bytes(graph)
        codes = variant_backends(targets, options, constants, stack)
        for code, (variant,) in zip(codes, optimise(graph, codes, options, trace), strict=True):
            lowered = code.lower(variant, Trace())
            if schedules == "chosen":
                names = [f"kernel{n}" for n in range(len(lowered.kernels))]
                lowered = code.fitted(lowered, names, Trace())
            for source, kernel in zip(lowered.table.locs, lowered.kernels, strict=True):
                text = triton_source(kernel, "kernel", dot=dot_of(precision))
                sources_and_kernels.setdefault(text, (source.strip(), kernel))
    return sources_and_kernels


def dot_of(precision: str) -> str:
    return "ieee" if precision == "f32" else precision


def typical(var: Var) -> int:
    """Returns a typical value of a symbolic dim."""
    lower, step = max(var.lo, 1), max(var.divisor, 1)
    upper = _TYPICAL if var.hi is None else min(var.hi, _TYPICAL)
    return max(-(-lower // step), upper // step) * step


def data(buffer: TileBuffer, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    """Returns the contents of a buffer before a run.

    Operands get random numbers (integers from 0 to 8), results the mark _UNWRITTEN. `sizes` has the
    values of symbolic dims.
    """
    shape = [int(evaluate(n, sizes)) for n in buffer.sizes]
    dtype, count = buffer.dtype, prod(shape)
    if buffer.scope is MemorySpace.OUTPUT:
        return np.full(shape, _UNWRITTEN, dtype.carrier)
    few = min(count, _POOL)
    if dtype is BOOL:
        values = rng.integers(0, 2, few).astype(np.bool_)
    elif dtype.is_float:
        values = np.asarray(carrier(rng.standard_normal(few).astype(dtype.carrier), dtype))
    else:
        values = rng.integers(0, 9, few).astype(dtype.carrier)
    return np.resize(values, count).reshape(shape)


def sampled_tiles(count: int, limit: int, rng: np.random.Generator) -> list[int]:
    """Returns the indices of at most `limit` of `count` tiles: the first, the last, random ones."""
    inner_tiles = rng.integers(0, count, max(limit - 2, 0)).tolist()
    return sorted({0, count - 1, *inner_tiles})


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """Returns the largest difference divided by the largest value that `want` has.

    Returns infinity if NaNs or infinities differ, or if values of integer or Boolean types differ.
    """
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    a, b = got.astype(np.float64), want.astype(np.float64)
    numbers = np.isfinite(b)
    if not np.array_equal(a[~numbers], b[~numbers], equal_nan=True) or np.isnan(a[numbers]).any():
        return float("inf")
    changed = numbers & (b != _UNWRITTEN)
    largest = np.abs(b[changed]).max(initial=1e-30)
    return float(np.abs(a[numbers] - b[numbers]).max(initial=0.0) / largest)


def check(
    text: str, function: Any, kernel: TileKernel, tile_limit: int, seed: int
) -> dict[str, Any]:
    """Runs some tiles of a kernel in the interpreter and in the evaluator of tile programs.

    `function` is the kernel in the interpreter, `text` its Triton text. Returns the number of tiles
    run ("units"), the number of all tiles ("of"), the "distance" of both results, and "ok".
    """
    rng = np.random.default_rng(seed)
    sizes = {var.name: typical(var) for var in kernel.sizes}
    count = prod(int(evaluate(extent(v), sizes)) for v in kernel.axes)
    tiles = sampled_tiles(count, tile_limit, rng)
    arrays = [data(b, sizes, rng) for b in kernel.buffers]
    names = [b.dtype.name for b in kernel.buffers]
    pairs = list(zip(names, (a.copy() for a in arrays), strict=True))
    got = [array for _, array in interpret.run(function, pairs, list(sizes.values()), tiles)]
    evaluate_kernel(kernel, arrays, sizes, units=tiles)
    narrow = any(b.dtype in (BF16, F16) for b in kernel.buffers) or ".to(tl.bfloat16)" in text
    error = max((distance(g, w) for g, w in zip(got, arrays, strict=True)), default=0.0)
    limit = _ROUNDED if narrow else _EXACT
    return {"units": len(tiles), "of": count, "distance": error, "ok": error <= limit}


def run(
    kernels: dict[str, tuple[str, TileKernel]], tile_limit: int, seconds: float, seed: int
) -> int:
    """Prints a line for each kernel; returns the number of kernels for which no time was left."""
    interpret.repair()
    until = time.monotonic() + seconds
    with interpret.modules() as modules:
        for number, (text, (source, kernel)) in enumerate(kernels.items()):
            if time.monotonic() > until:
                return len(kernels) - number
            started = time.monotonic()
            function = modules.function(text, "kernel")
            row = check(text, function, kernel, tile_limit, seed + number)
            duration = time.monotonic() - started
            print(json.dumps({"source": source, **row, "seconds": duration}), flush=True)
    return 0


def main(arguments: Sequence[str]) -> None:
    model, target, precision, units, seconds, seed, schedules = arguments
    texts_and_kernels = kernels(Path(model), target, precision, schedules)
    unchecked = run(texts_and_kernels, int(units), float(seconds), int(seed))
    print(json.dumps({"left": unchecked}))


if __name__ == "__main__":
    main(sys.argv[1:])
