"""Cuts an expression whose stages would hold too much between them into several kernels.

    m[i] = max(k) x[i, k] ; l = sum(i, k) f(x[i, k], m[i])   with i open
      ->  kernel { m } , kernel { l } that reads m

So is one whose stages share no loop, where several threads then take less (`split_reductions.py`).
What stages exchange away from the point that was just computed lies in a unit's scratch memory,
which is of known size and small.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tcc.ir.expr import Expr, Stage, extent, reads, with_sources
from tcc.ir.expr.scalar import Source, StageRef, reads_of_stages
from tcc.ir.graph import Value, Values
from tcc.passes.fuse.compose import canonical, drop_unused
from tcc.passes.fuse.online_reductions import above
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.split_reductions import in_parts, shares_no_loop
from tcc.record import entity
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits


@entity
class SplitKernel:
    """One kernel's expression, with the values it reads and stores."""

    expr: Expr
    operands: Values
    results: Values


def split(
    expr: Expr,
    operands: Values,
    results: Values,
    lowers: Callable[[Expr], bool] | None = None,
    limits: FusionLimits = TYPICAL_LIMITS,
    seconds: Callable[[Expr], float] | None = None,
) -> tuple[SplitKernel, ...]:
    """`expr` as kernels in the order in which they run; values between them are new.

    `lowers` may ask for more cuts: an expression of several stages that it denies is cut behind
    its reductions.  With the price of a kernel in `seconds`, reductions are taken in parts, and
    stages that share no loop are cut, where that costs less.
    """
    base = results[0].name if results else ""
    names = (f"{base}.held{n}" for n in count())
    whole = SplitKernel(expr, operands, results)
    split = _Split(names, lowers, limits, seconds)
    pieces = split.pieces(whole)
    for form in in_parts(expr) if seconds is not None else ():
        pieces = min(pieces, split.pieces(replace(whole, expr=form)), key=split.total)
    return pieces


@entity
class _Split:
    """How kernels are cut, and the names of values between them."""

    names: Iterator[str]
    lowers: Callable[[Expr], bool] | None
    limits: FusionLimits
    seconds: Callable[[Expr], float] | None

    def pieces(self, whole: SplitKernel) -> tuple[SplitKernel, ...]:
        number = self._where(whole)
        if number is None:
            return (whole,)
        first, rest = self._cut(whole, number)
        if self._where(first) is not None:
            first, rest = cut_behind(whole, (number,), self.names)
        return (*self.pieces(first), *self.pieces(rest))

    def total(self, pieces: Sequence[SplitKernel]) -> float:
        """Seconds of kernels, one after the other."""
        assert self.seconds is not None
        return sum(self.seconds(p.expr) for p in pieces)

    def _cut(self, whole: SplitKernel, number: int) -> tuple[SplitKernel, SplitKernel]:
        return cut_behind(whole, (number, *_beside(whole.expr, number)), self.names)

    def _where(self, whole: SplitKernel) -> int | None:
        """The stage behind which to cut; None for what one kernel can be, and had better be."""
        expr = whole.expr
        number = too_large(expr, self.limits)
        if number is None and self.lowers is not None and len(expr.stages) > 1:
            number = None if self.lowers(expr) else _first_total(expr)
        if number is not None or self.seconds is None or not shares_no_loop(expr, self.limits):
            return number
        halves = ((n, self._cut(whole, n)) for n in range(len(expr.stages) - 1))
        prices = {n: self.total(cut) for n, cut in halves if cut[1].results}
        best = min(prices, key=prices.__getitem__, default=None)
        return None if best is None or prices[best] >= self.seconds(expr) else best


def cut_behind(
    whole: SplitKernel, numbers: Collection[int], names: Iterator[str]
) -> tuple[SplitKernel, SplitKernel]:
    """Returns two kernels: the first computes the stages `numbers` and what they need, and stores
    all results that it computes; the second computes the other results from what the first stores.

    `names` gives the names of values between the two.
    """
    expr, results = whole.expr, whole.results
    cut = sorted({*numbers, *(above(expr, numbers) & {out.stage for out in expr.outputs})})
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


def _piece(expr: Expr, operands: Sequence[Value], results: Values) -> SplitKernel:
    kept, used = drop_unused(expr)
    return SplitKernel(canonical(kept), tuple(operands[n] for n in used), results)


def _reading(expr: Expr, known: Sequence[StageRef]) -> Expr:
    """`expr` with results of stages as its last operands."""
    places = {ref: len(expr.params) + n for n, ref in enumerate(known)}

    def moved(source: Source) -> Source:
        return places.get(source, source) if isinstance(source, StageRef) else source

    params = (*expr.params, *(expr.stages[ref.stage].types[ref.component] for ref in known))
    return Expr(params, tuple(with_sources(s, moved) for s in expr.stages), expr.outputs)
