"""Cuts an expression in two where a unit cannot hold what passes between its stages.

    s[i] = sum(k) x[i, k]                          s[i] = sum(k) x[i, k]            (stored)
    y    = sum(i) exp(s[i])   with i < n    ->     y    = sum(i) exp(s[i])

Requires a composed expression.  Establishes that `build_group` accepts every part: scratch has a
static size, so what is as long as an open size is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from tcc.ir.expr import Expr
from tcc.ir.graph import Value
from tcc.ir.scalar import Read, Scalar, StageRef, read, transform
from tcc.passes.fuse.compose import canonical, drop_unused
from tcc.passes.fuse.structure import unheld_stage


@dataclass(frozen=True, slots=True)
class Part:
    """An expression with the values it reads and computes."""

    expr: Expr
    operands: tuple[Value, ...]
    results: tuple[Value, ...]


def cut(whole: Part) -> tuple[Part, ...]:
    """The parts of `whole` in the order in which they can run; itself where nothing need be cut."""
    base = whole.results[0].name
    return _cut(whole, (f"{base}.part{n}" for n in count()))


def _cut(whole: Part, names: Iterator[str]) -> tuple[Part, ...]:
    number = unheld_stage(whole.expr)
    if number is None:
        return (whole,)
    stored = _stored(whole, number, names)
    refs = tuple(StageRef(number, component) for component in range(len(stored)))
    first = _part(replace(whole.expr, outputs=refs), whole.operands, stored)
    return (*_cut(first, names), *_cut(_rest(whole, number, stored), names))


def _stored(whole: Part, number: int, names: Iterator[str]) -> tuple[Value, ...]:
    """A value for each component of a stage: the result that it is, or a new one."""
    known = dict(zip(reversed(whole.expr.outputs), reversed(whole.results), strict=True))
    return tuple(
        known.get(StageRef(number, c)) or Value(next(names), t)
        for c, t in enumerate(whole.expr.stages[number].types)
    )


def _rest(whole: Part, number: int, stored: tuple[Value, ...]) -> Part:
    """`whole` without what is stored already, which it reads."""
    expr, first = whole.expr, len(whole.operands)

    def leaf(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Read) or not isinstance(scalar.source, StageRef):
            return scalar
        if scalar.source.stage != number:
            return scalar
        source = first + scalar.source.component
        return read(
            source, scalar.indices, scalar.dtype, fill=scalar.fill, indirect=scalar.indirect
        )

    stages = tuple(replace(s, body=tuple(transform(b, leaf) for b in s.body)) for s in expr.stages)
    left = [(o, v) for o, v in zip(expr.outputs, whole.results, strict=True) if v not in stored]
    params = (*expr.params, *(v.type for v in stored))
    rest = Expr(params, stages, tuple(o for o, _ in left))
    return _part(rest, (*whole.operands, *stored), tuple(v for _, v in left))


def _part(expr: Expr, operands: tuple[Value, ...], results: tuple[Value, ...]) -> Part:
    cleaned, used = drop_unused(expr)
    return Part(canonical(cleaned), tuple(operands[n] for n in used), results)
