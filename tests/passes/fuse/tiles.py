"""Runs expressions as tile kernels: storage, schedule, lowering, verifier, evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tcc.ir.evaluate_tile import evaluate_kernel
from tcc.ir.expr import Expr
from tcc.ir.group import TileGroup
from tcc.ir.index import evaluate
from tcc.ir.layout import row_major
from tcc.ir.tile import TileKernel
from tcc.ir.types import DType, TensorType
from tcc.ir.verify_tile import verify_kernel
from tcc.passes.fuse.lower import lower
from tcc.passes.fuse.structure import Storage, build_group
from tcc.schedule.choose import Registers, choose
from tcc.schedule.schedule import Schedule

Array = np.ndarray[Any, np.dtype[Any]]
Chooser = Callable[[TileGroup], Schedule]
REGISTERS = Registers(16, 32)


def chosen(group: TileGroup) -> Schedule:
    return choose(group, REGISTERS)


def drawn(rng: np.random.Generator) -> Chooser:
    """A chooser of schedules that nobody would want, but all of which must be right."""

    def schedule(group: TileGroup) -> Schedule:
        loops = dict.fromkeys(v.name for s in group.stages for v in (*s.iters, *s.reduce))
        names = list(loops)
        blocks = tuple((n, int(rng.choice([1, 1, 2, 3, 4, 8]))) for n in names)
        vectors = _vectors(rng, group)
        order = [str(n) for n in rng.permutation([v.name for v in group.common])]
        cut = int(rng.integers(0, len(order) + 1))
        return Schedule(blocks, vectors, tuple(order[:cut]), tuple(order[cut:]))

    return schedule


def _vectors(rng: np.random.Generator, group: TileGroup) -> tuple[str, ...]:
    """A common loop, or loops of stages' own, never two in one stage."""
    stages = [{v.name for v in (*s.iters, *s.reduce)} for s in group.stages]
    common = {v.name for v in group.common}
    own = list(dict.fromkeys(n for names in stages for n in sorted(names - common)))
    if common and (not own or rng.random() < 0.5):
        return (str(rng.choice(sorted(common))),)
    found: list[str] = []
    for name in rng.permutation(own):
        if all(not names & set(found) for names in stages if name in names):
            found.append(str(name))
    return tuple(found)


@dataclass(frozen=True)
class Built:
    """A kernel with the group and the schedule it was made from."""

    group: TileGroup
    schedule: Schedule
    kernel: TileKernel
    unproved: tuple[str, ...]


def build(expr: Expr, choose_schedule: Chooser = chosen) -> Built:
    """The verified kernel of `expr` with everything row-major."""
    operands = [_plain(t) for t in expr.params if t is not None]
    group = build_group(expr, operands, [_plain(t) for t in expr.types])
    schedule = choose_schedule(group)
    kernel = lower(group, schedule)
    return Built(group, schedule, kernel, verify_kernel(kernel))


def _plain(type_: TensorType) -> Storage:
    return Storage(type_.dtype, type_.shape, row_major(type_.shape))


def unwritten(size: int, dtype: DType) -> Array:
    """Memory that no result should look like."""
    if dtype.is_float:
        return np.full(size, np.nan, dtype.carrier)
    return np.full(size, 0x55, np.uint8).astype(dtype.carrier)


def run(
    expr: Expr,
    operands: Sequence[Array],
    sizes: Mapping[str, int],
    choose_schedule: Chooser = chosen,
) -> tuple[Array, ...]:
    """The results of `expr`, computed by its kernel."""
    return run_kernel(build(expr, choose_schedule).kernel, expr.types, operands, sizes)


def run_kernel(
    kernel: TileKernel,
    results: Sequence[TensorType],
    operands: Sequence[Array],
    sizes: Mapping[str, int],
) -> tuple[Array, ...]:
    """The results of a kernel over flat buffers; what it does not write stays unlike a result."""
    shapes = [tuple(int(evaluate(d, sizes)) for d in t.shape) for t in results]
    out = [
        unwritten(int(np.prod(shape, dtype=np.int64)), t.dtype)
        for shape, t in zip(shapes, results, strict=True)
    ]
    flat = [np.ascontiguousarray(a).reshape(-1) for a in operands]
    evaluate_kernel(kernel, [*flat, *out], sizes)
    return tuple(a.reshape(s) for a, s in zip(out, shapes, strict=True))
