"""Decides whether a group streams along a loop in K-blocks, because tiles cannot hold whole rows.

A K-block is some consecutive elements of a row.  In the split form, a tile holds whole rows, and
each reduction has a loop of its own.  Rows of symbolic size, or of more bytes than a core's cache
holds, are computed in the online form (`online_reductions`): one streaming loop runs over K-blocks,
and a tile holds only one K-block of a row.  So no buffer grows with the length of the loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tcc.ir.expr import Expr, Stage, extent, inserted, known_extent, nest_size, reads
from tcc.ir.expr.scalar import Read, StageRef, read, read_from, replaced, uncast
from tcc.ir.index import (
    Quotient,
    Var,
    Vars,
    as_int,
    atoms,
    free_vars,
    iterator,
    linear_in,
    of_atom,
    substitute,
    var_of,
)
from tcc.ir.tile.group import Rescale, StreamLoop
from tcc.passes.fuse.online_reductions import Streamed, derive
from tcc.passes.fuse.recompute import streaming_loops
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, linked_stages, needs_memory
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import multiplied


@lru_cache(512)
def streamed(expr: Expr, limits: FusionLimits) -> Streamed | None:
    """Returns the online form of `expr`; None if streaming is not possible or not worthwhile."""
    if len(expr.stages) == 1 or not _too_much(expr, limits):
        return None
    online = derive(expr)
    if online is None:
        return None
    online = _with_factors(online, limits)
    return online if _fits(online, limits) else None


def resident_bytes(linked: Sequence[Shaped], number: int, fixed: Vars) -> int | None:
    """Returns the bytes of a stage's values at a single point of the loops `fixed`.

    Returns None if their number is symbolic.
    """
    stage = linked[number].stage
    count = as_int(nest_size(v for v in linked[number].axes if v not in fixed))
    return None if count is None else count * max(s.dtype.bytes for s in stage.body)


def _too_much(expr: Expr, limits: FusionLimits) -> bool:
    linked = linked_stages(expr)
    common = common_loops(linked)
    held_bytes = 0
    for number in range(len(linked)):
        away = needs_memory(linked, number, common)
        if away or linked[number].stage.monoid is not None:
            size = resident_bytes(linked, number, common)
            if size is None and away:
                return True
            held_bytes += size or 0
    if limits.streams is not None:
        return limits.streams
    if common and any(map(_factors, expr.stages)):
        rows = (known_extent(v) or limits.stream_rows for v in _rows(linked, common))
        held_bytes *= min(limits.stream_rows, max(rows))
    if held_bytes > limits.room or _reads_long_rows(expr, limits):
        return True
    return any(_multiplies_rows(s, limits) for s in expr.stages)


def _rows(linked: Sequence[Shaped], common: Vars) -> Vars:
    """Returns the common loops that index only one factor of some matmul; if there is none, the
    innermost common loop.

    Each iteration of a returned loop reads the matmul's other factor again.
    """
    row_loops: set[Var] = set()
    for shaped in linked:
        if factors := _factors(shaped.stage):
            a, b = (set(free_vars(*f.indices)) for f in factors)
            row_loops |= a ^ b
    return tuple(v for v in common if v in row_loops) or common[-1:]


def _reads_long_rows(expr: Expr, limits: FusionLimits) -> bool:
    sizes = [
        known_extent(stage.reduce[0])
        for stage in expr.stages
        if len(stage.reduce) == 1 and any(isinstance(r.source, int) for r in reads(stage))
    ]
    return len(sizes) > 1 and any(s is not None and s * 4 > limits.long_row for s in sizes)


def _multiplies_rows(stage: Stage, limits: FusionLimits) -> bool:
    """Returns True if both factors of a matmul are contiguous along the sum, and both have at least
    `limits.transposed_rows` rows.

    An example is sum(k) a[i, k] * b[j, k].  Neither i nor j then reads neighbours in memory, so one
    factor should be transposed block by block, as a streaming loop does.  If a factor has few rows,
    the factors are read as they are stored, and vectors run along the sum.
    """
    factors, few = _factors(stage), limits.transposed_rows
    if not all(set(free_vars(f.indices[-1])) <= set(stage.reduce) for f in factors if f.indices):
        return False
    return bool(factors) and all(_own_points(stage, f, few) >= few for f in factors)


def _own_points(stage: Stage, factor: Read, few: int) -> int:
    """Returns the number of rows of `factor`: the product of the extents of the result loops that
    `factor` has and the other factor does not have.

    A symbolic extent counts as `few`.  If steps of a loop share an element of the other factor,
    only their number counts.
    """
    factor_loops = free_vars(*factor.indices)
    (other,) = (f for f in _factors(stage) if f is not factor)
    other_loops = free_vars(*other.indices)
    return prod(
        shared_steps(other, v) if v in other_loops else known_extent(v) or few
        for v in stage.iters
        if v in factor_loops
    )


def shared_steps(node: Read, var: Var) -> int:
    """Returns how many consecutive iterations of the loop `var` read the same element."""
    for atom in (a for index in node.indices for a in atoms(index)):
        if isinstance(atom, Quotient) and var_of(atom.num) is var:
            count = as_int(atom.den)
            if count and as_int(extent(var) % count) == 0:
                split = iterator("outer", extent(var) // count) * count + iterator("inner", count)
                at = [substitute(i, {var: split}) for i in node.indices]
                if all(v.name != "inner" for v in free_vars(*at)):
                    return count
    return 1


def _factors(stage: Stage) -> tuple[Read, ...]:
    pair = multiplied(stage)
    if pair is None:
        return ()
    a, b = uncast(pair.a), uncast(pair.b)
    return (a, b) if isinstance(a, Read) and isinstance(b, Read) and a is not b else ()


# ---- copies of factors ---------------------------------------------------------------------------


def _with_factors(online: Streamed, limits: FusionLimits) -> Streamed:
    """Returns the form with a transposed copy of a matmul's factor, if both factors are contiguous
    along the sum; else `online` itself.

    The copied factor does not vary along the streaming loop, so each tile copies it once.  In the
    copy, neighbouring rows are adjacent in memory, so that vectors run along them.  The other
    factor, which the loop streams, is read as it is stored.
    """
    loop = online.stream.loop
    for number in online.stream.stages:
        stage = online.expr.stages[number]
        factors = _factors(stage)
        if loop in stage.iters and factors and _multiplies_rows(stage, limits):
            stationary = [f for f in factors if loop not in free_vars(*f.indices)]
            if (
                len(stationary) == 1
                and isinstance(stationary[0].source, int)
                and stationary[0].fill is None
            ):
                return _with_copy(online, number, stationary[0])
    return online


def _with_copy(online: Streamed, number: int, factor: Read) -> Streamed:
    stage = online.expr.stages[number]
    loops = tuple(v for v in stage.loops if v in free_vars(*factor.indices))
    copy = Stage(loops, (), None, (factor,))
    at = tuple(map(of_atom, loops))
    copy_read = read(StageRef(-1), at, factor.dtype)
    stages = list(online.expr.stages)
    stages[number] = replace(stage, body=(replaced(stage.body[0], {factor: copy_read}),))
    old = online.stream
    rescales = (
        Rescale(
            r.stage + 1, read_from(r.state, replace(r.total, stage=r.total.stage + 1)), r.factor
        )
        for r in old.rescales
    )
    before, numbers = (tuple(n + 1 for n in part) for part in (old.before, old.stages))
    stream = StreamLoop(old.loop, (0, *before), numbers, tuple(rescales))
    return Streamed(inserted(replace(online.expr, stages=tuple(stages)), 0, copy), stream)


# ---- conditions of the lowering ------------------------------------------------------------------


def _fits(online: Streamed, limits: FusionLimits) -> bool:
    """Returns True if a tile's scratch can hold a K-block of the streaming loop.

    The values of each stage in a K-block must have a static size of at most `limits.room` bytes.  A
    state by which other sums are rescaled must have common loops only, and stay in registers.
    """
    loop = online.stream.loop
    every_read = (node for stage in online.expr.stages for node in reads(stage))
    indices = (index for node in every_read for index in node.indices)
    if any(loop in free_vars(index) and linear_in(index, loop) is None for index in indices):
        return False
    linked = linked_stages(online.expr)
    common = streaming_loops(linked, {out.stage for out in online.expr.outputs})
    for rescale in online.stream.rescales:
        state = rescale.total.stage
        if not set(linked[state].stage.iters) <= set(common):
            return False
        if needs_memory(linked, state, common):
            return False
    fixed = (*common, loop)
    resident = [
        resident_bytes(linked, n, fixed)
        for n in range(len(linked))
        if needs_memory(linked, n, common)
    ]
    return all(size is not None and size <= limits.room for size in resident)
