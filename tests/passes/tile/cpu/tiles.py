"""Runs expressions as tile kernels: storage, schedule, lowering, verifier, evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import as_int, evaluate
from tcc.ir.layout import row_major
from tcc.ir.tile import TileKernel
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import DType, TensorType
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.along import loops_along
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Nest, Schedule, TailVectors
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits
from tcc.schedule.nest import contraction_factors

from tests.lib.oracle.tile.evaluate import evaluate_kernel

Array = np.ndarray[Any, np.dtype[Any]]
Chooser = Callable[[TileGroup], Schedule]
REGISTERS = CoreModel(16, 32)


def chosen(group: TileGroup) -> Schedule:
    return choose(group, REGISTERS)


def drawn(rng: np.random.Generator) -> Chooser:
    """Returns a chooser of random schedules, which nobody would want but which all must be
    right."""

    def schedule(group: TileGroup) -> Schedule:
        order = [str(n) for n in rng.permutation([v.name for v in group.common])]
        depth = int(rng.integers(0, len(order) + 1))
        units = tuple((n, int(rng.choice([1, 2, 3, 4, 6, 9]))) for n in order[:depth])
        nests = _along(rng, group, [_nest(rng, group, part) for part in _parts(rng, group)])
        closed = {v.name for v in group.common if as_int(extent(v)) is not None}
        if len(nests) > 1 or any(n.k_blocks for n in nests):  # scratch has a known size
            depth = max([depth, *(n + 1 for n, name in enumerate(order) if name not in closed)])
        skips = bool(rng.integers(2))
        return Schedule(units, tuple(order[:depth]), nests, int(rng.integers(1, 10)), skips)

    return schedule


def _parts(rng: np.random.Generator, group: TileGroup) -> list[list[int]]:
    """Groups the stages into nests; stages with the same loops sometimes share a nest."""
    parts: list[list[int]] = []
    for number, stage in enumerate(group.stages):
        before = group.stages[number - 1]
        plain = not any(isinstance(r.source, StageRef) for r in stage.accesses)
        is_same = number > 0 and set(stage.iters) == set(before.iters)
        is_same = is_same and _part(group, number) == _part(group, number - 1)
        if is_same and stage.monoid is None and plain and rng.random() < 0.7:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


def _along(rng: np.random.Generator, group: TileGroup, nests: list[Nest]) -> tuple[Nest, ...]:
    """Makes some pointwise stages part of the reduction loop behind them."""
    nests_so_far: list[Nest] = []
    for nest in nests:
        reduction = group.stages[nest.stages[0]]
        plain = (
            contraction_factors(reduction) is None
            and bool(nests_so_far)
            and not nests_so_far[-1].along
        )
        if plain and loops_along(group, nests_so_far[-1].stages, reduction) and rng.random() < 0.7:
            nest = replace(nest, along=nests_so_far.pop().stages)
        nests_so_far.append(nest)
    return tuple(nests_so_far)


def _part(group: TileGroup, number: int) -> int:
    """Returns 0 for a stage before the streaming loop, 1 in it, 2 for a total of it, 3 after it."""
    stream = group.stream
    if stream is None or number in stream.before:
        return 0
    if number not in stream.stages:
        return 3
    return 1 + (stream.loop in group.stages[number].reduce)


def _nest(rng: np.random.Generator, group: TileGroup, numbers: list[int]) -> Nest:
    stages = [group.stages[n] for n in numbers]
    iters = [v.name for v in stages[0].iters]
    reduce = [v for s in stages for v in s.reduce]
    names = [*iters, *(v.name for v in reduce)]
    blocks = tuple((n, int(rng.choice([1, 1, 2, 3, 4, 8]))) for n in names)
    vector = str(rng.choice(names)) if names and rng.random() < 0.8 else None
    has_fixed_sizes = all(as_int(extent(v)) is not None for s in stages for v in s.iters)
    runs: tuple[tuple[str, int], ...] = ()
    if len(stages) == 1 and has_fixed_sizes and rng.random() < 0.5:
        streamed = None if group.stream is None else group.stream.loop
        split = [v for v in reduce if v is not streamed and rng.random() < 0.7]
        runs = tuple((v.name, int(rng.integers(1, 7))) for v in split)
    loops = [*(n for n in iters if rng.random() < 0.6), *(n for n, _ in runs)]
    order = tuple(str(n) for n in rng.permutation(loops)) if loops else ()
    packed = bool(rng.random() < 0.5)
    nest = Nest(tuple(numbers), order, blocks, vector, runs, packed=packed)
    # Further draws would change the random values of other fields.
    lanes = [n for n in (2, 4) if nest.block(vector or "") % n == 0]
    which = sum(n for _, n in blocks)
    if not lanes or which % 4 == 0:
        return nest
    rows = next((name for name in iters if name != vector), None)
    return replace(nest, vectors=TailVectors(lanes[which % len(lanes)], which % 4 != 1, rows))


@dataclass(frozen=True)
class Built:
    """A kernel with its group and its schedule."""

    group: TileGroup
    schedule: Schedule
    kernel: TileKernel
    unproved: tuple[str, ...]


def build(
    expr: Expr, choose_schedule: Chooser = chosen, *, limits: FusionLimits = TYPICAL_LIMITS
) -> Built:
    """Returns the verified kernel of `expr` with row-major storage."""
    operands = [_plain(t) for t in expr.params if t is not None]
    group = build_group(expr, operands, [_plain(t) for t in expr.types], limits=limits)
    schedule = choose_schedule(group)
    kernel = lower(group, schedule)
    return Built(group, schedule, kernel, verify_kernel(kernel))


def _plain(type_: TensorType) -> Storage:
    return Storage(type_.dtype, type_.shape, row_major(type_.shape))


def unwritten(size: int, dtype: DType) -> Array:
    """Returns memory with values that no result has."""
    if dtype.is_float:
        return np.full(size, np.nan, dtype.carrier)
    return np.full(size, 0x55, np.uint8).astype(dtype.carrier)


def run(
    expr: Expr,
    operands: Sequence[Array],
    sizes: Mapping[str, int],
    choose_schedule: Chooser = chosen,
    *,
    limits: FusionLimits = TYPICAL_LIMITS,
) -> tuple[Array, ...]:
    """Returns the results of `expr`, computed by its kernel."""
    kernel = build(expr, choose_schedule, limits=limits).kernel
    return run_kernel(kernel, expr.types, operands, sizes)


def run_kernel(
    kernel: TileKernel,
    results: Sequence[TensorType],
    operands: Sequence[Array],
    sizes: Mapping[str, int],
) -> tuple[Array, ...]:
    """Returns the results of a kernel over flat buffers; elements that it does not write are unlike
    any result."""
    shapes = [tuple(int(evaluate(d, sizes)) for d in t.shape) for t in results]
    out = [
        unwritten(int(np.prod(shape, dtype=np.int64)), t.dtype)
        for shape, t in zip(shapes, results, strict=True)
    ]
    flat = [np.ascontiguousarray(a).reshape(-1) for a in operands]
    evaluate_kernel(kernel, [*flat, *out], sizes)
    return tuple(a.reshape(s) for a, s in zip(out, shapes, strict=True))
