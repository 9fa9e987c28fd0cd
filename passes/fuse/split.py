"""Cuts an expression whose stages would hold too much between them into several kernels.

    m[i] = max(k) x[i, k] ; l = sum(i, k) f(x[i, k], m[i])   with i open
      ->  kernel { m } , kernel { l } that reads m

So is one whose stages share no loop, though they have work for several threads (`partial.py`).
What stages exchange away from the point that was just computed lies in a unit's scratch memory,
which is of known size and small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from tcc.ir.expr import Expr, with_sources
from tcc.ir.expr.scalar import Source, StageRef, reads_of_stages
from tcc.ir.graph import Value
from tcc.passes.fuse.compose import canonical, drop_unused
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.split_reductions import alone, in_parts
from tcc.schedule.backend import Divides
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits


@dataclass(frozen=True, slots=True, eq=False)
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
        (p,) if cut is None else _cut(replace(p, expr=cut[0]), cut[1], names) for p, cut in found
    )
    return tuple(piece for half in halves for piece in half)


def _split(
    whole: SplitKernel,
    names: Iterator[str],
    lowers: Callable[[Expr], bool] | None,
    limits: FusionLimits,
) -> tuple[SplitKernel, ...]:
    expr = whole.expr
    number = too_large(expr, limits)
    number = alone(expr, limits) if number is None else number
    if number is None and lowers is not None and len(expr.stages) > 1 and not lowers(expr):
        number = _first_total(expr)
    if number is None:
        return (whole,)
    halves = (_split(p, names, lowers, limits) for p in _cut(whole, number, names))
    return tuple(piece for half in halves for piece in half)


def _cut(whole: SplitKernel, number: int, names: Iterator[str]) -> tuple[SplitKernel, SplitKernel]:
    """`whole` as the kernel of what stage `number` needs and the kernel of the rest."""
    expr, results = whole.expr, whole.results
    stage = expr.stages[number]
    own = [n for n, out in enumerate(expr.outputs) if out.stage == number]
    stored = {expr.outputs[n].component: results[n] for n in own}
    fresh = {
        component: Value(next(names), type)
        for component, type in enumerate(stage.types)
        if component not in stored
    }
    refs = (*(expr.outputs[n] for n in own), *(StageRef(number, c) for c in fresh))
    values = (*(results[n] for n in own), *fresh.values())
    rest = [n for n in range(len(results)) if n not in own]
    first = _piece(replace(expr, outputs=refs), whole.operands, values)
    held = [{**stored, **fresh}[c] for c in range(len(stage.body))]
    second = _piece(
        replace(_reading(expr, number), outputs=tuple(expr.outputs[n] for n in rest)),
        (*whole.operands, *held),
        tuple(results[n] for n in rest),
    )
    return first, second


def _first_total(expr: Expr) -> int:
    """The first reduction that a later stage reads, else the first stage."""
    read_later = {s.stage for stage in expr.stages for _, s in reads_of_stages(*stage.body)}
    return next((n for n in sorted(read_later) if expr.stages[n].monoid is not None), 0)


def _piece(expr: Expr, operands: Sequence[Value], results: tuple[Value, ...]) -> SplitKernel:
    kept, used = drop_unused(expr)
    return SplitKernel(canonical(kept), tuple(operands[n] for n in used), results)


def _reading(expr: Expr, number: int) -> Expr:
    """`expr` with the results of one stage as its last operands."""
    first = len(expr.params)

    def moved(source: Source) -> Source:
        if not isinstance(source, StageRef) or source.stage != number:
            return source
        return first + source.component

    params = (*expr.params, *expr.stages[number].types)
    return Expr(params, tuple(with_sources(s, moved) for s in expr.stages), expr.outputs)
