"""Selects the elements that fulfil a condition, in order.

    flag     = 0 1 1 0 1
    total    = 3               the host reads it; from here on it is a size
    place[r] = 1 2 4           the index of selected element r

Elements are counted in blocks.  Selected element r is in the last block that has at most r selected
elements before it.  The block is found first, then the element in the block.

Requires nothing.  Establishes that no `compress` is left, and no `non_zero` except of scalars.
"""

from collections.abc import Sequence

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast, index_value
from tcc.ir.graph import GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement
from tcc.ir.index import Index, Indices, as_int, ceildiv, const
from tcc.ir.types import BOOL, I64, TensorType, element_count
from tcc.ops import OPS
from tcc.ops.data.data_dependent import BindSizeAttrs
from tcc.ops.formula import chosen, fn
from tcc.ops.operands import clamped, guard
from tcc.ops.shapes import present, replaced
from tcc.passes.graph.emit import emit, express
from tcc.passes.graph.legalize_calls.prefix_sums import BLOCK, Combination, Totals, within_blocks

_COUNT = Combination("sum", "add", 0)


def express_non_zero(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    """Returns the indices of the nonzero elements of operand 0; None if it is a scalar."""
    (x,) = present(inputs)
    if x.rank == 0:
        return None
    places = _places(b, _flat(b, x), element_count(x.shape), node)
    return express(b, _coordinates(places.type, x.shape), places)


def express_compress(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value]:
    """Returns the slices of operand 0, along the node's axis, for which operand 1 is true."""
    x, condition = present(inputs)
    axis = node.attrs.axis
    if axis is None:
        x, axis = _flat(b, x), 0
    places = _places(b, condition, x.shape[axis], node)
    return express(b, _slices(x.type, places.type, axis), x, places)


def _flat(b: GraphBuilder, x: Value) -> Value:
    return x if x.rank == 1 else emit(b, "reshape", x, shape=(element_count(x.shape),))


def _places(b: GraphBuilder, flags: Value, count: Index, node: Node) -> Value:
    """Returns the indices of the nonzero elements among the first `count` elements of a vector.

    Adds a node that binds their number to the size symbol of `node`.
    """
    within, before, count_selected = express(b, _counts(flags.type, count), flags)
    b.add(OPS["bind_size"], [count_selected], BindSizeAttrs(node.attrs.size, 0))
    (places,) = express(
        b, _selected_places(within.type, before.type, node.attrs.size), within, before
    )
    return places


def _counts(flags: TensorType, count: Index) -> Expr:
    """Returns an expression of three results, which count selected elements.

    The first result counts the elements up to and including each element, in its block.  The second
    counts the elements before each block, and the third all elements.
    """
    b = ExprBuilder(flags)

    def term(_at: Indices, number: Index) -> Scalar:
        flag = b.read(0, number, fill=0)
        is_selected: Scalar = flag if flag.dtype is BOOL else fn("ne", flag, 0)
        static_count, length = as_int(count), as_int(flags.shape[0])
        if static_count is None or length is None or length > static_count:
            is_selected = is_selected & (index_value(number, I64) < count)
        return cast(is_selected, I64)

    blocks = ceildiv(count, BLOCK)
    within = within_blocks(b, (), blocks, term, _COUNT)

    def of_block(_at: Indices, number: Index) -> Scalar:
        return b.read(within, number, BLOCK - 1, fill=0)

    totals = Totals(b, (), blocks, of_block, _COUNT)
    (block,) = b.iters(blocks)
    before = b.stage((block,), totals.before((), block))
    (one,) = b.iters(1)
    (block,) = b.iters(blocks)
    return b.done(within, before, b.sum((one,), of_block((), block), over=(block,)))


def _selected_places(within: TensorType, before: TensorType, size: Index) -> Expr:
    """Returns the expression of the indices of all `size` selected elements.

    Its operands are the first two results of `_counts`.
    """
    b = ExprBuilder(within, before)
    blocks = before.shape[0]
    # Selected element `rank` is in the last block that has at most `rank` selected elements before
    # it.
    (rank,) = b.iters(size)
    (block,) = b.iters(blocks)
    begun_blocks = b.sum((rank,), cast(b.read(1, block) <= rank, I64), over=(block,))

    (rank,) = b.iters(size)
    (number,) = b.iters(BLOCK)
    at = b.position(clamped(b.read(begun_blocks, rank) - 1, blocks), blocks)
    fill = guard(blocks)
    offset_in_block = index_value(rank, I64) - b.read(1, at, fill=fill)
    passed = b.read(0, at, number, fill=fill) <= offset_in_block
    inside = b.sum((rank,), cast(passed, I64), over=(number,))

    (rank,) = b.iters(size)
    return b.finish((rank,), (b.read(begun_blocks, rank) - 1) * BLOCK + b.read(inside, rank))


def _coordinates(places: TensorType, shape: Sequence[Index]) -> Expr:
    """Returns the expression of an array [axes, places] of the indices of row-major places in
    `shape`.

    Column n has the indices of place n along each axis.
    """
    b = ExprBuilder(places)
    axis, place_number = b.iters(len(shape), places.shape[0])
    place: Scalar = b.read(0, place_number)
    stride = const(1)
    parts: list[Scalar] = []
    for size in reversed(shape):
        part = place if stride is const(1) else place / stride
        parts.insert(0, part if len(parts) + 1 == len(shape) else fn("mod", part, size))
        stride = stride * size
    return b.finish((axis, place_number), chosen(axis, parts))


def _slices(x: TensorType, places: TensorType, axis: int) -> Expr:
    b = ExprBuilder(x, places)
    at = b.iters(*replaced(x.shape, axis, places.shape[0]))
    size = x.shape[axis]
    position = b.position(clamped(b.read(1, at[axis]), size), size)
    return b.finish(at, b.read(0, *replaced(at, axis, position), fill=guard(size)))
