"""Totals over whole tensors, in two steps, so that all threads take part.

    s = sum(i, k) f(x[i, k])   ->   p[i] = sum(k) f(x[i, k]) ; s = sum(i) p[i]

Says too where kernels that hold such totals are cut: where stages share no loop, one thread would
do all of them.  The order of sums depends on sizes only.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcc.ir.expr import Expr, Stage, extent, with_stages
from tcc.ir.expr.scalar import StageRef, read, reads_of_stages
from tcc.ir.index import Var, as_int, of_atom
from tcc.passes.fuse.compose import canonical, is_contraction
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.schedule.limits import FusionLimits


def in_parts(expr: Expr, limits: FusionLimits) -> Expr:
    """`expr` with its large totals taken in two steps."""
    if not any(_part(s, limits) for s in expr.stages):
        return expr
    stages: list[Stage] = []
    number: list[int] = []  # where each stage of `expr` is now

    def moved(ref: StageRef) -> StageRef:
        return replace(ref, stage=number[ref.stage])

    for stage in expr.stages:
        stages += _steps(with_stages(stage, moved), len(stages), limits)
        number.append(len(stages) - 1)
    return canonical(Expr(expr.params, tuple(stages), tuple(map(moved, expr.outputs))))


def alone(expr: Expr, limits: FusionLimits) -> int | None:
    """The stage behind which to cut an expression whose stages share no loop, though one of them
    has work for several threads."""
    if len(expr.stages) == 1 or any(is_contraction(s) for s in expr.stages):
        return None
    if shared_loops(expr, limits).common:
        return None
    last = len(expr.stages) - 1
    for number, stage in enumerate(expr.stages):
        if stage.iters and trips(stage.loops) >= limits.thread_work:
            sources = (source.stage for _, source in reads_of_stages(*stage.body))
            return number if number < last else max(sources, default=None)
    return None


def _part(stage: Stage, limits: FusionLimits) -> Var | None:
    """The loop of a large total whose elements become parts."""
    if stage.monoid is None or is_contraction(stage) or trips(stage.iters) != 1:
        return None
    if len(stage.reduce) < 2 or trips(stage.reduce) < limits.thread_work:
        return None
    return next((v for v in stage.reduce if trips((v,)) >= limits.parts), None)


def _steps(stage: Stage, number: int, limits: FusionLimits) -> tuple[Stage, ...]:
    """A stage as it stands, or as two, the first of them stage `number`."""
    part = _part(stage, limits)
    if part is None:
        return (stage,)
    rest = tuple(v for v in stage.reduce if v is not part)
    parts = replace(stage, iters=(*stage.iters, part), reduce=rest)
    at = tuple(map(of_atom, parts.iters))
    held = (read(StageRef(number, n), at, s.dtype) for n, s in enumerate(stage.body))
    return parts, replace(stage, reduce=(part,), body=tuple(held))


def trips(loops: tuple[Var, ...]) -> int:
    """Trips of all loops together; 0 where one is open."""
    return prod(as_int(extent(v)) or 0 for v in loops)
