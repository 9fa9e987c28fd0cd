"""Whether a group walks along a loop a run at a time, because units cannot hold all of it.

A unit that holds whole rows computes every reduction once (the split form).  Rows of symbolic
size, or of more bytes than a core's cache, are walked instead (the online form of `states`):
nothing then grows with the length of the loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tcc.ir.expr import Expr, Stage, extent, inserted, known_extent, reads
from tcc.ir.expr.scalar import Read, StageRef, read, read_from, replaced, uncast
from tcc.ir.index import Var, Vars, as_int, free_vars, linear_in, of_atom
from tcc.ir.tile.group import Rescale, StreamLoop
from tcc.ir.types import element_count
from tcc.passes.fuse.online_reductions import Streamed, derive
from tcc.passes.fuse.unify_iterators import Shaped, common_loops, linked_stages, needs_memory
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import multiplied


@lru_cache(maxsize=512)
def streamed(expr: Expr, limits: FusionLimits) -> Streamed | None:
    """The online form of `expr`, where it is wanted and there is one."""
    if len(expr.stages) == 1 or not _too_much(expr, limits):
        return None
    found = derive(expr)
    if found is None:
        return None
    found = _with_factors(found, limits)
    return found if _fits(found, limits) else None


def resident_bytes(linked: Sequence[Shaped], number: int, cut: Vars) -> int | None:
    """Bytes of a stage for one point of the loops in `cut`; None where they are open."""
    stage = linked[number].stage
    count = as_int(element_count(tuple(extent(v) for v in linked[number].axes if v not in cut)))
    return None if count is None else count * max(s.dtype.bytes for s in stage.body)


def _too_much(expr: Expr, limits: FusionLimits) -> bool:
    linked = linked_stages(expr)
    common = common_loops(linked)
    total = 0
    for number in range(len(linked)):
        away = needs_memory(linked, number, common)
        if away or linked[number].stage.monoid is not None:
            size = resident_bytes(linked, number, common)
            if size is None and away:
                return True
            total += size or 0
    if limits.walks is not None:
        return limits.walks
    if common and any(map(_factors, expr.stages)):
        rows = (known_extent(v) or limits.stream_rows for v in _rows(linked, common))
        total *= min(limits.stream_rows, max(rows))
    if total > limits.room or _reads_long_rows(expr, limits):
        return True
    return any(_multiplies_rows(s, limits) for s in expr.stages)


def _rows(linked: Sequence[Shaped], common: Vars) -> Vars:
    """The common loops along which products read one factor again, else the innermost one."""
    found: set[Var] = set()
    for shaped in linked:
        if factors := _factors(shaped.stage):
            a, b = (set(free_vars(*f.indices)) for f in factors)
            found |= a ^ b
    return tuple(v for v in common if v in found) or common[-1:]


def _reads_long_rows(expr: Expr, limits: FusionLimits) -> bool:
    sizes = [
        known_extent(stage.reduce[0])
        for stage in expr.stages
        if len(stage.reduce) == 1 and any(isinstance(r.source, int) for r in reads(stage))
    ]
    return len(sizes) > 1 and any(s is not None and s * 4 > limits.long_row for s in sizes)


def _multiplies_rows(stage: Stage, limits: FusionLimits) -> bool:
    """Whether a product reads both factors along the sum: no loop of its result runs along memory,
    and a unit that holds whole rows could not change that.  A few rows multiply as they lie, with
    sums along the vectors."""
    factors, few = _factors(stage), limits.transposed_rows
    if not all(set(free_vars(f.indices[-1])) <= set(stage.reduce) for f in factors if f.indices):
        return False
    return bool(factors) and all(_own_points(stage, f, few) >= few for f in factors)


def _own_points(stage: Stage, factor: Read, few: int) -> int:
    """Elements of the result for each that the other factor gives alone."""
    own = free_vars(*factor.indices)
    others = free_vars(*(i for f in _factors(stage) if f is not factor for i in f.indices))
    alone = [v for v in stage.iters if v in own and v not in others]
    return prod(known_extent(v) or few for v in alone)


def _factors(stage: Stage) -> tuple[Read, ...]:
    found = multiplied(stage)
    if found is None:
        return ()
    a, b = uncast(found.a), uncast(found.b)
    return (a, b) if isinstance(a, Read) and isinstance(b, Read) and a is not b else ()


# ---- factors that a unit turns around ----------------------------------------------------------


def _with_factors(found: Streamed, limits: FusionLimits) -> Streamed:
    """With a copy, made once a unit, of factors of products along the streaming loop that lie along
    the sum: rows of the copy then lie along the vectors, and the factor that is walked needs
    none."""
    loop = found.stream.loop
    for number in found.stream.stages:
        stage = found.expr.stages[number]
        factors = _factors(stage)
        if loop in stage.iters and factors and _multiplies_rows(stage, limits):
            still = [f for f in factors if loop not in free_vars(*f.indices)]
            if len(still) == 1 and isinstance(still[0].source, int) and still[0].fill is None:
                return _with_copy(found, number, still[0])
    return found


def _with_copy(found: Streamed, number: int, factor: Read) -> Streamed:
    stage = found.expr.stages[number]
    used = tuple(v for v in stage.loops if v in free_vars(*factor.indices))
    copy = Stage(used, (), None, (factor,))
    at = tuple(map(of_atom, used))
    mine = read(StageRef(-1), at, factor.dtype)
    stages = list(found.expr.stages)
    stages[number] = replace(stage, body=(replaced(stage.body[0], {factor: mine}),))
    old = found.stream
    rescales = [
        Rescale(
            r.stage + 1, read_from(r.state, replace(r.total, stage=r.total.stage + 1)), r.factor
        )
        for r in old.rescales
    ]
    stream = StreamLoop(
        old.loop,
        (0, *(n + 1 for n in old.before)),
        tuple(n + 1 for n in old.stages),
        tuple(rescales),
    )
    return Streamed(inserted(replace(found.expr, stages=tuple(stages)), 0, copy), stream)


# ---- what the lowering relies on ---------------------------------------------------------------


def _fits(found: Streamed, limits: FusionLimits) -> bool:
    """Whether states are rows of the common loops, and a run of the streaming loop is of known
    size."""
    loop = found.stream.loop
    if any(_is_cut(stage, loop) for stage in found.expr.stages):
        return False
    linked = linked_stages(found.expr)
    common = common_loops(linked)
    for rescale in found.stream.rescales:
        state = rescale.total.stage
        if not set(linked[state].stage.iters) <= set(common):
            return False
        if needs_memory(linked, state, common):
            return False
    cut = (*common, loop)
    resident = [
        resident_bytes(linked, n, cut)
        for n in range(len(linked))
        if needs_memory(linked, n, common)
    ]
    return all(size is not None and size <= limits.room for size in resident)


def _is_cut(stage: Stage, loop: Var) -> bool:
    """Whether anything reads at a quotient or a power of the loop."""
    return any(
        loop in free_vars(index) and linear_in(index, loop) is None
        for node in reads(stage)
        for index in node.indices
    )
