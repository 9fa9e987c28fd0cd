"""Scatters without stores at places that data decide: each element finds the updates of its place.

    direct    y[i] = x[i] + sum(j) (place[j] == i ? update[j] : 0)
    sorted    y[i] = x[i] + the total of neighbours in the order of their places, see `segments`

The direct form compares every update with every place, so it is for few updates or few places;
where both forms are open, the cheaper one is taken.  No two tiles write to one place and sums have
a fixed order, so that results do not depend on the order of tiles.  Of several updates of one place
the last one wins.  An index outside its axis is the model's fault, and its update is dropped.
"""

from collections.abc import Callable, Sequence

from tcc.ir.expr import MONOIDS, Expr, ExprBuilder
from tcc.ir.expr.scalar import Const, Scalar, apply, cast, index_value, literal
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement
from tcc.ir.index import Index, Indices, as_int, ceildiv, const
from tcc.ir.types import BOOL, I32, I64, DType, DTypeKind, TensorType, element_count
from tcc.ops.data.sorting import MOST, first_items, items_of, steps
from tcc.ops.formula import choose, fn, widened
from tcc.ops.operands import clamped, inside, wrapped
from tcc.ops.shapes import replaced
from tcc.passes.graph.emit import emit, express
from tcc.passes.graph.legalize_calls.segments import FAN, levels, sort_items
from tcc.record import record

# The number of the cheapest of several graphs that compute the same.
Cheapest = Callable[[Sequence[Graph]], int]

_MONOIDS = {"add": ("sum", "add"), "mul": ("prod", "mul"), "max": ("max",) * 2, "min": ("min",) * 2}
# Updates or places of a line up to which all of both may be compared: a bound on work, not a price.
# An element is compared no more often than the longest bisection of the sorted form has steps.
_FEW = steps(MOST)


@record
class Scatter:
    """Updates along `axis` of `x`; each line along the axis has places of its own if `by_line`."""

    x: TensorType
    updates: TensorType
    axis: int
    by_line: bool
    reduction: str

    @property
    def rows(self) -> Index:
        return self.x.shape[self.axis]

    @property
    def count(self) -> Index:
        return self.updates.shape[self.axis]

    @property
    def others(self) -> tuple[Index, ...]:
        """The sizes of the other axes of the updates."""
        return replaced(self.updates.shape, self.axis)

    @property
    def lines(self) -> tuple[Index, ...]:
        return self.others if self.by_line else ()

    @property
    def rest(self) -> tuple[Index, ...]:
        """The axes of an update: all of these have one place."""
        return () if self.by_line else self.others

    @property
    def monoid(self) -> str:
        return _MONOIDS[self.reduction][0]

    @property
    def identity(self) -> Const:
        (value,) = MONOIDS[self.monoid].identity((self.dtype,))
        assert isinstance(value, Const)
        return value

    @property
    def dtype(self) -> DType:
        """The type to combine in: integers wrap at the end as they would at every step."""
        own = self.x.dtype
        short = own.kind in (DTypeKind.INT, DTypeKind.UINT) and own.bits < 32
        return I32 if short else widened(own)

    def line(self, others: Indices) -> Indices:
        return others if self.by_line else ()

    def at(self, others: Indices, number: Index) -> Indices:
        """Where the updates have the element `number` along the axis."""
        return (*others[: self.axis], number, *others[self.axis :])


def express_scatter_elements(
    b: GraphBuilder, node: Node, inputs: Inputs, cheapest: Cheapest
) -> Replacement:
    """Operand 0 with single elements replaced or combined; None where its type has no such
    combination."""
    x, indices, updates, *_ = inputs
    if x is None or indices is None or updates is None or _has_no_sums(x, node):
        return None
    scatter = Scatter(x.type, updates.type, node.attrs.axis, True, node.attrs.reduction)
    (places,) = express(b, _places_along(indices.type, scatter), indices)
    return [_scattered(b, scatter, x, places, updates, cheapest)]


def express_scatter_nd(
    b: GraphBuilder, node: Node, inputs: Inputs, cheapest: Cheapest
) -> Replacement:
    """Operand 0 with slices replaced or combined; None where its type has no such combination."""
    x, indices, updates, *rows_of_table = inputs
    if x is None or indices is None or updates is None or _has_no_sums(x, node):
        return None
    for chosen in rows_of_table:
        updates = emit(b, "gather", updates, chosen, axis=0)
    tuples, depth = indices.type.rank - 1, as_int(indices.type.shape[-1])
    count, sizes, rest = (
        element_count(indices.type.shape[:-1]), x.type.shape[:depth], x.type.shape[depth:],
    )  # fmt: skip
    rows = emit(b, "reshape", x, shape=(element_count(sizes), *rest))
    slices = emit(b, "reshape", updates, shape=(count, *updates.type.shape[tuples:]))
    flat = emit(b, "reshape", indices, shape=(count, const(len(sizes))))
    (places,) = express(b, _places_of_tuples(flat.type, sizes), flat)
    scatter = Scatter(rows.type, slices.type, 0, False, node.attrs.reduction)
    result = _scattered(b, scatter, rows, places, slices, cheapest)
    return [emit(b, "reshape", result, shape=x.type.shape)]


