"""What a product of rows takes whose matrices data choose: row by row, and by tiles of rows.

    row by row    a kernel that reads a matrix for each row
    by tiles      a kernel that reads one for each tile, and those that order rows and move them

Each way is a graph of its own, placed like a whole model, and its price the sum of its kernels'.
"""

from dataclasses import field

from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import const
from tcc.ir.types import TensorType
from tcc.passes.choose.price import priced_kernels, unread
from tcc.passes.graph.emit import emit
from tcc.passes.moe.forms import Grouping
from tcc.passes.moe.grouped_gemm import (
    GroupedMatmul,
    ordered,
    rows_of_tiles,
    rows_to_tiles,
    tiled_matmul,
)
from tcc.passes.tile.plan import KernelPlanner
from tcc.record import entity
from tcc.schedule.alternatives import Alternative, preferred
from tcc.schedule.nest import typical

# Of the price without tiles: by tiles has to be cheaper by that.
_MARGIN = 0.2


@entity
class GroupedGemmPrices:
    """The cheapest tile of a product among `tiles`, equal ones priced once."""

    planner: KernelPlanner
    tiles: tuple[int, ...]
    _known: dict[GroupedMatmul, int | None] = field(default_factory=dict)

    def tile_of(self, matmul: GroupedMatmul) -> int | None:
        """The rows of a tile; None where a product had better stay as it is."""
        matmul = _typical(matmul)
        if matmul not in self._known:
            plain = self._priced(matmul, None, _row_by_row(matmul))
            tiled = [self._priced(matmul, tile, _by_tiles(matmul, tile)) for tile in self.tiles]
            self._known[matmul] = preferred(plain, tiled, _MARGIN).replacement
        return self._known[matmul]

    def _priced(
        self, matmul: GroupedMatmul, tile: int | None, graph: Graph
    ) -> Alternative[GroupedMatmul, int | None]:
        """`graph` computes the product by tiles of so many rows."""
        return Alternative(matmul, tile, sum(s for _, s in priced_kernels(graph, self.planner)))


def _typical(matmul: GroupedMatmul) -> GroupedMatmul:
    """`matmul` with symbolic sizes as they are priced."""
    rows, matrices, index = (
        TensorType(type_.dtype, tuple(const(typical(dim)) for dim in type_.shape))
        for type_ in (matmul.rows, matmul.matrices, matmul.index)
    )
    return GroupedMatmul(rows, matrices, index, matmul.swapped)


def _row_by_row(matmul: GroupedMatmul) -> Graph:
    b = GraphBuilder("rows")
    rows, matrices, index = _operands(b, matmul)
    own = emit(b, "gather", matrices, index, axis=0)
    if matmul.swapped:
        rank = matmul.index.rank
        own = emit(b, "transpose", own, perm=(*range(rank), rank + 1, rank))
    return b.finish([emit(b, "matmul", rows, own)])


def _by_tiles(matmul: GroupedMatmul, tile: int) -> Graph:
    b = GraphBuilder("tiles")
    rows, matrices, index = _operands(b, matmul)
    grouping = Grouping(matmul.index, matmul.matrices.shape[0], tile)
    order = ordered(b, index, grouping)
    tiles = rows_to_tiles(b, order, rows, matmul.lead)
    made = tiled_matmul(b, order, tiles, matrices, matmul.swapped)
    shape = (*matmul.index.shape, made.type.shape[2])
    return b.finish([rows_of_tiles(b, order, made, shape)])


def _operands(b: GraphBuilder, matmul: GroupedMatmul) -> tuple[Value, Value, Value]:
    """Rows, matrices of contents that no price depends on, and an index tensor."""
    matrices = unread(b, matmul.matrices)
    return b.input("rows", matmul.rows), matrices, b.input("index", matmul.index)
