"""Computes scatters as expressions, in which each element finds the updates of its own place.

    direct    y[i] = x[i] + sum(j) (place[j] == i ? update[j] : 0)
    sorted    y[i] = x[i] + the total of neighbours in the order of their places, see `segments`

The place of an update is the index of the result that it changes.  The direct form compares every
update with every place, so it is for few updates or few places.  If both forms are possible, the
cheaper form is taken.  There are no stores at data-dependent places: no two tiles write to one
place.  Sums have a fixed order, so results do not depend on the order of tiles.  Without a
reduction, the last of several updates of one place wins.  An update with an index outside its axis
is an error of the model, and is dropped.
"""

from collections.abc import Callable, Sequence

from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS, Expr, ExprBuilder
from tcc.ir.expr.scalar import Const, Scalar, apply, cast, index_value, literal
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement
from tcc.ir.index import Index, Indices, as_int, ceildiv, const
from tcc.ir.types import BOOL, I32, I64, DType, TensorType, element_count
from tcc.ops.data.sorting import MOST, first_items, items_of, steps
from tcc.ops.formula import choose, fn, widened
from tcc.ops.operands import clamped, inside, wrapped
from tcc.ops.shapes import present, replaced
from tcc.passes.graph.emit import emit, express
from tcc.passes.graph.legalize_calls.segments import FAN, levels, sort_items

# Returns the index of the cheapest of several graphs that compute the same values.
Cheapest = Callable[[Sequence[Graph]], int]


def first_form(forms: Sequence[Graph]) -> int:
    """Returns 0, the index of the first form, without comparing prices."""
    return 0


_MONOIDS = {"add": ("sum", "add"), "mul": ("prod", "mul"), "max": ("max",) * 2, "min": ("min",) * 2}
# The direct form is possible for lines with at most this many updates or places. The limit bounds
# the work, whatever the prices: each element is compared at most as often as in the longest
# bisection of the sorted form.
_FEW = steps(MOST)


@frozen
class Scatter:
    """A scatter of updates along `axis` of `x`.

    `lines` are the sizes of the updates along the other axes, if each element of an update has a
    place of its own, as in scatter_elements.  Otherwise an update is a slice whose elements share a
    place, and `update_axes` are these sizes.
    """

    x: TensorType
    updates: TensorType
    axis: int
    lines: tuple[Index, ...]
    update_axes: tuple[Index, ...]
    reduction: str

    @property
    def rows(self) -> Index:
        return self.x.shape[self.axis]

    @property
    def count(self) -> Index:
        return self.updates.shape[self.axis]

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
        """The type in which values are combined.

        Short integers are combined in i32: they wrap at the end as they would at every step.
        """
        operand_type = self.x.dtype
        is_short = operand_type.is_integer and operand_type.bits < 32
        return I32 if is_short else widened(operand_type)

    def line(self, position: Indices) -> Indices:
        return position[: len(self.lines)]

    def at(self, position: Indices, number: Index) -> Indices:
        """Returns the indices of an element: `number` along the axis, `position` along all other
        axes."""
        return (*position[: self.axis], number, *position[self.axis :])


def express_scatter_elements(
    b: GraphBuilder, node: Node, inputs: Inputs, cheapest: Cheapest
) -> Replacement:
    """Returns operand 0 with single elements replaced by updates, or combined with updates.

    Returns None for a reduction of bools.
    """
    x, indices, updates = present(inputs)
    if _has_no_sums(x, node):
        return None
    axis, reduction = node.attrs.axis, node.attrs.reduction
    scatter = Scatter(x.type, updates.type, axis, replaced(updates.shape, axis), (), reduction)
    (places,) = express(b, _places_along(indices.type, scatter), indices)
    return [_scattered(b, scatter, x, places, updates, cheapest)]


def express_scatter_nd(
    b: GraphBuilder, node: Node, inputs: Inputs, cheapest: Cheapest
) -> Replacement:
    """Returns operand 0 with slices replaced by updates, or combined with updates.

    Returns None for a reduction of bools.
    """
    x, indices, updates, *rows_of_table = present(inputs)
    if _has_no_sums(x, node):
        return None
    for row_indices in rows_of_table:
        updates = emit(b, "gather", updates, row_indices, axis=0)
    tuples, depth = indices.rank - 1, as_int(indices.shape[-1])
    count, sizes = element_count(indices.shape[:-1]), x.shape[:depth]
    rows = emit(b, "reshape", x, shape=(element_count(sizes), *x.shape[depth:]))
    slices = emit(b, "reshape", updates, shape=(count, *updates.shape[tuples:]))
    flat = emit(b, "reshape", indices, shape=(count, const(len(sizes))))
    (places,) = express(b, _places_of_tuples(flat.type, sizes), flat)
    scatter = Scatter(rows.type, slices.type, 0, (), slices.shape[1:], node.attrs.reduction)
    result = _scattered(b, scatter, rows, places, slices, cheapest)
    return [emit(b, "reshape", result, shape=x.shape)]


