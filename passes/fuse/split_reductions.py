"""Totals over whole tensors, in two steps, so that all threads can take part.

    s = sum(i, k) f(x[i, k])   ->   p[i] = sum(k) f(x[i, k]) ; s = sum(i) p[i]

One thread would do all of a kernel whose stages share no loop.  The order of sums depends on sizes
and prices only.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tcc.ir.expr import Expr, Stage, extent, with_stages
from tcc.ir.expr.scalar import StageRef, read
from tcc.ir.index import Var, Vars, as_int
from tcc.passes.fuse.compose import canonical, is_contraction
from tcc.passes.fuse.sliding_window import shared_loops
from tcc.schedule.limits import FusionLimits


def in_parts(expr: Expr) -> Iterator[Expr]:
    """`expr` with its totals over several loops taken in two steps: once for each loop whose
    elements become parts."""
    loops = max((len(s.reduce) for s in expr.stages if _is_total(s)), default=0)
    return (_in_parts(expr, number) for number in range(loops))


def shares_no_loop(expr: Expr, limits: FusionLimits) -> bool:
    """Whether units of several stages without a product have no loop to share."""
    several = len(expr.stages) > 1 and not any(map(is_contraction, expr.stages))
    return several and not shared_loops(expr, limits).common


def _is_total(stage: Stage) -> bool:
    several = stage.monoid is not None and len(stage.reduce) > 1 and not is_contraction(stage)
    return several and trips(stage.iters) == 1 and trips(stage.reduce) > 0


def _in_parts(expr: Expr, loop: int) -> Expr:
    """`expr` with parts for each element of the loop number `loop` of a total, or of its last."""
    stages: list[Stage] = []
    number: list[int] = []  # where each stage of `expr` is now

    def moved(ref: StageRef) -> StageRef:
        return replace(ref, stage=number[ref.stage])

    for stage in expr.stages:
        found = with_stages(stage, moved)
        part = stage.reduce[min(loop, len(stage.reduce) - 1)] if _is_total(stage) else None
        stages += (found,) if part is None else _steps(found, part, len(stages))
        number.append(len(stages) - 1)
    return canonical(Expr(expr.params, tuple(stages), tuple(map(moved, expr.outputs))))


def _steps(stage: Stage, part: Var, number: int) -> tuple[Stage, Stage]:
    """A total as parts, which are stage `number`, and their sum."""
    rest = tuple(v for v in stage.reduce if v is not part)
    parts = replace(stage, iters=(*stage.iters, part), reduce=rest)
    held = (read(StageRef(number, n), parts.at, s.dtype) for n, s in enumerate(stage.body))
    return parts, replace(stage, reduce=(part,), body=tuple(held))


def trips(loops: Vars) -> int:
    """Trips of all loops together; 0 where one is open."""
    return prod(as_int(extent(v)) or 0 for v in loops)
