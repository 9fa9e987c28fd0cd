"""Cuts an expression whose stages would hold too much between them into several kernels.

    m[i] = max(k) x[i, k] ; l = sum(i, k) f(x[i, k], m[i])   with i open
      ->  kernel { m } , kernel { l } that reads m

So is one whose stages share no loop, though they have work for several threads (`partial.py`).
What stages exchange away from the point that was just computed lies in a unit's scratch memory,
which is of known size and small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tcc.ir.expr import Expr, Stage, extent, reads, with_sources
from tcc.ir.expr.scalar import Source, StageRef, reads_of_stages
from tcc.ir.graph import Value
from tcc.passes.fuse.compose import canonical, drop_unused
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.split_reductions import alone, in_parts
from tcc.record import entity
from tcc.schedule.backend import Divides
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits


@entity
class SplitKernel:
    """One kernel's expression, with the values it reads and stores."""

    expr: Expr
    operands: tuple[Value, ...]
    results: tuple[Value, ...]


def split(
    expr: Expr,
    operands: tuple[Value, ...],
    results: tuple[Value, ...],
    lowers: Callable[[Expr], bool] | None = None,
    divides: Divides | None = None,
    limits: FusionLimits = TYPICAL_LIMITS,
) -> tuple[SplitKernel, ...]:
    """`expr` as kernels in the order in which they run; values between them are new.

    `lowers` may ask for more cuts: of several stages, those that it denies are cut behind totals.
    `divides` may rewrite a kernel and say behind which stage to cut it then.
    """
    base = results[0].name if results else ""
    names = (f"{base}.held{n}" for n in count())
    whole = SplitKernel(in_parts(expr, limits), operands, results)
    pieces = _split(whole, names, lowers, limits)
    if divides is None:
        return pieces
    found = ((p, divides(p.expr)) for p in pieces)
    halves = (
        (p,) if cut is None else _cut(replace(p, expr=cut[0]), (cut[1],), names) for p, cut in found
    )
    return tuple(piece for half in halves for piece in half)


def _split(
    whole: SplitKernel,
    names: Iterator[str],
    lowers: Callable[[Expr], bool] | None,
    limits: FusionLimits,
) -> tuple[SplitKernel, ...]:
    number = _where(whole.expr, lowers, limits)
    if number is None:
        return (whole,)
    first, rest = _cut(whole, (number, *_beside(whole.expr, number)), names)
    if _where(first.expr, lowers, limits) is not None:
        first, rest = _cut(whole, (number,), names)
    halves = (_split(p, names, lowers, limits) for p in (first, rest))
    return tuple(piece for half in halves for piece in half)


def _where(expr: Expr, lowers: Callable[[Expr], bool] | None, limits: FusionLimits) -> int | None:
    """The stage behind which to cut; None for what one kernel can be."""
    number = too_large(expr, limits)
    number = alone(expr, limits) if number is None else number
    if number is None and lowers is not None and len(expr.stages) > 1 and not lowers(expr):
        return _first_total(expr)
    return number


def _cut(
    whole: SplitKernel, numbers: Collection[int], names: Iterator[str]
) -> tuple[SplitKernel, SplitKernel]:
    """`whole` as the kernel of what the stages `numbers` need and the kernel of the rest."""
    expr, results = whole.expr, whole.results
    cut = sorted(numbers)
    own = [n for n, out in enumerate(expr.outputs) if out.stage in cut]
    stored = {expr.outputs[n]: results[n] for n in own}
    held = {
        StageRef(n, c): Value(next(names), type)
        for n in cut
        for c, type in enumerate(expr.stages[n].types)
        if StageRef(n, c) not in stored
    }
    refs = (*(expr.outputs[n] for n in own), *held)
    values = (*(results[n] for n in own), *held.values())
    rest = [n for n in range(len(results)) if n not in own]
    first = _piece(replace(expr, outputs=refs), whole.operands, values)
    known = {**stored, **held}
    second = _piece(
        replace(_reading(expr, tuple(known)), outputs=tuple(expr.outputs[n] for n in rest)),
        (*whole.operands, *known.values()),
        tuple(results[n] for n in rest),
    )
    return first, second


def _beside(expr: Expr, number: int) -> list[int]:
    """Totals over loops as long as those of stage `number`, of the same sources: one kernel reads
    these once for all of them."""

    def form(stage: Stage) -> tuple[Any, ...]:
        lengths = ([extent(v).key for v in loops] for loops in (stage.iters, stage.reduce))
        return (*lengths, {node.source for node in reads(stage)})

    wanted = expr.stages[number]
    if wanted.monoid is None:
        return []
    others = (n for n, stage in enumerate(expr.stages) if stage.monoid is not None and n != number)
    return [n for n in others if form(expr.stages[n]) == form(wanted)]


def _first_total(expr: Expr) -> int:
    """The first reduction that a later stage reads, else the first stage."""
    read_later = {s.stage for stage in expr.stages for _, s in reads_of_stages(*stage.body)}
    return next((n for n in sorted(read_later) if expr.stages[n].monoid is not None), 0)


def _piece(expr: Expr, operands: Sequence[Value], results: tuple[Value, ...]) -> SplitKernel:
    kept, used = drop_unused(expr)
    return SplitKernel(canonical(kept), tuple(operands[n] for n in used), results)


def _reading(expr: Expr, known: Sequence[StageRef]) -> Expr:
    """`expr` with results of stages as its last operands."""
    places = {ref: len(expr.params) + n for n, ref in enumerate(known)}

    def moved(source: Source) -> Source:
        return places.get(source, source) if isinstance(source, StageRef) else source

    params = (*expr.params, *(expr.stages[ref.stage].types[ref.component] for ref in known))
    return Expr(params, tuple(with_sources(s, moved) for s in expr.stages), expr.outputs)
