"""Replaces matmuls in which data select a matrix for each row by matmuls of tiles of rows.

    %m = gather(%w[E, k, n], %i[T, 2])         %place, %row, %matrix = expression(%i)
    %y = matmul(%x[T, 1, 1, k], %m)       ->   %a = expression(%x, %row)         ; rows side by side
    %z = relu(%y)                              %t = relu(matmul(%a, gather(%w, %matrix)))
                                               %z = expression(%t, %place)

All rows of a tile have the same matrix, which the tile reads once.  Pointwise work after the
matmul, and further matmuls by the same index, stay in tiles.  Other readers get the rows back in
their original order.  Requires nothing.  Establishes that these matmuls work on tiles where that is
predicted to be faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from tcc.frozen import entity, frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import Trait
from tcc.ir.types import TensorType, element_count
from tcc.ops.shapes import broadcasts_to
from tcc.ops.sizes import CheckIndicesAttrs
from tcc.passes.graph.check_indices import add_check
from tcc.passes.graph.emit import emit, express
from tcc.passes.moe.forms import Grouping, from_tiles, places, rows, to_tiles
from tcc.zipped import zip_equal


@frozen
class GroupedMatmul:
    """A matmul of rows `[*lead, 1, k]` with matrices `[k, n]` that an index tensor selects.

    `matrices` is the type of all matrices, stacked along the first axis.  If `swapped`, they are
    stored as `[n, k]`.  `index` is the type of the index tensor.  `lead` broadcasts to its shape:
    each index element has a row, and several may share a row.
    """

    rows: TensorType
    matrices: TensorType
    index: TensorType
    swapped: bool

    @property
    def lead(self) -> tuple[Index, ...]:
        return self.rows.shape[:-2]


# Returns the number of rows in a tile for a matmul; None if the matmul shall stay as it is.
TileOf = Callable[[GroupedMatmul], int | None]


@entity
class Order:
    """The order of rows by the matrices that the elements of an index tensor select for them.

    `place`: the position of each row in the tiles.
    `row`: the row at each position in the tiles.
    `matrix`: the matrix of each tile.
    """

    index: Value
    grouping: Grouping
    place: Value
    row: Value
    matrix: Value


@entity
class _Tiled:
    """A value whose rows are also stored in tiles.

    `tiles` has shape [tiles, rows of a tile, elements of a row].  `axis` is the axis of the value
    along which the elements of a row lie.
    """

    tiles: Value
    order: Order
    axis: int


@entity
class _Selection:
    """The value `source[index]`, with its last two axes exchanged if `swapped`."""

    source: Value
    index: Value
    swapped: bool
    loc: str


def group_gemms(graph: Graph, tile_of: TileOf, checks: bool = False) -> Graph:
    """Returns `graph` with matmuls on tiles, in place of matmuls for which `tile_of` returns a
    number.

    If `checks`, adds nodes that check the indices.  The step `check-indices` would otherwise add
    them to the gathers that the rewrite removes.
    """
    return rewritten(graph, _Grouper(tile_of, checks).visit)


def tiled_matmul(
    b: GraphBuilder, order: Order, tiles: Value, matrices: Value, swapped: bool
) -> Value:
    """Adds the matmul of tiles of rows with one matrix for each tile.

    Returns a tensor of shape [tiles, rows of a tile, columns of a matrix].
    """
    tile_matrices = emit(b, "gather", matrices, order.matrix, axis=0)
    return emit(
        b,
        "matmul",
        tiles,
        emit(b, "transpose", tile_matrices, perm=(0, 2, 1)) if swapped else tile_matrices,
    )


def ordered(b: GraphBuilder, index: Value, grouping: Grouping) -> Order:
    """Adds nodes that order the rows of an index tensor in groups."""
    flat = emit(b, "reshape", index, shape=(grouping.rows,))
    tables = express(b, places(grouping), flat)
    (row,) = express(b, rows(grouping), *tables)
    place, matrix = tables[:2]
    return Order(index, grouping, place, row, matrix)


def rows_to_tiles(b: GraphBuilder, order: Order, rows: Value, lead: Sequence[Index]) -> Value:
    """Adds a node that copies `rows`, of shape [*lead, ...], into tiles, as in `to_tiles`."""
    return express(b, to_tiles(order.grouping, rows.type, lead), rows, order.row)[0]


def rows_of_tiles(b: GraphBuilder, order: Order, tiles: Value, shape: Sequence[Index]) -> Value:
    """Adds a node that copies tiles back to rows, a tensor of `shape`, as in `from_tiles`."""
    return express(b, from_tiles(order.grouping, tiles.type, shape), tiles, order.place)[0]


@entity
class _Grouper:
    """Rewrites nodes in order.

    `tiled` maps values of the new graph to the tiles that also store their rows.  `orders` maps
    each index tensor to the order of its rows.
    """

    tile_of: TileOf
    checks: bool
    tiled: dict[Value, _Tiled] = field(default_factory=dict)
    orders: dict[tuple[GraphBuilder, Value], Order] = field(default_factory=dict)

    def visit(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node.op.name == "matmul":
            return self._matmul(b, node, inputs)
        tiled = next((self.tiled[v] for v in inputs if v in self.tiled), None)
        if tiled is None:
            return None
        if node.op.name == "reshape":
            return self._reshaped(b, node, tiled)
        if node.op.name in ("split", "slice"):
            return self._split_or_slice(b, node, tiled)
        if Trait.ELEMENTWISE in node.op.traits and len(node.outputs) == 1:
            return self._pointwise(b, node, inputs, tiled)
        return None

    # ---- matmuls by selected matrices

    def _matmul(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        a, c = inputs
        for x, matrix, transposed in ((a, c, False), (c, a, True)):
            selection = _selection(b, matrix)
            if x is None or selection is None or selection.source.rank != 3 or x.rank < 2:
                continue
            is_one_row = as_int(x.shape[-1 if transposed else -2]) == 1
            if is_one_row and broadcasts_to(x.shape[:-2], selection.index.shape):
                return self._regrouped(b, node, x, selection, transposed)
        return None

    def _regrouped(
        self, b: GraphBuilder, node: Node, x: Value, selection: _Selection, transposed: bool
    ) -> Replacement:
        lead = x.shape[:-2]
        depth = x.shape[-2 if transposed else -1]
        plain = TensorType(x.dtype, (*lead, const(1), depth))
        swapped = selection.swapped != transposed
        tiled = self.tiled.get(x)
        if tiled is not None and tiled.order.index is selection.index:
            order, tiles = tiled.order, tiled.tiles
        else:
            matmul = GroupedMatmul(plain, selection.source.type, selection.index.type, swapped)
            new_order = self._order(b, matmul, selection)
            if new_order is None:
                return None
            order = new_order
            tiles = rows_to_tiles(b, order, x, lead)
        product_tiles = tiled_matmul(b, order, tiles, selection.source, swapped)
        return [self._as_rows(b, node, product_tiles, order, node.result.rank - 1 - transposed)]

    def _order(self, b: GraphBuilder, matmul: GroupedMatmul, selection: _Selection) -> Order | None:
        """Returns the order of the rows of an index tensor.

        The first matmul that reads the index tensor decides the number of rows in a tile.  Returns
        None if the first matmul stays as it is, or if `matmul` has another number of matrices.
        """
        index, count = selection.index, matmul.matrices.shape[0]
        if (b, index) not in self.orders:
            tile = self.tile_of(matmul)
            if tile is None:
                return None
            if self.checks:
                b.loc, location = selection.loc, b.loc
                add_check(b, index, CheckIndicesAttrs(count), {})
                b.loc = location
            self.orders[b, index] = ordered(b, index, Grouping(matmul.index, count, tile))
        order = self.orders[b, index]
        return order if order.grouping.matrices is count else None

    def _as_rows(
        self, b: GraphBuilder, node: Node, tiles: Value, order: Order, axis: int, number: int = 0
    ) -> Value:
        """Returns a copy of the rows in `tiles`, in the shape of result `number` of `node`.

        Records in `tiled` that `tiles` hold the same rows, for later nodes that read the copy.
        `axis` is the axis of the copy along which the elements of a row lie.
        """
        value = rows_of_tiles(b, order, tiles, node.outputs[number].shape)
        self.tiled[value] = _Tiled(tiles, order, axis)
        return value

    # ---- nodes that read the result of a grouped matmul

    def _reshaped(self, b: GraphBuilder, node: Node, tiled: _Tiled) -> Replacement:
        axis = _last_axis(node.result.type, tiled.tiles.shape[2])
        if axis is None:
            return None
        return [self._as_rows(b, node, tiled.tiles, tiled.order, axis)]

    def _split_or_slice(self, b: GraphBuilder, node: Node, tiled: _Tiled) -> Replacement:
        before = node.inputs[0]
        assert before is not None
        attrs = node.attrs
        if node.op.name == "split":
            if attrs.axis != tiled.axis:
                return None
            attrs = replace(attrs, axis=2)
        else:
            is_complete = (
                (start, step, size) == (const(0), 1, extent)
                for start, step, size, extent in zip_equal(
                    attrs.starts, attrs.steps, attrs.sizes, before.shape
                )
            )
            if not all(complete for n, complete in enumerate(is_complete) if n != tiled.axis):
                return None
            attrs = replace(
                attrs,
                starts=(const(0), const(0), attrs.starts[tiled.axis]),
                steps=(1, 1, attrs.steps[tiled.axis]),
                sizes=(*tiled.tiles.shape[:2], attrs.sizes[tiled.axis]),
            )
        parts = b.add(node.op, [tiled.tiles], attrs)
        return [
            self._as_rows(b, node, part, tiled.order, tiled.axis, n) for n, part in enumerate(parts)
        ]

    def _pointwise(self, b: GraphBuilder, node: Node, inputs: Inputs, tiled: _Tiled) -> Replacement:
        shape, depth = node.result.shape, tiled.tiles.shape[2]
        operands: list[Value | None] = []
        for value in inputs:
            operand = None if value is None else self._operand(b, value, tiled, shape, depth)
            if operand is None and value is not None:
                return None
            operands.append(operand)
        (result_tiles,) = b.add(node.op, operands, node.attrs)
        return [self._as_rows(b, node, result_tiles, tiled.order, tiled.axis)]

    def _operand(
        self,
        b: GraphBuilder,
        value: Value,
        tiled: _Tiled,
        shape: Sequence[Index],
        depth: Index,
    ) -> Value | None:
        """Returns an operand of a pointwise op in a shape that broadcasts to tiles.

        `shape` is the shape of the op's result before the rewrite, and `depth` is the number of
        elements of a row.
        Returns None if the operand cannot be brought to tiles without a copy.
        """
        other = self.tiled.get(value)
        if other is not None:
            is_aligned = other.order is tiled.order and value.shape == tuple(shape)
            return other.tiles if is_aligned else None
        selection = _selection(b, value)
        if selection is not None and selection.index is tiled.order.index and not selection.swapped:
            if element_count(selection.source.shape[1:]) is not depth:
                return None
            selected_rows = emit(b, "gather", selection.source, tiled.order.matrix, axis=0)
            return emit(
                b, "reshape", selected_rows, shape=(tiled.order.grouping.tiles, const(1), depth)
            )
        dims = (const(1),) * (len(shape) - value.rank) + value.shape
        if any(as_int(d) != 1 for n, d in enumerate(dims) if n != tiled.axis):
            return None
        return emit(b, "reshape", value, shape=(dims[tiled.axis],))


def _selection(b: GraphBuilder, value: Value | None) -> _Selection | None:
    """Returns the selection `source[index]` that computes `value`; None for another value.

    After the selection, its last two axes may be exchanged, and selected rows may be reshaped.
    """
    node = b.producer(value)
    if node is None or node.inputs[0] is None:
        return None
    if node.op.name == "gather" and node.attrs.axis == 0 and node.inputs[1] is not None:
        return _Selection(node.inputs[0], node.inputs[1], False, node.loc)
    inner = _selection(b, node.inputs[0]) if node.op.name in ("transpose", "reshape") else None
    if inner is None:
        return None
    if node.op.name == "reshape":
        return inner if inner.source.rank == 2 else None
    rank = len(node.attrs.perm)
    last = (*range(rank - 2), rank - 1, rank - 2)
    swaps = node.attrs.perm == last and inner.source.rank == 3
    return replace(inner, swapped=not inner.swapped) if swaps else None


def _last_axis(type_: TensorType, depth: Index) -> int | None:
    """Returns the last axis that is longer than 1, if its length is `depth`; else None."""
    axes = [n for n, d in enumerate(type_.shape) if as_int(d) != 1]
    return axes[-1] if axes and type_.shape[axes[-1]] is depth else None
