"""Finds the terms of a streaming loop that may change an accumulator.

A mask replaces all other terms by the identity of the reduction's monoid: 0 for sum, minus infinity
for max.

    s[i, j] = select(j <= i + off, x[i, j], -inf) ;  m[i] = max(j) s ;  l[i] = sum(j) exp(s - m)
      rows i of a tile: b .. b + 63      ->      j < b + 63 + off + 1

It is derived from a term's formula that the term is the identity where a comparison of indices is
false (or true). The derivation takes 0 * x for 0, and -inf + x for -inf, for every x. So if masked
elements hold NaN or infinities, a streaming loop that skips them does not propagate them.

Exporters also mask with the lowest number of the type instead of minus infinity. If a row has a
score, its exponential of the lowest number is 0, and the lowest number is never its maximum. So
the lowest number counts as minus infinity if every row has a score. This is proved if only
comparisons of indices mask scores, and if they never hide a whole row.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import Any, TypeAlias

import numpy as np
from tcc.frozen import entity, frozen
from tcc.ir.expr import extent
from tcc.ir.expr.comparisons import held_where
from tcc.ir.expr.scalar import Apply, Cast, Const, Read, Scalar, StageRef, children, walk
from tcc.ir.index import (
    Atom,
    Index,
    Quotient,
    Var,
    as_int,
    ceildiv,
    const,
    evaluate,
    free_vars,
    iterator,
    minimum,
    of_atom,
    step_in,
)
from tcc.ir.index.prove import at_most
from tcc.ir.op import Array
from tcc.ir.tile.group import StreamLoop, TileGroup
from tcc.schedule.nest import trips, typical_value
from tcc.zipped import zip_equal

# The smallest and the largest value that an index has in a tile.
Ends: TypeAlias = tuple[Index, Index]


@frozen
class TermLimit:
    """A condition that terms must meet to change an accumulator: `step * loop + offset` >= 0, where
    `loop` is the streaming loop."""

    step: int
    offset: Index


@lru_cache(1 << 10)  # cached by identity, because each schedule asks again
def limits_of(group: TileGroup) -> tuple[TermLimit, ...]:
    """Returns the conditions that a term of the streaming loop must meet to change an accumulator.

    The result is empty for a group without a streaming loop or without masks.
    """
    stream = group.stream
    if stream is None:
        return ()
    return tuple(dict.fromkeys(TermLimit(c.step, c.offset) for c in _conditions(group, stream)))


def needed(
    limits: Sequence[TermLimit], tile_ends: Mapping[Var, Ends]
) -> tuple[list[Index], list[Index]]:
    """Returns (firsts, stops), bounds of the terms that a tile needs along the streaming loop.

    The tile needs no term before any of `firsts`, and none from any of `stops` on. `tile_ends` has
    the smallest and the largest value of each loop around the streaming loop.
    """
    firsts, stops = [], []
    for limit in limits:
        ends = _ends_of(limit.offset, tile_ends)
        if ends is not None and limit.step < 0:
            stops.append(ends[1] // -limit.step + 1)
        elif ends is not None:
            firsts.append(ceildiv(-ends[1], limit.step))
    return firsts, stops


def moves_with(group: TileGroup, loop: Var) -> bool:
    """Returns True if the first and the last term that a tile needs move with `loop`, as those of a
    window or of a part of the streaming loop do."""
    limits = limits_of(group)
    return {c.step > 0 for c in limits if loop in free_vars(c.offset)} == {True, False}


@lru_cache(1 << 12)
def covered(group: TileGroup, tile_sizes: tuple[tuple[Var, int], ...], block: int) -> Array:
    """Returns the fraction of the streaming loop that each tile computes if it skips masked blocks.

    A block has `block` elements. `tile_sizes` has pairs of a loop and the elements of a tile along
    it; the array has an axis for each pair. Symbolic sizes count as typical.
    """
    limits, stream = limits_of(group), group.stream
    assert stream is not None
    values: dict[str, Any] = {}
    tile_ends: dict[Var, Ends] = {v: (const(0), const(trips(v) - 1)) for v in group.common}
    counts = [ceil(trips(v) / n) for v, n in tile_sizes]
    for (var, size), numbers in zip_equal(tile_sizes, np.ix_(*map(np.arange, counts))):
        tile_ends[var] = block_ends(var, size, trips(var))
        values[var.name] = numbers
    firsts, stops = needed(limits, tile_ends)
    values |= {v.name: typical_value(v) for v in symbols_in(firsts, stops)}
    size = max(1, trips(stream.loop))
    start, stop = 0, size
    for first in firsts:
        start = np.maximum(start, evaluate(first, values) // block * block)
    for end in stops:
        stop = np.minimum(stop, -(evaluate(end, values) // -block) * block)
    fractions: Array = np.maximum(stop - start, 0) / size
    return np.broadcast_to(fractions, counts)


def block_ends(loop: Var, size: int, count: int) -> Ends:
    """Returns the ends of a block of `size` of the `count` iterations of a loop, as formulas of the
    block's number, which has the loop's name."""
    first = iterator(loop.name, ceildiv(count, size)) * size
    return first, minimum(first + size, count) - 1


def symbols_in(*indices: Sequence[Index]) -> Iterator[Var]:
    """Yields the symbols of `indices`."""
    return (v for part in indices for i in part for v in free_vars(i) if v.extent is None)


def _ends_of(index: Index, tile_ends: Mapping[Var, Ends]) -> Ends | None:
    """Returns the smallest and the largest value of an index in a tile; None if they are
    unknown."""
    low = high = const(index.const)
    for monomial, coeff in index.terms:
        ends = [_ends_of_atom(atom, tile_ends) for atom in monomial]
        if ends[0] is None or (len(ends) > 1 and any(e is None or e[0] is not e[1] for e in ends)):
            return None
        first, last = ends[0]
        for other in monomial[1:]:
            first, last = first * of_atom(other), last * of_atom(other)
        low = low + coeff * (first if coeff > 0 else last)
        high = high + coeff * (last if coeff > 0 else first)
    return low, high


def _ends_of_atom(atom: Atom, tile_ends: Mapping[Var, Ends]) -> Ends | None:
    if isinstance(atom, Var) and atom.extent is not None:
        return tile_ends.get(atom)
    if isinstance(atom, Quotient) and as_int(atom.den) is not None:
        ends = _ends_of(atom.num, tile_ends)
        return None if ends is None else (ends[0] // atom.den, ends[1] // atom.den)
    index = of_atom(atom)
    return None if any(v.extent is not None for v in free_vars(index)) else (index, index)


# ---- facts about scalars
# --------------------------------------------------------------------------


class _Fact(Enum):
    """A fact that is proved about a scalar at every point of the loops."""

    NOTHING = "nothing"
    ZERO = "zero"
    LOW = "-inf"
    LOWEST = "lower than all but -inf"
    HIGH = "inf"
    TRUE = "true"
    FALSE = "false"


_IDENTITIES = {
    "sum": (_Fact.ZERO,),
    "max": (_Fact.LOW, _Fact.LOWEST),
    "min": (_Fact.HIGH,),
}
# Literals up to this number count as lower than any score.
_LOWEST = -1e30
_NEGATED = {
    _Fact.ZERO: _Fact.ZERO,
    _Fact.LOW: _Fact.HIGH,
    _Fact.HIGH: _Fact.LOW,
    _Fact.TRUE: _Fact.FALSE,
    _Fact.FALSE: _Fact.TRUE,
}


# ---- conditions without which a term is the identity ---------------------------------------------


@frozen
class _Condition:
    """A condition for a term to change an accumulator: `step * loop + offset` >= 0.

    It was derived from the comparison `test`, which has the value `outcome` where the condition
    holds. `lowest`: the derivation took the lowest number of a type for minus infinity, so every
    row must have a score.
    """

    test: Scalar
    outcome: _Fact
    step: int
    offset: Index
    lowest: bool


def _conditions(group: TileGroup, stream: StreamLoop) -> list[_Condition]:
    """Returns the conditions that a term must meet to change an accumulator."""
    if any(group.stages[n].monoid not in _IDENTITIES for n in group.accumulators):
        return []
    bodies = [s for n in stream.stages for s in group.stages[n].body]
    conditions = [
        condition
        for test in walk(*bodies)
        for holds in (True, False)
        for index in held_where(test, holds)
        if (condition := _condition(group, stream, test, holds, index)) is not None
    ]
    if any(c.lowest for c in conditions) and not _leave_scores(group, stream, conditions):
        return [c for c in conditions if not c.lowest]
    return conditions


def _condition(
    group: TileGroup,
    stream: StreamLoop,
    test: Scalar,
    holds: bool,
    within: Index,
) -> _Condition | None:
    """Returns `within` >= 0 as a condition that a term must meet to change an accumulator; None if
    terms that do not meet it may change one.

    `within` >= 0 wherever `test` has the value `holds`. So it is such a condition if all terms are
    the identity wherever `test` has the other value. It must be linear in the streaming loop.
    """
    outcome = _Fact.TRUE if holds else _Fact.FALSE
    linear = step_in(within, stream.loop)
    tile_loops = {*group.common, stream.loop}
    varies_inside = any(v.extent is not None and v not in tile_loops for v in free_vars(within))
    if linear is None or not linear[0] or varies_inside:
        return None
    assumed = _Assumed(group, stream, {test: _NEGATED[outcome]})
    if not all(assumed.is_identity(n) for n in group.accumulators):
        return None
    lowest = _Fact.LOWEST in assumed.values.values()
    return _Condition(test, outcome, *linear, lowest)


def _leave_scores(
    group: TileGroup,
    stream: StreamLoop,
    conditions: Sequence[_Condition],
) -> bool:
    """Returns True if each row has a term that meets all `conditions` and is a score."""
    first = [const(0), *(ceildiv(-c.offset, c.step) for c in conditions if c.step > 0)]
    last = [extent(stream.loop) - 1, *(c.offset // -c.step for c in conditions if c.step < 0)]
    if not all(at_most(a, b) for a in first for b in last if (a, b) != (first[0], last[0])):
        return False
    assumed = _Assumed(group, stream, {c.test: c.outcome for c in conditions})
    maxima = [n for n in group.accumulators if group.stages[n].monoid == "max"]
    return all(assumed.is_score(s) for n in maxima for s in group.stages[n].body)


# ---- scalars under assumed comparisons ----------------------------------------------------------


@entity
class _Assumed:
    """Derives facts about scalars from assumptions, such as "this comparison is false".

    `values` maps scalars to facts: the assumptions, and the facts that were derived before.
    """

    group: TileGroup
    stream: StreamLoop
    values: dict[Scalar, _Fact]

    def is_identity(self, number: int) -> bool:
        """Returns True if every term of the reduction `number` is the identity of its monoid."""
        stage = self.group.stages[number]
        identities = _IDENTITIES[stage.monoid or ""]
        return all(self.value(s) in identities for s in stage.body)

    def is_score(self, root: Scalar) -> bool:
        """Returns True if `root` is a score: computed only from numbers, not from masked values.

        The numbers are literals, constants of one element, and results of reductions.
        """
        self.value(root)
        match root:
            case Apply(function="select"):
                outcome = self.values[root.args[0]]
                branch = {_Fact.TRUE: root.args[1:2], _Fact.FALSE: root.args[2:]}.get(outcome)
                return branch is not None and self.is_score(branch[0])
            case Read(source=StageRef() as source):
                stage = self.group.stages[source.stage]
                inner = stage.body[source.component]
                return stage.monoid is not None or self.is_score(inner)
            case Read(source=int() as number) if not root.indirect:
                buffer = self.group.buffers[number]
                return buffer.constant and as_int(buffer.size) == 1
            case Const():
                return _literal(root) in (_Fact.NOTHING, _Fact.ZERO)
            case Apply() | Cast():
                return all(map(self.is_score, children(root)))
            case _:
                return False

    def value(self, root: Scalar) -> _Fact:
        """Returns what is proved about `root`."""
        for node in walk(root):
            if node not in self.values:
                self.values[node] = self._derived(node)
        return self.values[root]

    def _derived(self, node: Scalar) -> _Fact:
        match node:
            case Const():
                return _literal(node)
            case Read(source=StageRef() as source):
                stage = self.group.stages[source.stage]
                if source.stage in self.stream.stages and stage.monoid is None:
                    return self.value(stage.body[source.component])
                return _Fact.NOTHING
            case Cast():
                return self.values[node.arg]
            case Apply():
                return _applied(node, [self.values[a] for a in node.args])
            case _:
                return _Fact.NOTHING


def _literal(node: Const) -> _Fact:
    if isinstance(node.value, bool):
        return _Fact.TRUE if node.value else _Fact.FALSE
    if node.value == 0:
        return _Fact.ZERO
    if node.value in (float("inf"), float("-inf")):
        return _Fact.HIGH if node.value > 0 else _Fact.LOW
    return _Fact.LOWEST if node.value <= _LOWEST else _Fact.NOTHING


def _applied(node: Apply, args: Sequence[_Fact]) -> _Fact:
    """Returns what follows about the result of a function from `args`, the facts about its
    arguments.

    Scalars of which nothing is proved are taken to be neither NaN nor infinite.
    """
    match node.function:
        case "select":
            return _selected(*args)
        case "max" | "min":
            return args[0] if args[0] is args[1] else _Fact.NOTHING
        case "exp":
            low = args[0] in (_Fact.LOW, _Fact.LOWEST)
            return _Fact.ZERO if low else _Fact.NOTHING
        case "mul" | "div":
            return _product(node, *args)
        case "add":
            return _sum(*args)
        case "sub":
            return _sum(args[0], _NEGATED.get(args[1], _Fact.NOTHING))
        case "neg" | "not":
            return _NEGATED.get(args[0], _Fact.NOTHING)
        case "is_nan":
            return _Fact.NOTHING if args[0] is _Fact.NOTHING else _Fact.FALSE
        case "and":
            return _decided(_Fact.FALSE, *args)
        case "or":
            return _decided(_Fact.TRUE, *args)
        case _:
            return _Fact.NOTHING


def _selected(test: _Fact, yes: _Fact, no: _Fact) -> _Fact:
    if test in (_Fact.TRUE, _Fact.FALSE):
        return yes if test is _Fact.TRUE else no
    return yes if yes is no else _Fact.NOTHING


def _decided(deciding: _Fact, a: _Fact, b: _Fact) -> _Fact:
    """Returns the fact about `and` or `or`, whose result is `deciding` if either argument is."""
    if deciding in (a, b):
        return deciding
    return a if a is b else _Fact.NOTHING


def _product(node: Apply, a: _Fact, b: _Fact) -> _Fact:
    """Returns the fact about a product or quotient.

    Zero times a number is ZERO. An infinity times a literal is an infinity with the product's sign.
    """
    if a is _Fact.ZERO and b is _Fact.NOTHING:
        return _Fact.ZERO
    if node.function == "div":
        return _Fact.NOTHING
    if b is _Fact.ZERO and a in (_Fact.NOTHING, _Fact.ZERO):
        return _Fact.ZERO
    value, factor = (a, node.args[1]) if b is _Fact.NOTHING else (b, node.args[0])
    if not isinstance(factor, Const) or not factor.value or value not in (_Fact.LOW, _Fact.HIGH):
        return _Fact.NOTHING
    return value if factor.value > 0 else _NEGATED[value]


def _sum(a: _Fact, b: _Fact) -> _Fact:
    if a is b:
        return a
    if _Fact.ZERO in (a, b) and _Fact.NOTHING in (a, b):
        return _Fact.NOTHING
    extremes = [x for x in (a, b) if x in (_Fact.LOW, _Fact.LOWEST, _Fact.HIGH)]
    return extremes[0] if len(extremes) == 1 else _Fact.NOTHING
