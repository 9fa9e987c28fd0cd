"""Products whose matrices data choose, row by row, become products of tiles of rows that agree.

    %m = gather(%w[E, k, n], %i[T, 2])         %place, %row, %matrix = expression(%i)
    %y = matmul(%x[T, 1, 1, k], %m)       ->   %a = expression(%x, %row)         ; rows side by side
    %z = relu(%y)                              %t = relu(matmul(%a, gather(%w, %matrix)))
                                               %z = expression(%t, %place)

A tile reads its matrix once for all its rows.  What follows point by point, and products of the
same index, stay in tiles; only what else reads them brings the rows back, in their own order.
Requires nothing.  Establishes that such products are by tiles where that is predicted to gain.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace

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
from tcc.record import entity, record


@record
class GroupedMatmul:
    """Rows `[*lead, 1, k]` times the matrices `[k, n]`, of all `matrices`, that an index tensor
    chooses; `swapped`: the matrices are `[n, k]`, and turned around.

    The shape of `index` is that of all rows; `lead` broadcasts to it.
    """

    rows: TensorType
    matrices: TensorType
    index: TensorType
    swapped: bool

    @property
    def lead(self) -> tuple[Index, ...]:
        return self.rows.shape[:-2]


# The rows of a tile for a product; None: as it is.
TileOf = Callable[[GroupedMatmul], int | None]


@entity
class Order:
    """How the rows of an index tensor are grouped, and what says so: see `places`."""

    index: Value
    grouping: Grouping
    place: Value
    row: Value
    matrix: Value


@entity
class _Tiled:
    """`tiles` are `[tiles, tile, n]`: the rows of a value whose axis `axis` is n."""

    tiles: Value
    order: Order
    axis: int


@entity
class _Chosen:
    """A value is `source[index]`, its last two axes exchanged if `swapped`."""

    source: Value
    index: Value
    swapped: bool
    loc: str


def group_gemms(graph: Graph, tile_of: TileOf, checks: bool = False) -> Graph:
    """`graph` with products by tiles where `tile_of` says of how many rows; with `checks` of the
    indices, which no gather is left to read."""
    if not any(node.op.name == "gather" for node in graph.nodes):
        return graph
    return rewritten(graph, _Grouper(tile_of, checks).visit)


def tiled_matmul(
    b: GraphBuilder, order: Order, tiles: Value, matrices: Value, swapped: bool
) -> Value:
    """Adds the product `[tiles, tile, n]` of tiles of rows with the matrices of their tiles."""
    own = emit(b, "gather", matrices, order.matrix, axis=0)
    return emit(b, "matmul", tiles, emit(b, "transpose", own, perm=(0, 2, 1)) if swapped else own)


def ordered(b: GraphBuilder, index: Value, grouping: Grouping) -> Order:
    """Adds what orders the rows of an index tensor."""
    flat = emit(b, "reshape", index, shape=(grouping.rows,))
    found = express(b, places(grouping), flat)
    (row,) = express(b, rows(grouping), *found)
    place, matrix = found[:2]
    return Order(index, grouping, place, row, matrix)


def rows_to_tiles(b: GraphBuilder, order: Order, rows: Value, lead: Sequence[Index]) -> Value:
    """Adds the tiles of rows `[*lead, ...]`, see `to_tiles`."""
    return express(b, to_tiles(order.grouping, rows.type, lead), rows, order.row)[0]


def rows_of_tiles(b: GraphBuilder, order: Order, tiles: Value, shape: Sequence[Index]) -> Value:
    """Adds the rows of tiles as a tensor of `shape`, see `from_tiles`."""
    return express(b, from_tiles(order.grouping, tiles.type, shape), tiles, order.place)[0]


@entity
class _Grouper:
    """Rewrites nodes in order; what is known of values is known of the new graph's."""

    tile_of: TileOf
    checks: bool
    tiled: dict[Value, _Tiled] = field(default_factory=dict)
    orders: dict[tuple[GraphBuilder, Value], Order] = field(default_factory=dict)

    def visit(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node.op.name == "matmul":
            return self._matmul(b, node, inputs)
        known = next((self.tiled[v] for v in inputs if v in self.tiled), None)
        if known is None:
            return None
        if node.op.name == "reshape":
            return self._reshaped(b, node, known)
        if node.op.name in ("split", "slice"):
            return self._cut(b, node, known)
        if Trait.ELEMENTWISE in node.op.traits and len(node.outputs) == 1:
            return self._pointwise(b, node, inputs, known)
        return None

    # ---- products

    def _matmul(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        a, c = inputs
        for x, matrix, transposed in ((a, c, False), (c, a, True)):
            chosen = _chosen(b, matrix)
            if x is None or chosen is None or chosen.source.type.rank != 3 or x.type.rank < 2:
                continue
            alone = as_int(x.type.shape[-1 if transposed else -2]) == 1
            if alone and broadcasts_to(x.type.shape[:-2], chosen.index.type.shape):
                return self._regrouped(b, node, x, chosen, transposed)
        return None

    def _regrouped(
        self, b: GraphBuilder, node: Node, x: Value, chosen: _Chosen, transposed: bool
    ) -> Replacement:
        lead = x.type.shape[:-2]
        depth = x.type.shape[-2 if transposed else -1]
        plain = TensorType(x.type.dtype, (*lead, const(1), depth))
        swapped = chosen.swapped != transposed
        known = self.tiled.get(x)
        if known is not None and known.order.index is chosen.index:
            order, tiles = known.order, known.tiles
        else:
            matmul = GroupedMatmul(plain, chosen.source.type, chosen.index.type, swapped)
            found = self._order(b, matmul, chosen)
            if found is None:
                return None
            order = found
            tiles = rows_to_tiles(b, order, x, lead)
        made = tiled_matmul(b, order, tiles, chosen.source, swapped)
        rank = node.outputs[0].type.rank
        return [self._shown(b, node, made, order, rank - 1 - transposed)]

    def _order(self, b: GraphBuilder, matmul: GroupedMatmul, chosen: _Chosen) -> Order | None:
        """The order of an index tensor, with tiles as the first product of it wants them."""
        index, count = chosen.index, matmul.matrices.shape[0]
        if (b, index) not in self.orders:
            tile = self.tile_of(matmul)
            if tile is None:
                return None
            if self.checks:
                b.loc, own = chosen.loc, b.loc
                add_check(b, index, CheckIndicesAttrs(count), {})
                b.loc = own
            self.orders[b, index] = ordered(b, index, Grouping(matmul.index, count, tile))
        found = self.orders[b, index]
        return found if found.grouping.matrices is count else None

    def _shown(
        self, b: GraphBuilder, node: Node, tiles: Value, order: Order, axis: int, number: int = 0
    ) -> Value:
        """The rows of `tiles` as a result of `node`, known to be so."""
        shape = node.outputs[number].type.shape
        value = rows_of_tiles(b, order, tiles, shape)
        self.tiled[value] = _Tiled(tiles, order, axis)
        return value

    # ---- what follows

    def _reshaped(self, b: GraphBuilder, node: Node, known: _Tiled) -> Replacement:
        axis = _last_axis(node.outputs[0].type, known.tiles.type.shape[2])
        if axis is None:
            return None
        return [self._shown(b, node, known.tiles, known.order, axis)]

    def _cut(self, b: GraphBuilder, node: Node, known: _Tiled) -> Replacement:
        before = node.inputs[0]
        assert before is not None
        attrs = node.attrs
        if node.op.name == "split":
            if attrs.axis != known.axis:
                return None
            attrs = replace(attrs, axis=2)
        else:
            whole = (
                (start, step, size) == (const(0), 1, extent)
                for start, step, size, extent in zip(
                    attrs.starts, attrs.steps, attrs.sizes, before.type.shape, strict=True
                )
            )
            if not all(same for n, same in enumerate(whole) if n != known.axis):
                return None
            attrs = replace(
                attrs,
                starts=(const(0), const(0), attrs.starts[known.axis]),
                steps=(1, 1, attrs.steps[known.axis]),
                sizes=(*known.tiles.type.shape[:2], attrs.sizes[known.axis]),
            )
        parts = b.add(node.op, [known.tiles], attrs)
        return [
            self._shown(b, node, part, known.order, known.axis, n) for n, part in enumerate(parts)
        ]

    def _pointwise(self, b: GraphBuilder, node: Node, inputs: Inputs, known: _Tiled) -> Replacement:
        shape, depth = node.outputs[0].type.shape, known.tiles.type.shape[2]
        operands: list[Value | None] = []
        for value in inputs:
            operand = None if value is None else self._operand(b, value, known, shape, depth)
            if operand is None and value is not None:
                return None
            operands.append(operand)
        (made,) = b.add(node.op, operands, node.attrs)
        return [self._shown(b, node, made, known.order, known.axis)]

    def _operand(
        self,
        b: GraphBuilder,
        value: Value,
        known: _Tiled,
        shape: Sequence[Index],
        depth: Index,
    ) -> Value | None:
        """An operand of pointwise work on rows of `shape`, for tiles; None where there is none."""
        other = self.tiled.get(value)
        if other is not None:
            same = other.order is known.order and value.type.shape == tuple(shape)
            return other.tiles if same else None
        chosen = _chosen(b, value)
        if chosen is not None and chosen.index is known.order.index and not chosen.swapped:
            if element_count(chosen.source.type.shape[1:]) is not depth:
                return None
            own = emit(b, "gather", chosen.source, known.order.matrix, axis=0)
            return emit(b, "reshape", own, shape=(known.order.grouping.tiles, const(1), depth))
        dims = (const(1),) * (len(shape) - value.type.rank) + value.type.shape
        if any(as_int(d) != 1 for n, d in enumerate(dims) if n != known.axis):
            return None
        return emit(b, "reshape", value, shape=(dims[known.axis],))


def _chosen(b: GraphBuilder, value: Value | None) -> _Chosen | None:
    """What `value` is a choice of; shapes of one row for each index are looked through."""
    node = None if value is None else b.producer(value)
    if node is None or node.inputs[0] is None:
        return None
    if node.op.name == "gather" and node.attrs.axis == 0 and node.inputs[1] is not None:
        return _Chosen(node.inputs[0], node.inputs[1], False, node.loc)
    found = _chosen(b, node.inputs[0]) if node.op.name in ("transpose", "reshape") else None
    if found is None:
        return None
    if node.op.name == "reshape":
        return found if found.source.type.rank == 2 else None
    rank = len(node.attrs.perm)
    last = (*range(rank - 2), rank - 1, rank - 2)
    swaps = node.attrs.perm == last and found.source.type.rank == 3
    return replace(found, swapped=not found.swapped) if swaps else None


def _last_axis(type_: TensorType, depth: Index) -> int | None:
    """The last axis of more than one element, if that is of `depth`."""
    axes = [n for n, d in enumerate(type_.shape) if as_int(d) != 1]
    return axes[-1] if axes and type_.shape[axes[-1]] is depth else None
