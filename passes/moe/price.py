"""Prices a matmul in which data select a matrix for each row: row by row, and by tiles of rows.

    row by row    a kernel that reads a matrix for each row
    by tiles      a kernel that reads a matrix for each tile, and kernels that order and move rows

Each form is priced as a graph of its own, which is placed like a model.  The price of a form is the
sum of its kernels' prices.
"""

from dataclasses import field

from tcc.frozen import entity
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import const
from tcc.ir.types import TensorType
from tcc.passes.choose.content import site
from tcc.passes.graph.emit import emit
from tcc.passes.moe.forms import Grouping
from tcc.passes.moe.grouped_gemm import (
    GroupedMatmul,
    ordered,
    rows_of_tiles,
    rows_to_tiles,
    tiled_matmul,
)
from tcc.passes.program.price import priced_kernels, unread
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.alternatives import NO_TIME, Alternative
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import typical


@entity
class GroupedGemmPrices:
    """Chooses the number of rows in a tile, among `tiles`, that has the lowest price.

    Equal matmuls are priced once.
    """

    planner: KernelChooser
    tiles: tuple[int, ...]
    _tile_of: dict[GroupedMatmul, int | None] = field(default_factory=dict)

    def tile_of(self, matmul: GroupedMatmul) -> int | None:
        """Returns the number of rows in a tile; None if the matmul is cheaper row by row."""
        matmul = _typical(matmul)
        if matmul not in self._tile_of:
            plain = self._priced(None, _row_by_row(matmul))
            tiled = [self._priced(tile, _by_tiles(matmul, tile)) for tile in self.tiles]
            margin = MARGINS["rows of MoE tiles"]
            self._tile_of[matmul] = self.planner.ledger.decide(
                lambda: site("expert-rows", matmul), plain, tiled, margin
            ).replacement
        return self._tile_of[matmul]

    def _priced(self, tile: int | None, graph: Graph) -> Alternative[int | None]:
        """Returns the price of `graph`, which computes the matmul by tiles of `tile` rows.

        A `tile` of None stands for row by row.
        """
        name = "row-by-row" if tile is None else f"tiles-of-{tile}"
        seconds = (s for _, s in priced_kernels(graph, self.planner))
        return Alternative(tile, sum(seconds, NO_TIME), name=name)


def _typical(matmul: GroupedMatmul) -> GroupedMatmul:
    """Returns `matmul` with typical sizes in place of symbolic sizes."""
    rows, matrices, index = (
        TensorType(type_.dtype, tuple(const(typical(dim)) for dim in type_.shape))
        for type_ in (matmul.rows, matmul.matrices, matmul.index)
    )
    return GroupedMatmul(rows, matrices, index, matmul.swapped)


def _row_by_row(matmul: GroupedMatmul) -> Graph:
    b = GraphBuilder("rows")
    rows, matrices, index = _operands(b, matmul)
    row_matrices = emit(b, "gather", matrices, index, axis=0)
    if matmul.swapped:
        rank = matmul.index.rank
        row_matrices = emit(b, "transpose", row_matrices, perm=(*range(rank), rank + 1, rank))
    return b.finish([emit(b, "matmul", rows, row_matrices)])


def _by_tiles(matmul: GroupedMatmul, tile: int) -> Graph:
    b = GraphBuilder("tiles")
    rows, matrices, index = _operands(b, matmul)
    order = ordered(b, index, Grouping(matmul.index, matmul.matrices.shape[0], tile))
    tiles = rows_to_tiles(b, order, rows, matmul.lead)
    product_tiles = tiled_matmul(b, order, tiles, matrices, matmul.swapped)
    shape = (*matmul.index.shape, product_tiles.shape[2])
    return b.finish([rows_of_tiles(b, order, product_tiles, shape)])


def _operands(b: GraphBuilder, matmul: GroupedMatmul) -> tuple[Value, Value, Value]:
    """Returns the operands (rows, matrices, index); prices do not depend on matrices' contents."""
    matrices = unread(b, matmul.matrices)
    return b.input("rows", matmul.rows), matrices, b.input("index", matmul.index)