def _has_no_sums(x: Value, node: Node) -> bool:
    return x.type.dtype is BOOL and node.attrs.reduction != "none"


# ---- places ------------------------------------------------------------------------------------


def _places_along(indices: TensorType, s: Scatter) -> Expr:
    """The places in an axis that indices name, line by line; for those outside, behind the last."""
    b = ExprBuilder(indices)
    (*line, number), size = b.iters(*s.lines, s.count), s.rows
    place = wrapped(b.read(0, *s.at(tuple(line), number)), size)
    return b.finish((*line, number), choose(inside(place, size), place, size))


def _places_of_tuples(tuples: TensorType, sizes: Sequence[Index]) -> Expr:
    """The row-major places in `sizes` that tuples of indices name; behind the last one for those
    outside."""
    b = ExprBuilder(tuples)
    (number,) = b.iters(tuples.shape[0])
    place: Scalar = literal(0, I64)
    valid: Scalar = literal(True, BOOL)
    for axis, size in enumerate(sizes):
        index = wrapped(b.read(0, number, axis), size)
        place = place * size + index
        valid = valid & inside(index, size)
    return b.finish((number,), choose(valid, place, element_count(tuple(sizes))))


# ---- both forms --------------------------------------------------------------------------------


def _scattered(
    b: GraphBuilder, s: Scatter, x: Value, places: Value, updates: Value, cheapest: Cheapest
) -> Value:
    few = any((as_int(size) or _FEW + 1) <= _FEW for size in (s.rows, s.count))
    forms = (_directly, _by_order) if few else (_by_order,)
    taken = 0
    if len(forms) > 1:
        taken = cheapest([_alone(form, s, places.type) for form in forms])
    return forms[taken](b, s, x, places, updates)


def _alone(
    form: Callable[[GraphBuilder, Scatter, Value, Value, Value], Value],
    s: Scatter,
    places: TensorType,
) -> Graph:
    """A graph of one form."""
    b = GraphBuilder("scatter")
    operands = (("x", s.x), ("places", places), ("updates", s.updates))
    return b.finish([form(b, s, *(b.input(name, type_) for name, type_ in operands))])


def _directly(b: GraphBuilder, s: Scatter, x: Value, places: Value, updates: Value) -> Value:
    return express(b, _direct(s, places.type), x, places, updates)[0]


def _direct(s: Scatter, places: TensorType) -> Expr:
    b = ExprBuilder(s.x, places, s.updates)
    reduces = s.reduction != "none"
    at = b.point(s.x) if reduces or s.by_line else b.iters(s.rows)
    (number,) = b.iters(s.count)
    others = replaced(at, s.axis)
    # The updates may end before x does along other axes: no place is below zero.
    meant = apply("eq", b.read(1, *s.line(others), number, fill=-1), index_value(at[s.axis], I64))
    if reduces:
        update = cast(b.read(2, *s.at(others, number), fill=0), s.dtype)
        term = choose(meant, update, s.identity)
        total = b.stage(at, term, over=(number,), monoid=s.monoid)
        at = b.point(s.x)
        return _combined(b, s, at, b.read(total, *at))
    last = b.stage(at, choose(meant, index_value(number, I64), -1), over=(number,), monoid="max")
    at = b.point(s.x)
    return _replaced_by(b, s, at, b.read(last, *(at if s.by_line else at[:1])))


def _combined(b: ExprBuilder, s: Scatter, at: Indices, new: Scalar) -> Expr:
    """x with the total of its updates."""
    old = cast(b.read(0, *at), s.dtype)
    both: Scalar = apply(_MONOIDS[s.reduction][1], old, new)
    if s.reduction == "add":
        # minus zero plus nothing stays minus zero
        both = choose(apply("eq", new, literal(0, s.dtype)), old, both)
    return b.finish(at, cast(both, s.x.dtype))


def _replaced_by(b: ExprBuilder, s: Scatter, at: Indices, number: Scalar) -> Expr:
    """x with updates, whose numbers are negative where there is none, in its stead."""
    update = cast(_update(b, s, 2, replaced(at, s.axis), number), s.x.dtype)
    return b.finish(at, choose(number >= 0, update, b.read(0, *at)))


