"""Computes reductions in two steps: reductions of parts, then a reduction of their results.

All threads can then take part in the reduction of a whole tensor.  Neighbouring windows can share
their reductions along one axis.

    s = sum(i, k) f(x[i, k])         ->   p[i] = sum(k) f(x[i, k]) ; s = sum(i) p[i]
    s = sum(k: 1000) x[k]            ->   p[i: 50] = sum(k: 20) x[20*i + k] ; s = sum(i) p[i]
    y[i] = max(u, v) x[i + u, v]     ->   p[j] = max(v) x[j, v] ; y[i] = max(u) p[i + u]

Without parts, a single thread would run a kernel whose stages share no loop.  The order of sums
depends on sizes and prices only, so results are reproducible.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tcc.ir.expr import Expr, Stage, extent, inserted, known_extent, with_stages
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import StageRef, read, substitute_all
from tcc.ir.index import Var, Vars, const, free_vars, iterator, of_atom
from tcc.ops.shapes import replaced
from tcc.passes.fuse.compose import is_contraction
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.schedule.limits import FusionLimits

# A reduction over one loop is divided into at most this many parts.
_MOST = 64


def in_parts(expr: Expr) -> Iterator[Expr]:
    """Yields forms of `expr` in which reductions and windows are computed in two steps.

    Form n has the n-th reduced loop of each reduction as its loop over parts.
    """
    expr = replace(expr, stages=tuple(map(_divided, expr.stages)))
    loops = max((len(s.reduce) for s in expr.stages if _has_parts(s)), default=0)
    return (form for form in (_in_parts(expr, n) for n in range(loops)) if form != expr)


def with_parts(expr: Expr, number: int, loop: Var, parts: int) -> Expr:
    """Returns `expr` with the loop `loop` of stage `number` divided into `parts` parts.

    A new stage after it adds the sums of the parts.  If the first loop has one iteration, such as a
    batch of one image, the loop over parts takes its place.
    """
    stage = expr.stages[number]
    length = trips((loop,)) // parts
    part, step = iterator("part", parts), iterator(loop.name, length)
    one_trip = stage.iters[:1] if len(stage.iters) > 1 and trips(stage.iters[:1]) == 1 else ()
    places = {loop: part * length + step, **dict.fromkeys(one_trip, const(0))}
    partial_sums = replace(
        stage,
        iters=(*free_vars(part), *stage.iters[len(one_trip) :]),
        reduce=replaced(stage.reduce, stage.reduce.index(loop), *free_vars(step)),
        body=substitute_all(stage.body, places),
    )
    at = (part, *map(of_atom, stage.iters[len(one_trip) :]))
    (dtype,) = (node.dtype for node in stage.body)
    sums = replace(stage, reduce=free_vars(part), body=(read(StageRef(number), at, dtype),))
    divided = inserted(expr, number, partial_sums)
    return replace(divided, stages=replaced(divided.stages, number + 1, sums))


def shares_no_loop(expr: Expr, limits: FusionLimits) -> bool:
    """Returns True if `expr` has several stages and no contraction, and its stages share no loop.

    A loop over rows that tiles compute as strips (`sliding_window`) does not count as shared.
    """
    if len(expr.stages) == 1 or any(map(is_contraction, expr.stages)):
        return False
    loops = shared_loops(expr, limits)
    return not loops.common or any(loops.strips)


def _has_parts(stage: Stage) -> bool:
    return len(stage.reduce) > 1 and not is_contraction(stage)


def _divided(stage: Stage) -> Stage:
    """Returns a reduction over one loop as a reduction over two loops.

    The outer loop has the largest number of iterations, up to `_MOST`, that divides the loop.
    """
    if len(stage.reduce) != 1 or trips(stage.iters) != 1 or is_contraction(stage):
        return stage
    (loop,) = stage.reduce
    count = trips(stage.reduce)
    parts = max((n for n in range(2, min(count, _MOST) + 1) if count % n == 0), default=0)
    if not parts:
        return stage
    outer = iterator(loop.name, parts)
    inner = iterator(f"{loop.name}.part", count // parts)
    body = substitute_all(stage.body, {loop: outer * (count // parts) + inner})
    return replace(stage, reduce=(*free_vars(outer), *free_vars(inner)), body=body)


def _in_parts(expr: Expr, loop: int) -> Expr:
    """Returns `expr` with its reductions in two steps.

    In each reduction, the reduced loop at position `loop` (modulo the number of its reduced loops)
    becomes the loop over partial results.
    """
    stages: list[Stage] = []
    # Element n is the number in the result of stage n of `expr`.
    number: list[int] = []

    def renumbered_ref(ref: StageRef) -> StageRef:
        return replace(ref, stage=number[ref.stage])

    for stage in expr.stages:
        stages += _steps(with_stages(stage, renumbered_ref), loop, len(stages))
        number.append(len(stages) - 1)
    return canonical(Expr(expr.params, tuple(stages), tuple(map(renumbered_ref, expr.outputs))))


def _steps(stage: Stage, loop: int, number: int) -> tuple[Stage, ...]:
    """Returns a reduction as two stages: partial results, and their reduction.

    The reduced loop at position `loop` (modulo the number of reduced loops) becomes the loop over
    the partial results.  The stage of the partial results gets the number `number`.  Returns the
    stage alone if it is no reduction over several loops, or if a split does not help.  A split
    helps in two cases: a reduction of known size has a single result, or neighbouring windows share
    partial results.
    """
    if not _has_parts(stage):
        return (stage,)
    part = stage.reduce[loop % len(stage.reduce)]
    inner_loops = tuple(v for v in stage.reduce if v is not part)
    parts = replace(stage, iters=(*stage.iters, part), reduce=inner_loops)
    at = parts.at
    slid = [(n, v) for n, v in enumerate(stage.iters) if _slides(stage, v, part)]
    for n, along in slid[:1]:
        place = iterator(along.name, extent(along) + extent(part) - 1)
        body = substitute_all(stage.body, {along: place, part: const(0)})
        parts = replace(parts, iters=replaced(stage.iters, n, *free_vars(place)), body=body)
        at = replaced(stage.at, n, of_atom(along) + of_atom(part))
    if not slid and (trips(stage.iters) != 1 or not trips(stage.reduce)):
        return (stage,)
    partial_results = (read(StageRef(number, n), at, s.dtype) for n, s in enumerate(stage.body))
    return parts, replace(stage, reduce=(part,), body=tuple(partial_results))


def _slides(stage: Stage, along: Var, part: Var) -> bool:
    """Returns True if term p of point i equals term p + 1 of point i - 1, as in a sliding window.

    `along` is the loop over points, and `part` the loop over parts.
    """
    later = {along: of_atom(along) + 1, part: of_atom(part) - 1}
    return substitute_all(stage.body, later) == stage.body


def trips(loops: Vars) -> int:
    """Returns the number of iterations of a nest of loops; 0 if the extent of a loop is
    symbolic."""
    return prod(known_extent(v) or 0 for v in loops)
