"""Chooses a schedule for a tile group from its strides and a target's registers.

One candidate a group for now.  A contraction gets rows x vectors accumulators that fill the
register file without spilling (Low et al., "Analytical Modeling Is Enough for High-Performance
BLIS", 2016); everything else is blocked along the loop with the smoothest accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tcc.ir.expr import extent
from tcc.ir.group import GroupStage, TileGroup
from tcc.ir.index import Var, as_int
from tcc.schedule.nest import (
    all_accesses,
    anchor,
    depends,
    guarded,
    product,
    stride,
    trips,
    weight,
    work,
)
from tcc.schedule.schedule import Schedule

# Work (body operations) below which cutting a unit further costs more than it balances.
UNIT_WORK = 1 << 14


@dataclass(frozen=True, slots=True)
class Registers:
    """What a kernel may use: `lanes` f32 elements a vector, `count` vector registers, and `l2`
    bytes of a core's second-level cache."""

    lanes: int
    count: int
    l2: int = 1 << 20


def choose(group: TileGroup, registers: Registers) -> Schedule:
    """A schedule for `group`."""
    stage = anchor(group)
    factors = product(stage)
    vectors = _vector_loops(group, stage)
    blocks: dict[Var, int] = {}
    for user, loop in vectors.items():
        fits = _vector_block(loop, user, registers)
        blocks[loop] = min(fits, blocks.get(loop, fits))
    vector = vectors.get(stage)
    streamed: frozenset[Var] | None = None
    if factors is not None and vector is not None:
        sides = (depends(stage, factors.a), depends(stage, factors.b))
        blocks.update(_contraction_blocks(group, stage, sides, vector, registers))
        if vector not in stage.reduce:
            this, other = sides if vector in sides[0] else sides[::-1]
            if _panels_outer(group, stage, (this, other), blocks, vector, registers):
                streamed = this
    parallel, serial = _loop_order(group, blocks, vector, streamed)
    named = tuple((v.name, n) for v, n in blocks.items() if n > 1)
    names = tuple(dict.fromkeys(v.name for v in vectors.values()))
    return Schedule(named, names, parallel, serial)


# ---- the vector loops -------------------------------------------------------------------------


def _vector_loops(group: TileGroup, stage: GroupStage) -> dict[GroupStage, Var]:
    """For each stage the loop whose neighbours lie side by side: a common one if that suits the
    stage with most work, else one of its own."""
    best = _best_loop(group, stage, (*group.common, *_own(group, stage)))
    if best is None or best in group.common:
        return {} if best is None else dict.fromkeys(group.stages, best)
    found = {s: _best_loop(group, s, _own(group, s)) for s in group.stages}
    return {s: v for s, v in found.items() if v is not None}


def _own(group: TileGroup, stage: GroupStage) -> tuple[Var, ...]:
    return (*(v for v in stage.iters if v not in group.common), *stage.reduce)


def _best_loop(group: TileGroup, stage: GroupStage, loops: tuple[Var, ...]) -> Var | None:
    scored = [(_smoothness(group, stage, v), n, v) for n, v in enumerate(loops)]
    best = max(scored, default=None, key=lambda s: s[:2])
    return best[2] if best is not None and best[0] > 0 else None


def _vector_block(var: Var, stage: GroupStage, registers: Registers) -> int:
    """Up to four vectors; two for a contraction's accumulators where registers are few, and one
    where a reduction carries several values."""
    few = registers.count < 32 and product(stage) is not None
    full = (1 if len(stage.body) > 1 else 2 if few else 4) * _lanes(stage, registers)
    size = as_int(extent(var))
    return full if size is None else max(1, min(size, full))