def _has_no_sums(x: Value, node: Node) -> bool:
    return x.dtype is BOOL and node.attrs.reduction != "none"


# ---- places ------------------------------------------------------------------------------------


def _places_along(indices: TensorType, s: Scatter) -> Expr:
    """Returns the expression of the places of indices along the axis, for each line.

    Negative indices count from the end.  An index outside gives the place after the last.
    """
    b = ExprBuilder(indices)
    (*line, number), size = b.iters(*s.lines, s.count), s.rows
    place = wrapped(b.read(0, *s.at(tuple(line), number)), size)
    return b.finish((*line, number), choose(inside(place, size), place, size))


def _places_of_tuples(tuples: TensorType, sizes: Sequence[Index]) -> Expr:
    """Returns the expression of the row-major places of tuples of indices in a shape `sizes`.

    A tuple outside gives the place after the last.
    """
    b = ExprBuilder(tuples)
    (number,) = b.iters(tuples.shape[0])
    place: Scalar = literal(0, I64)
    valid: Scalar = literal(True, BOOL)
    for axis, size in enumerate(sizes):
        index = wrapped(b.read(0, number, axis), size)
        place = place * size + index
        valid = valid & inside(index, size)
    return b.finish((number,), choose(valid, place, element_count(tuple(sizes))))


# ---- the direct and the sorted form ------------------------------------------------------------


def _scattered(
    b: GraphBuilder, s: Scatter, x: Value, places: Value, updates: Value, cheapest: Cheapest
) -> Value:
    form = _by_order
    if any((as_int(size) or _FEW + 1) <= _FEW for size in (s.rows, s.count)):
        forms = (_directly, _by_order)
        form = forms[cheapest([_single_form(f, s, places.type) for f in forms])]
    return form(b, s, x, places, updates)


def _single_form(
    form: Callable[[GraphBuilder, Scatter, Value, Value, Value], Value],
    s: Scatter,
    places: TensorType,
) -> Graph:
    """Returns a graph that computes the scatter by `form`, to be priced."""
    b = GraphBuilder("scatter")
    operands = (("x", s.x), ("places", places), ("updates", s.updates))
    return b.finish([form(b, s, *(b.input(name, type_) for name, type_ in operands))])


def _directly(b: GraphBuilder, s: Scatter, x: Value, places: Value, updates: Value) -> Value:
    return express(b, _direct(s, places.type), x, places, updates)[0]


def _direct(s: Scatter, places: TensorType) -> Expr:
    b = ExprBuilder(s.x, places, s.updates)
    reduces = s.reduction != "none"
    at = b.iters(s.rows) if s.update_axes and not reduces else b.point(s.x)
    (number,) = b.iters(s.count)
    position = replaced(at, s.axis)
    # Along axes other than `axis`, the updates may be shorter than x. Beyond their end, the read of
    # a place gives -1, which equals no place.
    meant = fn("eq", b.read(1, *s.line(position), number, fill=-1), at[s.axis])
    if reduces:
        term = choose(meant, cast(b.read(2, *s.at(position, number), fill=0), s.dtype), s.identity)
        combination = b.stage(at, term, over=(number,), monoid=s.monoid)
        at = b.point(s.x)
        return _combined(b, s, at, b.read(combination, *at))
    last = b.stage(at, choose(meant, index_value(number, I64), -1), over=(number,), monoid="max")
    at = b.point(s.x)
    return _replaced_by(b, s, at, b.read(last, *(at[:1] if s.update_axes else at)))


def _combined(b: ExprBuilder, s: Scatter, at: Indices, new: Scalar) -> Expr:
    """Returns the expression of x at `at`, combined with `new`, the total of the element's
    updates."""
    old = cast(b.read(0, *at), s.dtype)
    combined: Scalar = apply(_MONOIDS[s.reduction][1], old, new)
    if s.reduction == "add":
        # An element without updates keeps its value, even if that is minus zero.
        combined = choose(fn("eq", new, 0), old, combined)
    return b.finish(at, cast(combined, s.x.dtype))


def _replaced_by(b: ExprBuilder, s: Scatter, at: Indices, number: Scalar) -> Expr:
    """Returns the expression of x with its elements replaced by updates.

    `number` is the index of the update of the element at `at`; negative if there is none.
    """
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
    """Returns the positions at which the sorted items of a place begin and end.

    The end is the position after the last item.
    """
    line, row = s.line(replaced(at, s.axis)), at[s.axis]
    return b.read(3, *line, row, fill=0), b.read(3, *line, row + 1, fill=0)


