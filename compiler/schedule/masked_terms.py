"""Which terms of reductions may change a total, where masks make the others the identity.

    s[i, j] = select(j <= i + off, x[i, j], -inf) ;  m[i] = max(j) s ;  l[i] = sum(j) exp(s - m)
      rows i of a unit: b .. b + 63      ->      j < b + 63 + off + 1

A total does not change where its term is the identity of its monoid.  That a term is the identity
where a comparison of indices comes out in one way is derived from its formula, in which 0 times a
number is 0, and minus infinity plus one minus infinity: where what is masked holds NaN or
infinities, a streaming loop that skips it has not seen them.

Exporters also mask by the lowest number of the type.  Beside any other score its power is 0, and
it is no maximum.  So it counts as minus infinity where every row has another score: masked by
nothing but comparisons of indices, which do not hide a whole row.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import Any, TypeAlias

import numpy as np
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
from tcc.record import entity, record
from tcc.schedule.nest import trips, typical_value

# The least and the greatest value of an index in a unit.
Ends: TypeAlias = tuple[Index, Index]


@record
class Limit:
    """A term may change a total only where `step * loop + rest` is 0 or more."""

    step: int
    rest: Index


@lru_cache(1 << 10)  # groups are compared by identity, and asked about for every schedule
def limits_of(group: TileGroup) -> tuple[Limit, ...]:
    """The limits of the places along the streaming loop of `group` where terms may change its
    totals; none where it has no such loop."""
    stream = group.stream
    if stream is None:
        return ()
    return tuple(dict.fromkeys(Limit(c.step, c.rest) for c in _conditions(group, stream)))


def needed(limits: Sequence[Limit], unit: Mapping[Var, Ends]) -> tuple[list[Index], list[Index]]:
    """Places along the streaming loop that the first one which a unit needs is not before, and
    places that the last one is before.  `unit` has the ends of the loops around it."""
    firsts, stops = [], []
    for limit in limits:
        ends = _ends_of(limit.rest, unit)
        if ends is not None and limit.step < 0:
            stops.append(ends[1] // -limit.step + 1)
        elif ends is not None:
            firsts.append(ceildiv(-ends[1], limit.step))
    return firsts, stops


@lru_cache(1 << 12)
def covered(group: TileGroup, units: tuple[tuple[Var, int], ...], block: int) -> Array:
    """The part of the streaming loop of `group` that each unit goes along, with an axis for each
    of the loops that are cut into `units`, where it leaves out blocks of `block` elements.

    Symbolic sizes count as typical ones.
    """
    limits, stream = limits_of(group), group.stream
    assert stream is not None
    values: dict[str, Any] = {}
    unit: dict[Var, Ends] = {v: (const(0), const(trips(v) - 1)) for v in group.common}
    for axis, (var, size) in enumerate(units):
        at = iterator(var.name, ceildiv(trips(var), size))
        unit[var] = at * size, minimum(at * size + size, trips(var)) - 1
        shape = [-1 if n == axis else 1 for n in range(len(units))]
        values[var.name] = np.arange(ceil(trips(var) / size)).reshape(shape)
    firsts, stops = needed(limits, unit)
    sizes = (v for index in (*firsts, *stops) for v in free_vars(index) if v.extent is None)
    values |= {v.name: typical_value(v) for v in sizes}
    size = max(1, trips(stream.loop))
    start, stop = np.zeros([1] * len(units)), np.full([1] * len(units), size)
    for first in firsts:
        start = np.maximum(start, evaluate(first, values) // block * block)
    for end in stops:
        stop = np.minimum(stop, -(evaluate(end, values) // -block) * block)
    found: Array = np.maximum(stop - start, 0) / size
    return np.broadcast_to(found, [ceil(trips(v) / n) for v, n in units])


def _ends_of(index: Index, unit: Mapping[Var, Ends]) -> Ends | None:
    """The ends of an index; None where they are not known."""
    low = high = const(index.const)
    for monomial, coeff in index.terms:
        ends = [_ends_of_atom(atom, unit) for atom in monomial]
        if ends[0] is None or (len(ends) > 1 and any(e is None or e[0] is not e[1] for e in ends)):
            return None
        first, last = ends[0]
        for other in monomial[1:]:
            first, last = first * of_atom(other), last * of_atom(other)
        low = low + coeff * (first if coeff > 0 else last)
        high = high + coeff * (last if coeff > 0 else first)
    return low, high


def _ends_of_atom(atom: Atom, unit: Mapping[Var, Ends]) -> Ends | None:
    if isinstance(atom, Var) and atom.extent is not None:
        return unit.get(atom)
    if isinstance(atom, Quotient) and as_int(atom.den) is not None:
        ends = _ends_of(atom.num, unit)
        return None if ends is None else (ends[0] // atom.den, ends[1] // atom.den)
    whole = of_atom(atom)
    return None if any(v.extent is not None for v in free_vars(whole)) else (whole, whole)


# ---- what is known ------------------------------------------------------------------------------


class _Known(Enum):
    """What is known of a scalar."""

    NOTHING = "nothing"
    ZERO = "zero"
    LOW = "-inf"
    LOWEST = "lower than all but -inf"
    HIGH = "inf"
    TRUE = "true"
    FALSE = "false"


_IDENTITIES = {
    "sum": (_Known.ZERO,),
    "max": (_Known.LOW, _Known.LOWEST),
    "min": (_Known.HIGH,),
}
# Numbers that are lower than any score.
_LOWEST = -1e30
_NEGATED = {
    _Known.ZERO: _Known.ZERO,
    _Known.LOW: _Known.HIGH,
    _Known.HIGH: _Known.LOW,
    _Known.TRUE: _Known.FALSE,
    _Known.FALSE: _Known.TRUE,
}


# ---- conditions without which a term is the identity ---------------------------------------------


@record
class _Condition:
    """`step * loop + rest` has to be 0 or more wherever a total changes; so it is if `test` is
    `outcome`.  `lowest`: if any row has other scores."""

    test: Scalar
    outcome: _Known
    step: int
    rest: Index
    lowest: bool


def _conditions(group: TileGroup, found: StreamLoop) -> list[_Condition]:
    accumulators = [n for n in found.stages if found.loop in group.stages[n].reduce]
    if any(group.stages[n].monoid not in _IDENTITIES for n in accumulators):
        return []
    bodies = [s for n in found.stages for s in group.stages[n].body]
    conditions = [
        each
        for test in walk(*bodies)
        for holds in (True, False)
        for index in held_where(test, holds)
        if (each := _condition(group, found, accumulators, test, holds, index)) is not None
    ]
    if any(c.lowest for c in conditions) and not _leave_scores(
        group, found, accumulators, conditions
    ):
        return [c for c in conditions if not c.lowest]
    return conditions


def _condition(
    group: TileGroup,
    found: StreamLoop,
    accumulators: Sequence[int],
    test: Scalar,
    holds: bool,
    within: Index,
) -> _Condition | None:
    """That `test` is what it is only where `within` is 0 or more, if terms need it."""
    outcome = _Known.TRUE if holds else _Known.FALSE
    linear = step_in(within, found.loop)
    cut = {*group.common, found.loop}
    own = any(v.extent is not None and v not in cut for v in free_vars(within))
    if linear is None or not linear[0] or own:
        return None
    assumed = _Assumed(group, found, {test: _NEGATED[outcome]})
    if not all(assumed.is_identity(n) for n in accumulators):
        return None
    lowest = _Known.LOWEST in assumed.values.values()
    return _Condition(test, outcome, *linear, lowest)


def _leave_scores(
    group: TileGroup,
    found: StreamLoop,
    accumulators: Sequence[int],
    conditions: Sequence[_Condition],
) -> bool:
    """Whether every row has a place along the streaming loop where all `conditions` hold, and only
    a score is there."""
    first = [const(0), *(ceildiv(-c.rest, c.step) for c in conditions if c.step > 0)]
    last = [extent(found.loop) - 1, *(c.rest // -c.step for c in conditions if c.step < 0)]
    if not all(at_most(a, b) for a in first for b in last if (a, b) != (first[0], last[0])):
        return False
    assumed = _Assumed(group, found, {c.test: c.outcome for c in conditions})
    maxima = [n for n in accumulators if group.stages[n].monoid == "max"]
    return all(assumed.is_score(s) for n in maxima for s in group.stages[n].body)


# ---- what follows from an outcome ---------------------------------------------------------------


@entity
class _Assumed:
    """What is known where a comparison comes out in one way."""

    group: TileGroup
    found: StreamLoop
    values: dict[Scalar, _Known]

    def is_identity(self, number: int) -> bool:
        """Whether the terms of a total are the identity of its monoid."""
        stage = self.group.stages[number]
        wanted = _IDENTITIES[stage.monoid or ""]
        return all(self.value(s) in wanted for s in stage.body)

    def is_score(self, root: Scalar) -> bool:
        """Whether `root` is made of totals that are no part of the streaming loop, and of
        numbers."""
        self.value(root)
        match root:
            case Apply(function="select"):
                known = self.values[root.args[0]]
                chosen = {_Known.TRUE: root.args[1:2], _Known.FALSE: root.args[2:]}.get(known)
                return chosen is not None and self.is_score(chosen[0])
            case Read(source=StageRef() as source):
                stage = self.group.stages[source.stage]
                inner = stage.body[source.component]
                return stage.monoid is not None or self.is_score(inner)
            case Read(source=int() as number) if not root.indirect:
                buffer = self.group.buffers[number]
                return buffer.constant and as_int(buffer.size) == 1
            case Const():
                return _literal(root) in (_Known.NOTHING, _Known.ZERO)
            case Apply() | Cast():
                return all(map(self.is_score, children(root)))
            case _:
                return False

    def value(self, root: Scalar) -> _Known:
        for node in walk(root):
            if node not in self.values:
                self.values[node] = self._derived(node)
        return self.values[root]

    def _derived(self, node: Scalar) -> _Known:
        match node:
            case Const():
                return _literal(node)
            case Read(source=StageRef() as source):
                stage = self.group.stages[source.stage]
                if source.stage in self.found.stages and stage.monoid is None:
                    return self.value(stage.body[source.component])
                return _Known.NOTHING
            case Cast():
                return self.values[node.arg]
            case Apply():
                return _applied(node, [self.values[a] for a in node.args])
            case _:
                return _Known.NOTHING


def _literal(node: Const) -> _Known:
    if isinstance(node.value, bool):
        return _Known.TRUE if node.value else _Known.FALSE
    if node.value == 0:
        return _Known.ZERO
    if node.value in (float("inf"), float("-inf")):
        return _Known.HIGH if node.value > 0 else _Known.LOW
    return _Known.LOWEST if node.value <= _LOWEST else _Known.NOTHING


def _applied(node: Apply, args: Sequence[_Known]) -> _Known:
    """What a function gives, where nothing that is not known is NaN or infinite."""
    match node.function:
        case "select":
            return _selected(*args)
        case "max" | "min":
            return args[0] if args[0] is args[1] else _Known.NOTHING
        case "exp":
            low = args[0] in (_Known.LOW, _Known.LOWEST)
            return _Known.ZERO if low else _Known.NOTHING
        case "mul" | "div":
            return _product(node, *args)
        case "add":
            return _sum(*args)
        case "sub":
            return _sum(args[0], _NEGATED.get(args[1], _Known.NOTHING))
        case "neg" | "not":
            return _NEGATED.get(args[0], _Known.NOTHING)
        case "is_nan":
            return _Known.NOTHING if args[0] is _Known.NOTHING else _Known.FALSE
        case "and":
            return _decided(_Known.FALSE, *args)
        case "or":
            return _decided(_Known.TRUE, *args)
        case _:
            return _Known.NOTHING


def _selected(test: _Known, yes: _Known, no: _Known) -> _Known:
    if test in (_Known.TRUE, _Known.FALSE):
        return yes if test is _Known.TRUE else no
    return yes if yes is no else _Known.NOTHING


def _decided(deciding: _Known, a: _Known, b: _Known) -> _Known:
    """What two conditions are together, of which one that is `deciding` is enough."""
    if deciding in (a, b):
        return deciding
    return a if a is b else _Known.NOTHING


def _product(node: Apply, a: _Known, b: _Known) -> _Known:
    """Zero times a number, or an infinity times a literal."""
    if a is _Known.ZERO and b is _Known.NOTHING:
        return _Known.ZERO
    if node.function == "div":
        return _Known.NOTHING
    if b is _Known.ZERO and a in (_Known.NOTHING, _Known.ZERO):
        return _Known.ZERO
    value, factor = (a, node.args[1]) if b is _Known.NOTHING else (b, node.args[0])
    if not isinstance(factor, Const) or not factor.value or value not in (_Known.LOW, _Known.HIGH):
        return _Known.NOTHING
    return value if factor.value > 0 else _NEGATED[value]


def _sum(a: _Known, b: _Known) -> _Known:
    if a is b:
        return a
    if _Known.ZERO in (a, b) and _Known.NOTHING in (a, b):
        return _Known.NOTHING
    known = [x for x in (a, b) if x in (_Known.LOW, _Known.LOWEST, _Known.HIGH)]
    return known[0] if len(known) == 1 else _Known.NOTHING