def _lanes(stage: GroupStage, registers: Registers) -> int:
    """Elements of the stage in a vector; types narrower than f32 are computed there."""
    return max(1, registers.lanes * 4 // max(4, *(s.dtype.bytes for s in stage.body)))


def _smoothness(group: TileGroup, stage: GroupStage, var: Var) -> float:
    """How well blocks along `var` suit memory: one at best, weighed by how often each access runs.

    A contraction's other operand is broadcast for free.
    """
    total = count = 0.0
    for other in group.stages:
        if var not in group.common and other is not stage:
            continue
        broadcast = 1.0 if var in group.common and product(other) is not None else 0.3
        for access in all_accesses(other):
            if group.buffers[access.buffer].constant:
                continue
            stored = any(access in targets for targets in other.stores)
            runs = _points(other.iters) if stored else work(other)
            step = stride(access, var)
            smooth = 1.0 if step == 1 else broadcast if step == 0 else -2.0
            # Loads that lanes may leave are masked: slower, but far from one by one.
            total += runs * (smooth / 2 if smooth > 0 and guarded(access, var) else smooth)
            count += runs
    if total <= 0:
        return 0.0
    fill = min(trips(var), 16) / 16
    if var not in stage.reduce:
        return total / count * fill
    # A reduction along the vector needs a horizontal step at its end, for every element of a
    # contraction's block.
    return total / count * fill * (0.8 if product(stage) is None else 0.4)


def _panels_outer(
    group: TileGroup,
    stage: GroupStage,
    sides: tuple[frozenset[Var], frozenset[Var]],
    blocks: dict[Var, int],
    vector: Var,
    registers: Registers,
) -> bool:
    """Whether walking one panel of the vector operand over all rows moves fewer bytes from beyond
    the second-level cache than walking all panels for each block of rows."""
    this, other = (_footprint(group, stage, side) * stage.body[0].dtype.bytes for side in sides)
    panels = -(-trips(vector) // blocks[vector])
    row_blocks = 1
    for var in group.common:
        if var not in sides[0]:
            row_blocks *= -(-trips(var) // blocks.get(var, 1))
    panel = this // panels
    outer = this * (1 if panel <= registers.l2 else row_blocks) + other * (
        1 if other <= registers.l2 else panels
    )
    inner = other + this * (1 if this <= registers.l2 else row_blocks)
    return outer <= inner


def _footprint(group: TileGroup, stage: GroupStage, side: frozenset[Var]) -> int:
    """Elements of the storage that a factor varying with the loops `side` reads."""
    total = 0
    for node, access in stage.accesses.items():
        if depends(stage, node) <= side:
            size = as_int(group.buffers[access.buffer].size)
            total += _points(tuple(side)) if size is None else size
    return total


def _points(variables: tuple[Var, ...]) -> int:
    return prod(trips(v) for v in variables)


# ---- blocks of the other loops ------------------------------------------------------------------


def _contraction_blocks(
    group: TileGroup,
    stage: GroupStage,
    sides: tuple[frozenset[Var], frozenset[Var]],
    vector: Var,
    registers: Registers,
) -> dict[Var, int]:
    lanes = _lanes(stage, registers)
    if vector in stage.reduce:
        rows = {}
        square = 4 if registers.count >= 32 else 3
        for side, other in (sides, sides[::-1]):
            free = [v for v in group.common if v in side and v not in other]
            if free:
                rows[_longest(free)] = square
        return {**rows, vector: lanes} if len(rows) == 2 else {}
    in_both = vector in sides[0] and vector in sides[1]
    vectors = -(-_vector_block(vector, stage, registers) // lanes)
    rows_max = _rows(vectors, registers)
    blocks: dict[Var, int] = {}
    other = sides[0] if vector in sides[1] else sides[1]
    this = sides[1] if vector in sides[1] else sides[0]
    rows_of = [v for v in group.common if v is not vector and v in other and v not in this]
    if rows_of:
        blocks[_longest(rows_of)] = min(rows_max, 4) if in_both else rows_max
    inner = [v for v in stage.reduce if trips(v) > 1]
    if inner and not in_both:
        blocks[inner[-1]] = 4
    return blocks


def _longest(variables: list[Var]) -> Var:
    """The longest loop, the innermost of equals."""
    return max(enumerate(variables), key=lambda pair: (trips(pair[1]), pair[0]))[1]


def _rows(vectors: int, registers: Registers) -> int:
    """Rows of accumulators beside `vectors` loaded ones and a broadcast: never a spill."""
    table = {4: 6, 3: 8, 2: 12, 1: 14} if registers.count >= 32 else {2: 6, 1: 10}
    return table[max(1, min(vectors, 4))]


# ---- loops --------------------------------------------------------------------------------------


def _loop_order(
    group: TileGroup,
    blocks: dict[Var, int],
    vector: Var | None,
    streamed: frozenset[Var] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Storage order; but a contraction's larger operand, which varies with the loops `streamed`,
    is walked once, by the outer loops."""
    order = [v for v in group.common if v is not vector]
    if vector is not None and vector in group.common:
        if streamed is None:
            order.append(vector)
        else:
            outer = [v for v in order if v in streamed]
            order = [*outer, vector, *(v for v in order if v not in streamed)]
    unit = sum(work(s) * weight(s) for s in group.stages)
    parallel: list[str] = []
    for var in order:
        if unit < UNIT_WORK and parallel:
            break
        parallel.append(var.name)
        unit //= max(1, -(-trips(var) // blocks.get(var, 1)))
    return tuple(parallel), tuple(v.name for v in order[len(parallel) :])
