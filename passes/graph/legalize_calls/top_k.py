"""Finds the best elements of a line, in order, without sorting it.

    rank[i] = sum(j) (x[j] is better than x[i] ? 1 : 0)     place[r] = the i with rank[i] == r

A line is the elements along the axis of top_k.  The rank of an element is the number of elements
that are better.  The work grows with the square of a line's length.  If few of many elements are
requested, the best elements of each block are found first, and then the best among them.  Equal
elements keep their order; NaN is larger than every number.
"""

from collections.abc import Callable, Sequence

from tcc.frozen import frozen
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, apply, cast, index_value
from tcc.ir.graph import GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs
from tcc.ir.index import Index, as_int, bounds, ceildiv, const, minimum
from tcc.ir.types import I32, I64, TensorType
from tcc.ops.data.data_dependent import TopKAttrs
from tcc.ops.formula import choose, fn
from tcc.ops.operands import clamped
from tcc.ops.shapes import present, replaced
from tcc.passes.graph.check_sizes import demand
from tcc.passes.graph.emit import express

# A block has _BLOCK elements. Blocks are used if they have at least _PAYS times as many elements as
# are requested.
_BLOCK, _PAYS = 1024, 8


def express_top_k(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value]:
    """Returns the best elements along the axis of a `top_k` node, and their indices."""
    (x,) = present(inputs)
    attrs: TopKAttrs = node.attrs
    extent = x.shape[attrs.axis]
    fewest, largest_k = bounds(extent)[0], bounds(attrs.k)[1]
    if largest_k is None or fewest is None or fewest < largest_k:
        reason = "there are no more elements along the axis"
        demand(b, minimum(attrs.k, extent), attrs.k, reason)
    return express(b, _Ranking(x.type, attrs).expr(), x)


Where = tuple[Index, ...]
Field = Callable[[Where, Index], Scalar]


@frozen
class _Items:
    """The items that are ranked: `count` items of each line.

    Three functions map the indices of a line and the position of an item to a scalar:
    `place`: the index of the item along the operand's axis.
    `value`: the element at that index.
    `there`: true if there is an item at that position.  Positions may be beyond the last item.
    """

    count: Index
    place: Field
    value: Field
    there: Field


class _Ranking:
    def __init__(self, x: TensorType, attrs: TopKAttrs) -> None:
        self.x, self.attrs, self.axis = x, attrs, attrs.axis
        self.size = x.shape[self.axis]
        self.lines = replaced(x.shape, self.axis)
        self.b = ExprBuilder(x)

    def expr(self) -> Expr:
        """Returns an expression of two results: the best elements, and their indices."""
        b, axis, k = self.b, self.axis, self.attrs.k
        items = _Items(self.size, _number, self._operand_element, self._inside)
        while self._shrinks(items.count):
            items = self._best_of_blocks(items)
            if as_int(items.count) is None:
                break
        places = self._best(items, (), items.count, k)
        shape = replaced(self.x.shape, axis, k)
        at = b.iters(*shape)
        line = replaced(at, axis)
        values = b.stage(at, self._at(line, b.read(places, *line, at[axis])))
        at = b.iters(*shape)
        return b.done(values, b.stage(at, b.read(places, *replaced(at, axis), at[axis])))

    # ---- the operand ----------------------------------------------------------------------------

    def _operand_element(self, line: Where, number: Index) -> Scalar:
        return self.b.read(0, *line[: self.axis], number, *line[self.axis :], fill=0)

    def _inside(self, _line: Where, number: Index) -> Scalar:
        return index_value(number, I64) < self.size

    def _at(self, line: Where, place: Scalar) -> Scalar:
        """Returns the operand's element at the data-dependent index `place` of a line.

        `line` is the line's position along the axes other than the axis of top_k.
        """
        at = self.b.position(clamped(place, self.size), self.size)
        return self._operand_element(line, at)

    # ---- ranks ----------------------------------------------------------------------------------

    def _shrinks(self, count: Index) -> bool:
        """Returns True if the best elements of all blocks are few compared with all elements."""
        size, k = as_int(count), as_int(self.attrs.k)
        return k is not None and k * _PAYS <= _BLOCK and (size is None or size > 2 * _BLOCK)

    def _best_of_blocks(self, items: _Items) -> _Items:
        k, b = self.attrs.k, self.b
        blocks = ceildiv(items.count, _BLOCK)
        best = self._best(items, (blocks,), const(_BLOCK), k)
        (*line, block, rank) = b.iters(*self.lines, blocks, k)
        values = b.stage(
            (*line, block, rank), self._at(tuple(line), b.read(best, *line, block, rank))
        )

        def of(stage: StageRef, fill: int) -> Field:
            return lambda line, number: b.read(stage, *line, number // k, number % k, fill=fill)

        place = of(best, -1)

        def there(line: Where, number: Index) -> Scalar:
            return place(line, number) >= 0

        return _Items(blocks * k, place, of(values, 0), there)

    def _best(self, items: _Items, blocks: Where, size: Index, k: Index) -> StageRef:
        """Returns the indices of the best `k` items of each line, the best first.

        If `blocks` has the number of blocks, returns the best of each block of the line instead.
        `size` is the number of items of a line or block.  If it has fewer than `k` items, the last
        indices are negative.
        """
        ranks = self._ranks(items, blocks, size)
        b = self.b
        (*at, rank) = b.iters(*self.lines, *blocks, k)
        (element,) = b.iters(size)
        line, number = self._numbered(tuple(at), blocks, element)
        has_rank = fn("eq", b.read(ranks, *at, element), rank) & items.there(line, number)
        place = choose(has_rank, items.place(line, number), -1)
        return b.stage((*at, rank), place, over=(element,), monoid="max")

    def _ranks(self, items: _Items, blocks: Where, size: Index) -> StageRef:
        """Returns the rank of each item of a line or block: the number of items that are better."""
        b = self.b
        (*at, mine) = b.iters(*self.lines, *blocks, size)
        (other,) = b.iters(size)
        line, number = self._numbered(tuple(at), blocks, mine)
        _, another = self._numbered(tuple(at), blocks, other)
        earlier = index_value(other, I64) < mine
        before = self._before(items.value(line, another), items.value(line, number), earlier)
        return b.sum((*at, mine), cast(before & items.there(line, another), I32), over=(other,))

    def _numbered(self, at: Where, blocks: Where, element: Index) -> tuple[Where, Index]:
        """Returns the line of an element, and the element's position in the line.

        `at` has the line and, if there are blocks, the block.  `element` is the position in the
        block.
        """
        if not blocks:
            return at, element
        return at[:-1], at[-1] * _BLOCK + element

    def _before(self, one: Scalar, other: Scalar, earlier: Scalar) -> Scalar:
        """Returns a bool: is `one` better than `other`, or equal to it and `earlier`?"""
        better = one > other if self.attrs.largest else one < other
        equal: Scalar = apply("eq", one, other)
        if one.dtype.is_float:
            odd, other_odd = apply("is_nan", one), apply("is_nan", other)
            above, below = (odd, other_odd) if self.attrs.largest else (other_odd, odd)
            better = better | (above & apply("not", below))
            equal = equal | (odd & other_odd)
        return better | (equal & earlier)


def _number(_line: Where, number: Index) -> Scalar:
    return index_value(number, I64)
