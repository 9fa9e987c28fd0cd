"""Runs a few units of every kernel of a model in Triton's interpreter and in the tile evaluator.

    python -m gpu.sample_units MODEL TARGET PRECISION UNITS SECONDS SEED SCHEDULES

Both get the same random data; a line of JSON for each different kernel says how far apart they
are, the last one how many kernels there was no time for.  SCHEDULES are "chosen", those that a
compile ends with, or "first", those before compilers told what registers they take.  Needs tcc,
triton, torch.
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

sys.path[:0] = [str(ROOT / "tests" / "backends" / "gpu"), str(ROOT)]

import interpret  # before anything else imports Triton
import numpy as np
from tcc.backends.gpu.triton.print import triton_source
from tcc.debug import Trace
from tcc.driver import resolve_targets
from tcc.frontends import load_model
from tcc.ir.expr import extent
from tcc.ir.graph import carrier, constant_bytes
from tcc.ir.index import Var, evaluate
from tcc.ir.tile import MemorySpace, TileBuffer, TileKernel
from tcc.ir.types import BF16, BOOL, F16
from tcc.options import read_options
from tcc.variants import optimise, variant_backends

from tests.oracle.tile.evaluate import evaluate_kernel

# Of the largest value: what other orders of sums, and rounding once more or less, may change.
_EXACT, _ROUNDED = 1e-4, 3e-2
_UNWRITTEN, _TYPICAL = 77, 64
_POOL = 1 << 20  # different numbers in a long buffer


def kernels(
    model: Path, target: str, precision: str, schedules: str
) -> dict[str, tuple[str, TileKernel]]:
    """The different kernels of a compile by their text, each with the nodes that it computes."""
    options = read_options({"target": target, "precision": precision})
    graph = load_model(model, {})
    found: dict[str, tuple[str, TileKernel]] = {}
    trace = Trace(None, None)
    with ExitStack() as opened:
        targets, given = resolve_targets(options), constant_bytes(graph)
        codes = variant_backends(targets, options, given, opened)
        for code, (own,) in zip(codes, optimise(graph, codes, options, trace), strict=True):
            lowered = code.lower(own, Trace())
            if schedules == "chosen":
                names = [f"kernel{n}" for n in range(len(lowered.kernels))]
                lowered = code.fitted(lowered, names, Trace())
            for source, kernel in zip(lowered.table.locs, lowered.kernels, strict=True):
                text = triton_source(kernel, "kernel", dot=dot_of(precision))
                found.setdefault(text, (source.strip(), kernel))
    return found


def dot_of(precision: str) -> str:
    return "ieee" if precision == "f32" else precision


def typical(var: Var) -> int:
    """A value for a symbolic size."""
    least, step = max(var.lo, 1), max(var.divisor, 1)
    most = _TYPICAL if var.hi is None else min(var.hi, _TYPICAL)
    return max(-(-least // step), most // step) * step


def data(buffer: TileBuffer, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    """Random operands, small where they are integers; results that nothing was written to."""
    shape = [int(evaluate(n, sizes)) for n in buffer.sizes]
    dtype, count = buffer.dtype, prod(shape)
    if buffer.scope is MemorySpace.OUTPUT:
        return np.full(shape, _UNWRITTEN, dtype.carrier)
    few = min(count, _POOL)
    if dtype is BOOL:
        drawn = rng.integers(0, 2, few).astype(np.bool_)
    elif dtype.is_float:
        drawn = np.asarray(carrier(rng.standard_normal(few).astype(dtype.carrier), dtype))
    else:
        drawn = rng.integers(0, 9, few).astype(dtype.carrier)
    return np.resize(drawn, count).reshape(shape)


def chosen(count: int, wanted: int, rng: np.random.Generator) -> list[int]:
    """The first unit, the last, and others at random."""
    others = rng.integers(0, count, max(wanted - 2, 0)).tolist()
    return sorted({0, count - 1, *others})


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """Of the largest value; infinite where only one is a number, or exact values differ."""
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    a, b = got.astype(np.float64), want.astype(np.float64)
    numbers = np.isfinite(b)
    if not np.array_equal(a[~numbers], b[~numbers], equal_nan=True) or np.isnan(a[numbers]).any():
        return float("inf")
    changed = numbers & (b != _UNWRITTEN)
    largest = np.abs(b[changed]).max(initial=1e-30)
    return float(np.abs(a[numbers] - b[numbers]).max(initial=0.0) / largest)


def check(text: str, function: Any, kernel: TileKernel, units: int, seed: int) -> dict[str, Any]:
    """One kernel's units, and the distance of its results."""
    rng = np.random.default_rng(seed)
    sizes = {var.name: typical(var) for var in kernel.sizes}
    count = prod(int(evaluate(extent(v), sizes)) for v in kernel.axes)
    ran = chosen(count, units, rng)
    arrays = [data(b, sizes, rng) for b in kernel.buffers]
    names = [b.dtype.name for b in kernel.buffers]
    pairs = list(zip(names, (a.copy() for a in arrays), strict=True))
    got = [array for _, array in interpret.run(function, pairs, list(sizes.values()), ran)]
    evaluate_kernel(kernel, arrays, sizes, units=ran)
    narrow = any(b.dtype in (BF16, F16) for b in kernel.buffers) or ".to(tl.bfloat16)" in text
    found = max((distance(g, w) for g, w in zip(got, arrays, strict=True)), default=0.0)
    limit = _ROUNDED if narrow else _EXACT
    return {"units": len(ran), "of": count, "distance": found, "ok": found <= limit}


def run(found: dict[str, tuple[str, TileKernel]], units: int, seconds: float, seed: int) -> int:
    """Prints a line for each kernel; the number of those that there was no time for."""
    interpret.repair()
    until = time.monotonic() + seconds
    with interpret.modules() as modules:
        for number, (text, (source, kernel)) in enumerate(found.items()):
            if time.monotonic() > until:
                return len(found) - number
            started = time.monotonic()
            function = modules.function(text, "kernel")
            row = check(text, function, kernel, units, seed + number)
            took = time.monotonic() - started
            print(json.dumps({"source": source, **row, "seconds": took}), flush=True)
    return 0


def main(arguments: Sequence[str]) -> None:
    model, target, precision, units, seconds, seed, schedules = arguments
    found = kernels(Path(model), target, precision, schedules)
    left = run(found, int(units), float(seconds), int(seed))
    print(json.dumps({"left": left}))


if __name__ == "__main__":
    main(sys.argv[1:])
