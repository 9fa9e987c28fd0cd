"""Which blocks of a streaming loop a unit needs: those of which some lane may change a total.

    s[i, j] = select(j <= i + off, x[i, j], -inf) ;  m[i] = max(j) s ;  l[i] = sum(j) exp(s - m)
      rows i of a unit: b .. b + 63      ->      the streaming loop ends at min(keys, b + 63 + off +
      1)

A total does not change where its term is the identity of its monoid.  That a term is the identity
where a comparison of indices comes out in one way is derived from its formula, in which 0 times a
number is 0, and minus infinity plus one minus infinity: where what is masked holds NaN or
infinities, a streaming loop that skips it has not seen them.

Exporters also mask by the lowest number of the type.  Beside any other score its power is 0, and
it is no maximum.  So it counts as minus infinity where every row has another score: masked by
nothing but comparisons of indices, which do not hide a whole row.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    StageRef,
    children,
    walk,
)
from tcc.ir.index import (
    Index,
    Var,
    as_int,
    bounds,
    ceildiv,
    const,
    divisor_of,
    free_vars,
    maximum,
    minimum,
    step_in,
)
from tcc.ir.index.prove import at_most
from tcc.ir.tile.group import StreamLoop, TileGroup
from tcc.ir.types import I64, element_count
from tcc.passes.tile.gpu.axes import Axis, AxisRange
from tcc.record import record


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


def needed_steps(
    group: TileGroup, found: StreamLoop, along: Axis, units: Sequence[AxisRange]
) -> tuple[Index, Index]:
    """The first step of the streaming loop that a unit needs, and the one after the last.

    `along` is the axis of the streaming loop, `units` the parts of the parallel axes that the unit
    covers. The second may be smaller than the first: then no step is needed.
    """
    start, stop = const(0), along.steps
    for each in _conditions(group, found):
        edge = _greatest(each.rest, units)
        if edge is None:
            continue
        if each.step < 0:
            stop = minimum(stop, ceildiv(edge + 1, along.block))
        else:
            start = maximum(start, -edge // along.block)
    return start, stop


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
        if (within := _comparison(test)) is not None
        for outcome, index in ((_Known.TRUE, within), (_Known.FALSE, -within - 1))
        if (each := _condition(group, found, accumulators, test, outcome, index)) is not None
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
    outcome: _Known,
    within: Index,
) -> _Condition | None:
    """That `test` is `outcome`, which it is where `within` is 0 or more, if terms need it."""
    linear = step_in(within, found.loop)
    cut = {*group.common, found.loop}
    own = any(v.extent is not None and v not in cut for v in free_vars(within))
    if linear is None or abs(linear[0]) != 1 or own:
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
    first = [const(0), *(-c.rest for c in conditions if c.step > 0)]
    last = [extent(found.loop) - 1, *(c.rest for c in conditions if c.step < 0)]
    if not all(at_most(a, b) for a in first for b in last if (a, b) != (first[0], last[0])):
        return False
    assumed = _Assumed(group, found, {c.test: c.outcome for c in conditions})
    maxima = [n for n in accumulators if group.stages[n].monoid == "max"]
    return all(assumed.is_score(s) for n in maxima for s in group.stages[n].body)


def _comparison(test: Scalar) -> Index | None:
    """The index that is 0 or more where a comparison of indices holds."""
    if not isinstance(test, Apply) or test.function not in ("lt", "le", "gt", "ge"):
        return None
    a, b = map(_index, test.args)
    if a is None or b is None:
        return None
    match test.function:
        case "lt":
            return b - a - 1
        case "le":
            return b - a
        case "gt":
            return a - b - 1
        case _:
            return a - b


def _index(scalar: Scalar) -> Index | None:
    """The index that an integer is, if it is one; types too narrow for it make none."""
    found: Index | None = None
    match scalar:
        case Const() if scalar.dtype.is_integer:
            found = const(int(scalar.value))
        case IndexValue():
            found = scalar.index
        case Cast():
            found = _index(scalar.arg)
        case Apply(function="add" | "sub" | "mul" as function, args=args):
            a, b = map(_index, args)
            if a is not None and b is not None:
                found = a + b if function == "add" else a - b if function == "sub" else a * b
        case _:
            pass
    return found if found is not None and _holds(scalar, found) else None


def _holds(scalar: Scalar, index: Index) -> bool:
    if scalar.dtype is I64:
        return True
    low, high = bounds(index)
    if low is None or high is None or not scalar.dtype.is_integer:
        return False
    most = 1 << (scalar.dtype.bits - 1)
    return -most <= low and high < most


class _Assumed:
    """What is known where a comparison comes out in one way."""

    def __init__(self, group: TileGroup, found: StreamLoop, values: dict[Scalar, _Known]) -> None:
        self.group, self.found, self.values = group, found, values

    def is_identity(self, number: int) -> bool:
        """Whether the terms of a total are the identity of its monoid."""
        stage = self.group.stages[number]
        wanted = _IDENTITIES[stage.monoid or ""]
        return all(self.value(s) in wanted for s in stage.body)

    def is_score(self, root: Scalar) -> bool:
        """Whether `root` is made of totals that are no part of the streaming loop, and of
        literals."""
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


# ---- what a unit covers --------------------------------------------------------------------------


def _greatest(index: Index, units: Sequence[AxisRange]) -> Index | None:
    """The greatest value of `index` over the lanes of a unit; None where it is not linear."""
    for var in free_vars(index):
        if var.extent is None:
            continue
        linear = step_in(index, var)
        if linear is None:
            return None
        (step, rest), (low, high) = linear, _range(var, units)
        index = rest + step * (high if step > 0 else low)
    return index


def _range(var: Var, units: Sequence[AxisRange]) -> tuple[Index, Index]:
    """The least and the greatest value of a parallel loop in a unit."""
    part = next(p for p in units if var in p.axis.loops)
    loops = part.axis.loops
    inner = element_count(tuple(map(extent, loops[loops.index(var) + 1 :])))
    if var is loops[0]:
        low, high = (x // inner for x in (part.base, part.base + part.axis.block - 1))
        return low, minimum(high, extent(var) - 1)
    low, size = part.base // inner % extent(var), as_int(inner)
    if size is None:
        return const(0), extent(var) - 1
    # A unit that goes on with the next turn of the loop covers its end, and its begin.
    high = minimum(low - (1 - part.axis.block) // size, extent(var) - 1)
    turns = divisor_of(inner * extent(var)) % part.axis.block
    return const(0) if turns else low, high