def _number(b: ExprBuilder, s: Scatter, items: int, line: Indices, place: Scalar) -> Scalar:
    """Returns the index of the update at position `place` of the sorted items.

    An item is a pair (place, index of the update) in one integer.  `items` is the number of the
    operand that holds the sorted items.
    """
    item = b.read(items, *line, b.position(clamped(place, s.count), s.count), fill=0)
    return fn("mod", item, s.count)


def _update(b: ExprBuilder, s: Scatter, updates: int, position: Indices, number: Scalar) -> Scalar:
    """Returns the element of update `number` at the indices `position`, in the type in which
    updates are combined.

    `updates` is the number of the operand that holds the updates.
    """
    at = b.position(clamped(number, s.count), s.count)
    return cast(b.read(updates, *s.at(position, at), fill=0), s.dtype)


def _last_of(s: Scatter, *operands: TensorType) -> Expr:
    """Returns the expression of x with each element replaced by the last update of its place."""
    b = ExprBuilder(*operands)
    at = b.point(s.x)
    begin, end = _segment(b, s, at)
    number = _number(b, s, 1, s.line(replaced(at, s.axis)), end - 1)
    return _replaced_by(b, s, at, choose(begin < end, number, -1))


def _level(s: Scatter, *below: TensorType) -> Expr:
    """Returns the expression of a level of the tree: totals of `FAN` neighbours of the level below.

    The totals have shape [*lines, nodes, *update_axes].  `below` is the type of the level below.
    For the lowest level, `below` are the types of the sorted items and of the updates.
    """
    b, rank = ExprBuilder(*below), len(s.lines)
    size = below[0].shape[rank] if len(below) == 1 else s.count
    at = b.iters(*s.lines, ceildiv(size, FAN), *s.update_axes)
    line, update_position = at[:rank], at[rank + 1 :]
    (child,) = b.iters(FAN)
    place = at[rank] * FAN + child
    if len(below) == 1:
        value: Scalar = b.read(0, *line, place, *update_position, fill=s.identity.value)
    else:
        number = _number(b, s, 0, line, index_value(place, I64))
        inside_ = index_value(place, I64) < size
        value = choose(inside_, _update(b, s, 1, (*line, *update_position), number), s.identity)
    return b.finish(at, value, over=(child,), monoid=s.monoid)


def _totals(s: Scatter, *operands: TensorType) -> Expr:
    """Returns the expression of x combined with the totals of its updates, from nodes of all
    levels.

    The items of a place are a range.  On each level, the total takes the nodes within the range
    whose parents are not within it: at most `FAN` at each end.  On the top level it takes all nodes
    within the range.
    """
    b, parts = ExprBuilder(*operands), []
    for level, nodes in enumerate((operands[1], *operands[4:])):
        at = b.point(s.x)
        position = replaced(at, s.axis)
        begin, end = _segment(b, s, at)
        for _ in range(level):
            begin = _parent(begin) + 1
            end = fn("max", _parent(end), begin)
        size = nodes.shape[len(s.lines)] if level else s.count
        top = level + 4 == len(operands)
        (number,) = b.iters(size if top else 2 * FAN)
        place, meant = _within(number, begin, end, top)
        if level:
            node = b.position(clamped(place, size), size)
            node_position = (*s.line(position), node, *position[len(s.lines) :])
            value: Scalar = b.read(3 + level, *node_position, fill=0)
        else:
            value = _update(b, s, 2, position, _number(b, s, 1, s.line(position), place))
        parts.append(b.stage(at, choose(meant, value, s.identity), over=(number,), monoid=s.monoid))
    at = b.point(s.x)
    combination: Scalar = b.read(parts[0], *at)
    for part in parts[1:]:
        combination = apply(_MONOIDS[s.reduction][1], combination, b.read(part, *at))
    return _combined(b, s, at, combination)


def _parent(node: Scalar) -> Scalar:
    return fn("shift_right", node, FAN.bit_length() - 1)


def _within(number: Index, begin: Scalar, end: Scalar, top: bool) -> tuple[Scalar, Scalar]:
    """Returns the node to check at position `number`, and a bool: does it count?

    It counts if it is in the range from `begin` to `end` - 1.  The nodes to check are the siblings
    of the range's first and last node, or all nodes on the `top` level.
    """
    place: Scalar = index_value(number, I64)
    counts: Scalar = literal(True, BOOL)
    if not top:
        first, last, is_first = _parent(begin), _parent(end), place < FAN
        place = choose(is_first, first, last) * FAN + index_value(number % FAN, I64)
        counts = is_first | (first < last)
    return place, counts & (place >= begin) & (place < end)
