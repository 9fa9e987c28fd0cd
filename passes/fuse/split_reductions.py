"""Reductions in two steps: totals over whole tensors, so that all threads can take part, and
windows, whose neighbours share what they reduce along the other axes.

    s = sum(i, k) f(x[i, k])         ->   p[i] = sum(k) f(x[i, k]) ; s = sum(i) p[i]
    s = sum(k: 1000) x[k]            ->   p[i: 50] = sum(k: 20) x[20*i + k] ; s = sum(i) p[i]
    y[i] = max(u, v) x[i + u, v]     ->   p[j] = max(v) x[j, v] ; y[i] = max(u) p[i + u]

One thread would do all of a kernel whose stages share no loop.  The order of sums depends on sizes
and prices only.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tcc.ir.expr import Expr, Stage, extent, known_extent, with_stages
from tcc.ir.expr.scalar import StageRef, read, substitute_all
from tcc.ir.index import Var, Vars, const, free_vars, iterator, of_atom
from tcc.ops.shapes import replaced
from tcc.passes.fuse.compose import canonical, is_contraction
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.schedule.limits import FusionLimits

# The most parts of a total over one loop, for threads to share.
_MOST = 64


def in_parts(expr: Expr) -> Iterator[Expr]:
    """`expr` with its totals and windows taken in two steps: once for each loop whose elements
    become parts."""
    expr = replace(expr, stages=tuple(map(_divided, expr.stages)))
    loops = max((len(s.reduce) for s in expr.stages if _has_parts(s)), default=0)
    forms = (_in_parts(expr, n) for n in range(loops))
    return (form for form in forms if form != expr)


def shares_no_loop(expr: Expr, limits: FusionLimits) -> bool:
    """Whether units of several stages without a product have no loop to share, or windows of rows
    alone."""
    if len(expr.stages) == 1 or any(map(is_contraction, expr.stages)):
        return False
    loops = shared_loops(expr, limits)
    return not loops.common or any(loops.strips)


def _has_parts(stage: Stage) -> bool:
    return len(stage.reduce) > 1 and not is_contraction(stage)


def _divided(stage: Stage) -> Stage:
    """A total over one loop as one over two, the outer as long as it can be for `_MOST`."""
    if len(stage.reduce) != 1 or trips(stage.iters) != 1 or is_contraction(stage):
        return stage
    (whole,) = stage.reduce
    count = trips(stage.reduce)
    parts = max((n for n in range(2, min(count, _MOST) + 1) if count % n == 0), default=0)
    if not parts:
        return stage
    outer = iterator(whole.name, parts)
    inner = iterator(f"{whole.name}.part", count // parts)
    body = substitute_all(stage.body, {whole: outer * (count // parts) + inner})
    return replace(stage, reduce=(*free_vars(outer), *free_vars(inner)), body=body)


def _in_parts(expr: Expr, loop: int) -> Expr:
    """`expr` with parts for each element of the loop number `loop` of a reduction, or its last."""
    stages: list[Stage] = []
    number: list[int] = []  # where each stage of `expr` is now

    def moved(ref: StageRef) -> StageRef:
        return replace(ref, stage=number[ref.stage])

    for stage in expr.stages:
        stages += _steps(with_stages(stage, moved), loop, len(stages))
        number.append(len(stages) - 1)
    return canonical(Expr(expr.params, tuple(stages), tuple(map(moved, expr.outputs))))


def _steps(stage: Stage, loop: int, number: int) -> tuple[Stage, ...]:
    """A total or a window as parts, which are stage `number`, and their reduction; anything else as
    it is."""
    if not _has_parts(stage):
        return (stage,)
    part = stage.reduce[loop % len(stage.reduce)]
    rest = tuple(v for v in stage.reduce if v is not part)
    parts = replace(stage, iters=(*stage.iters, part), reduce=rest)
    at = parts.at
    slid = [(n, v) for n, v in enumerate(stage.iters) if _slides(stage, v, part)]
    for n, along in slid[:1]:
        place = iterator(along.name, extent(along) + extent(part) - 1)
        body = substitute_all(stage.body, {along: place, part: const(0)})
        parts = replace(parts, iters=replaced(stage.iters, n, *free_vars(place)), body=body)
        at = replaced(stage.at, n, of_atom(along) + of_atom(part))
    if not slid and (trips(stage.iters) != 1 or not trips(stage.reduce)):
        return (stage,)
    held = (read(StageRef(number, n), at, s.dtype) for n, s in enumerate(stage.body))
    return parts, replace(stage, reduce=(part,), body=tuple(held))


def _slides(stage: Stage, along: Var, part: Var) -> bool:
    """Whether a stage reduces the same for a point as for the one before it, a part later."""
    later = {along: of_atom(along) + 1, part: of_atom(part) - 1}
    return substitute_all(stage.body, later) == stage.body


def trips(loops: Vars) -> int:
    """Trips of all loops together; 0 where one is open."""
    return prod(known_extent(v) or 0 for v in loops)