def _by_order(b: GraphBuilder, s: Scatter, x: Value, places: Value, updates: Value) -> Value:
    items = sort_items(b, express(b, items_of(places.type), places)[0])
    (first,) = express(b, first_items(items.type, s.rows), items)
    operands = [x, items, updates, first]
    if s.reduction != "none":
        below = [items, updates]
        for _ in range(levels(s.count)):
            below = [*express(b, _level(s, *(v.type for v in below)), *below)]
            operands += below
    expr = _last_of if s.reduction == "none" else _totals
    return express(b, expr(s, *(v.type for v in operands)), *operands)[0]


def _segment(b: ExprBuilder, s: Scatter, at: Indices) -> tuple[Scalar, Scalar]:
    """Where the items of a place begin, and where they end."""
    line, row = s.line(replaced(at, s.axis)), at[s.axis]
    return b.read(3, *line, row, fill=0), b.read(3, *line, row + 1, fill=0)


def _number(b: ExprBuilder, s: Scatter, items: int, line: Indices, place: Scalar) -> Scalar:
    """The number of the update at a place of the order."""
    at, binding = b.position(clamped(place, s.count), s.count)
    found = b.read(items, *line, at, fill=0, indirect=(binding,))
    return apply("mod", found, index_value(s.count, I64))


def _update(b: ExprBuilder, s: Scatter, updates: int, others: Indices, number: Scalar) -> Scalar:
    """The element of the update of a number, in the type to combine in."""
    at, binding = b.position(clamped(number, s.count), s.count)
    return cast(b.read(updates, *s.at(others, at), fill=0, indirect=(binding,)), s.dtype)


def _last_of(s: Scatter, *operands: TensorType) -> Expr:
    """x with the last update of each place in its stead."""
    b = ExprBuilder(*operands)
    at = b.point(s.x)
    begin, end = _segment(b, s, at)
    number = _number(b, s, 1, s.line(replaced(at, s.axis)), end - 1)
    return _replaced_by(b, s, at, choose(begin < end, number, -1))


def _level(s: Scatter, *below: TensorType) -> Expr:
    """The totals `[*lines, nodes, *rest]` of `FAN` neighbours each of a level; of the updates in
    order, which are two operands."""
    b, rank = ExprBuilder(*below), len(s.lines)
    size = below[0].shape[rank] if len(below) == 1 else s.count
    at = b.iters(*s.lines, ceildiv(size, FAN), *s.rest)
    line, rest = at[:rank], at[rank + 1 :]
    (child,) = b.iters(FAN)
    place = at[rank] * FAN + child
    if len(below) == 1:
        value: Scalar = b.read(0, *line, place, *rest, fill=s.identity.value)
    else:
        number = _number(b, s, 0, line, index_value(place, I64))
        inside_ = index_value(place, I64) < size
        value = choose(inside_, _update(b, s, 1, (*line, *rest), number), s.identity)
    return b.finish(at, value, over=(child,), monoid=s.monoid)


def _totals(s: Scatter, *operands: TensorType) -> Expr:
    """x with the totals of neighbours from each level: at both ends of the items of a place, at
    most `FAN` nodes that have no parent within; of the last level all that are within."""
    b, parts = ExprBuilder(*operands), []
    for level, nodes in enumerate((operands[1], *operands[4:])):
        at = b.point(s.x)
        others = replaced(at, s.axis)
        begin, end = _segment(b, s, at)
        for _ in range(level):
            begin = _parent(begin) + 1
            end = fn("max", _parent(end), begin)
        size = nodes.shape[len(s.lines)] if level else s.count
        top = level + 4 == len(operands)
        (number,) = b.iters(size if top else 2 * FAN)
        place, meant = _within(number, begin, end, top)
        if level:
            node, binding = b.position(clamped(place, size), size)
            where = (*s.line(others), node, *(() if s.by_line else others))
            value: Scalar = b.read(3 + level, *where, fill=0, indirect=(binding,))
        else:
            value = _update(b, s, 2, others, _number(b, s, 1, s.line(others), place))
        term = choose(meant, value, s.identity)
        parts.append(b.stage(at, term, over=(number,), monoid=s.monoid))
    at = b.point(s.x)
    total: Scalar = b.read(parts[0], *at)
    for part in parts[1:]:
        total = apply(_MONOIDS[s.reduction][1], total, b.read(part, *at))
    return _combined(b, s, at, total)


def _parent(node: Scalar) -> Scalar:
    return apply("shift_right", node, literal(FAN.bit_length() - 1, I64))


def _within(number: Index, begin: Scalar, end: Scalar, top: bool) -> tuple[Scalar, Scalar]:
    """A node of the siblings of the first and the last from `begin` to `end - 1`, or of all nodes,
    and whether it is one of these."""
    place: Scalar = index_value(number, I64)
    counts: Scalar = literal(True, BOOL)
    if not top:
        first, last, left = _parent(begin), _parent(end), place < FAN
        place = choose(left, first, last) * FAN + index_value(number % FAN, I64)
        counts = left | (first < last)
    return place, counts & (place >= begin) & (place < end)
