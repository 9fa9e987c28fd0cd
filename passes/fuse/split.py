"""Splits an expression into several kernels, where its stages exchange too much for a tile.

    m[i] = max(k) x[i, k] ; l = sum(i, k) f(x[i, k], m[i])   with symbolic i
      ->  kernel { m } , kernel { l } that reads m

Stages exchange values through a tile's scratch, unless a value is read only at the point that
computes it.  Scratch is small and has static size; an expression that needs more is split.  An
expression whose stages share no loop, which a single thread would run, is split if several threads
then take less time (`split_reductions.py`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tcc.frozen import entity
from tcc.ir.expr import Expr, Stage, extent, reads, with_sources
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import Source, StageRef, reads_of_stages
from tcc.ir.graph import Value, Values
from tcc.passes.choose.content import site
from tcc.passes.fuse.chain_parts import chain_parts
from tcc.passes.fuse.compose import drop_unused
from tcc.passes.fuse.online_reductions import above
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.split_reductions import in_parts, shares_no_loop
from tcc.schedule.alternatives import NO_TIME, SILENT, Alternative, Ledger, Seconds
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits


@entity
class Kernel:
    """A group's expression with the values that it reads and stores.

    A kernel with a `condition`, a value of one bool, runs only if that is true.  It may overwrite
    values that another kernel has stored.
    """

    expr: Expr
    operands: Values
    results: Values
    loc: str = ""
    condition: Value | None = None


def split(
    kernel: Kernel,
    lowers: Callable[[Expr], bool] | None = None,
    limits: FusionLimits = TYPICAL_LIMITS,
    seconds: Callable[[Expr], Seconds] | None = None,
    ledger: Ledger = SILENT,
) -> tuple[Kernel, ...]:
    """Returns `kernel` as kernels in the order in which they run; values between them are new.

    `lowers` returns False for an expression that the target cannot lower; an expression of several
    stages is then split after a reduction.  `seconds` returns the price of a kernel.  If `seconds`
    is given, reductions are computed in parts, and stages that share no loop are split, if that
    costs less.  Cores also compute chained reductions in parts, if that costs less.
    """
    expr, base = kernel.expr, kernel.results[0].name if kernel.results else ""
    names = (f"{base}.held{n}" for n in count())
    split = _Split(names, lowers, limits, seconds, ledger)
    forms: dict[str, tuple[Kernel, ...]] = {"one-sum": (kernel,)}
    if seconds is not None:
        for number, form in enumerate(in_parts(expr), 1):
            forms[f"in-parts-{number}"] = (replace(kernel, expr=form),)
    if seconds is not None and lowers is None:
        for parts in chain_parts(expr):
            divided = replace(kernel, expr=parts.expr)
            forms[f"parts-of-{parts.size}"] = cut_behind(divided, parts.partial, names)
    if len(forms) == 1:
        return split.pieces(kernel)
    with ledger.trial():
        rule, *alternatives = (split.priced(form, name) for name, form in forms.items())
    choice = ledger.decide(lambda: site("parts", expr), rule, alternatives, place=base)
    if ledger.listens:
        for piece in forms[choice.name]:
            split.pieces(piece)
    return choice.replacement


@entity
class _Split:
    """Splits kernels; `names` yields the names of new values between them."""

    names: Iterator[str]
    lowers: Callable[[Expr], bool] | None
    limits: FusionLimits
    seconds: Callable[[Expr], Seconds] | None
    ledger: Ledger

    def priced(self, kernels: Sequence[Kernel], name: str) -> Alternative[tuple[Kernel, ...]]:
        """Splits kernels, and returns their pieces and the price of these as an alternative called
        `name`."""
        pieces = tuple(piece for kernel in kernels for piece in self.pieces(kernel))
        return Alternative(pieces, self.total_seconds(pieces), name=name)

    def pieces(self, kernel: Kernel) -> tuple[Kernel, ...]:
        number = self._split_point(kernel)
        if number is None:
            return (kernel,)
        first, second = self._halves(kernel, number)
        if self._split_point(first) is not None:
            first, second = cut_behind(kernel, (number,), self.names)
        return (*self.pieces(first), *self.pieces(second))

    def total_seconds(self, pieces: Sequence[Kernel]) -> Seconds:
        """Returns the sum of the prices of kernels."""
        assert self.seconds is not None
        return sum((self.seconds(p.expr) for p in pieces), NO_TIME)

    def _halves(self, kernel: Kernel, number: int) -> tuple[Kernel, Kernel]:
        return cut_behind(kernel, (number, *_sharing_sources(kernel.expr, number)), self.names)

    def _split_point(self, kernel: Kernel) -> int | None:
        """Returns the number of the stage after which to split a kernel; None if it shall not be
        split."""
        expr = kernel.expr
        number = too_large(expr, self.limits)
        if number is None and self.lowers is not None and len(expr.stages) > 1:
            number = None if self.lowers(expr) else _first_reduction(expr)
        if number is not None or self.seconds is None or not shares_no_loop(expr, self.limits):
            return number
        halves = ((n, self._halves(kernel, n)) for n in range(len(expr.stages) - 1))
        cuts: list[Alternative[int | None]] = [
            Alternative(n, self.total_seconds(pair), name=f"behind-{n}")
            for n, pair in halves
            if pair[1].results
        ]
        if not cuts:
            return None
        whole: Alternative[int | None] = Alternative(None, self.seconds(expr), name="whole")
        place = next((v.name for v in kernel.results), "")
        return self.ledger.decide(lambda: site("cut", expr), whole, cuts, place=place).replacement


def cut_behind(
    kernel: Kernel, numbers: Collection[int], names: Iterator[str]
) -> tuple[Kernel, Kernel]:
    """Returns two kernels that together compute the results of `kernel`.

    The first kernel computes and stores the stages `numbers` and all results on which these stages
    depend.  The second kernel computes the remaining results from them.  `names` yields names for
    the values between the two kernels.
    """
    expr, results = kernel.expr, kernel.results
    first_stages = sorted({*numbers, *(above(expr, numbers) & {out.stage for out in expr.outputs})})
    first_results = [n for n, out in enumerate(expr.outputs) if out.stage in first_stages]
    stored_results = {expr.outputs[n]: results[n] for n in first_results}
    new_values = {
        StageRef(n, c): Value(next(names), type)
        for n in first_stages
        for c, type in enumerate(expr.stages[n].types)
        if StageRef(n, c) not in stored_results
    }
    refs = (*(expr.outputs[n] for n in first_results), *new_values)
    values = (*(results[n] for n in first_results), *new_values.values())
    second_results = [n for n in range(len(results)) if n not in first_results]
    first = _piece(kernel, replace(expr, outputs=refs), kernel.operands, values)
    exchanged = {**stored_results, **new_values}
    second = _piece(
        kernel,
        reading(expr, tuple(exchanged), tuple(expr.outputs[n] for n in second_results)),
        (*kernel.operands, *exchanged.values()),
        tuple(results[n] for n in second_results),
    )
    return first, second


def _sharing_sources(expr: Expr, number: int) -> list[int]:
    """Returns the other reductions with the same sources and loop lengths as stage `number`.

    A kernel that computes all these reductions reads the sources once.
    """

    def form(stage: Stage) -> tuple[Any, ...]:
        lengths = ([extent(v).key for v in loops] for loops in (stage.iters, stage.reduce))
        return (*lengths, {node.source for node in reads(stage)})

    chosen_stage = expr.stages[number]
    if chosen_stage.monoid is None:
        return []
    reductions = (
        n for n, stage in enumerate(expr.stages) if stage.monoid is not None and n != number
    )
    return [n for n in reductions if form(expr.stages[n]) == form(chosen_stage)]


def _first_reduction(expr: Expr) -> int:
    """Returns the number of the stage after which an expression is split: the first reduction that
    a later stage reads, or stage 0 if there is none."""
    read_later = {s.stage for stage in expr.stages for _, s in reads_of_stages(*stage.body)}
    return next((n for n in sorted(read_later) if expr.stages[n].monoid is not None), 0)


def _piece(kernel: Kernel, expr: Expr, operands: Sequence[Value], results: Values) -> Kernel:
    simple, operand_numbers = drop_unused(expr)
    read_operands = tuple(operands[n] for n in operand_numbers)
    return replace(kernel, expr=canonical(simple), operands=read_operands, results=results)


def reading(expr: Expr, refs: Sequence[StageRef], outputs: tuple[StageRef, ...]) -> Expr:
    """Returns `expr` with the results `outputs`, and with an additional operand for each of the
    stage results `refs`; stages read the operand instead of the result."""
    places = {ref: len(expr.params) + n for n, ref in enumerate(refs)}

    def as_operand(source: Source) -> Source:
        return places.get(source, source) if isinstance(source, StageRef) else source

    params = (*expr.params, *(expr.stages[ref.stage].types[ref.component] for ref in refs))
    return Expr(params, tuple(with_sources(s, as_operand) for s in expr.stages), outputs)
