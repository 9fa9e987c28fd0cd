"""Sorts rows by the matrices that data select for them, and copies them to tiles and back.

    matrix of each row    2 0 2 1 0 2        tiles of 2 rows     | 1 4 | 3 . | 0 2 | 5 . | . . |
                                             matrix of each tile    0     1     2     2     2

A group is the rows that select one matrix.  A place is a position in the tiles, which a row fills
or which stays empty (`.`).  The sort is a counting sort without writes to data-dependent places.
For each row, the earlier rows of its group are counted.  Each group begins at a tile of its own.
For each place, the row is found from the counts.  Rows keep their order inside a group, so results
are bitwise equal on every device.  With many rows, counts are computed chunk by chunk, so that no
row is compared with all other rows.
"""

from collections.abc import Sequence

from tcc.frozen import frozen
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, Source, cast, index_value, literal
from tcc.ir.index import Index, as_int, bounds, ceildiv, const, minimum
from tcc.ir.types import I32, TensorType, element_count
from tcc.ops.algebra.movement import delinearise, linearise
from tcc.ops.formula import aligned, choose, fn
from tcc.ops.operands import clamped, wrapped

# The rows of a chunk are compared in pairs, so a chunk has few: _CHUNK. Up to _MANY rows are a
# single chunk.
_CHUNK, _MANY = 256, 2048


@frozen
class Grouping:
    """The grouping of rows by an index tensor of type `index`.

    Its elements select among `matrices` matrices.  A tile has `tile` rows of one group.
    """

    index: TensorType
    matrices: Index
    tile: int

    @property
    def rows(self) -> Index:
        return element_count(self.index.shape)

    @property
    def tiles(self) -> Index:
        """The largest number of tiles that may be needed.

        The last tile of each group may be partly empty.
        """
        groups = minimum(self.matrices, self.rows)
        return (self.rows + groups * (self.tile - 1)) // self.tile

    @property
    def places(self) -> Index:
        return self.tiles * self.tile

    @property
    def chunk(self) -> Index:
        """The number of rows of a chunk, in which each row is compared with each other row."""
        largest = bounds(self.rows)[1]
        return self.rows if largest is not None and largest <= _MANY else const(_CHUNK)

    @property
    def chunks(self) -> Index:
        return ceildiv(self.rows, self.chunk)


def places(grouping: Grouping) -> Expr:
    """Returns the expression that sorts the rows of an index tensor, which it takes as a vector.

    Its results are i32:
    the place of each row in the tiles,
    the matrix of each tile,
    the first tile of each group,
    and [chunks, matrices]: the number of a group's rows up to the end of each chunk.
    """
    g = grouping
    b = ExprBuilder(TensorType(g.index.dtype, (g.rows,)))
    (r,) = b.iters(g.rows)
    group = b.stage((r,), cast(clamped(wrapped(b.read(0, r), g.matrices), g.matrices), I32))

    c, e, j = b.iters(g.chunks, g.matrices, g.chunk)
    here = fn("eq", b.read(group, c * g.chunk + j, fill=-1), e)
    through = b.sum((c, e), _one_if(here), over=(j,))
    if as_int(g.chunks) != 1:
        c, e, other = b.iters(g.chunks, g.matrices, g.chunks)
        earlier = choose(_less(other, c + 1), b.read(through, other, e), 0)
        through = b.sum((c, e), earlier, over=(other,))

    e, other = b.iters(g.matrices, g.matrices)
    filled = (b.read(through, g.chunks - 1, other) + (g.tile - 1)) / g.tile
    first = b.sum((e,), choose(_less(other, e), filled, 0), over=(other,))
    t, e = b.iters(g.tiles, g.matrices)
    begun = (b.read(first, e) <= t) & (b.read(through, g.chunks - 1, e) > 0)
    matrix = b.stage((t,), choose(begun, index_value(e, I32), 0), over=(e,), monoid="max")

    r, j = b.iters(g.rows, g.chunk)
    other = r // g.chunk * g.chunk + j
    in_same_group = fn("eq", b.read(group, other, fill=-1), b.read(group, r))
    rank = b.sum((r,), _one_if(_less(other, r) & in_same_group), over=(j,))
    (r,) = b.iters(g.rows)
    place = _of(b, g, first, b.read(group, r)) * g.tile + b.read(rank, r)
    if as_int(g.chunks) != 1:
        place = place + _of(b, g, through, b.read(group, r), r // g.chunk - 1)
    return b.done(b.stage((r,), place), matrix, first, through)


def rows(grouping: Grouping) -> Expr:
    """Returns the expression that computes, for each place in the tiles, the row at that place.

    Its operands are the results of `places`; its result is i32.  A place without a row gets an
    arbitrary row.
    """
    g = grouping
    b = ExprBuilder(
        TensorType(I32, (g.rows,)),
        TensorType(I32, (g.tiles,)),
        TensorType(I32, (g.matrices,)),
        TensorType(I32, (g.chunks, g.matrices)),
    )
    if as_int(g.chunks) == 1:
        p, r = b.iters(g.places, g.rows)
        names_place = fn("eq", b.read(0, r), p)
        return b.finish((p,), choose(names_place, index_value(r, I32), 0), over=(r,), monoid="max")
    p, c = b.iters(g.places, g.chunks)
    matrix = b.read(1, p // g.tile)
    number = index_value(p, I32) - _of(b, g, 2, matrix) * g.tile
    chunk = b.sum((p,), _one_if(_of(b, g, 3, matrix, c) <= number), over=(c,))
    p, j = b.iters(g.places, g.chunk)
    at = fn("min", b.read(chunk, p), g.chunks - 1)
    place = b.read(0, b.position(at, g.chunks) * g.chunk + j, fill=-1)
    return b.finish((p,), choose(fn("eq", place, p), at * g.chunk + j, 0), over=(j,), monoid="max")


def _of(b: ExprBuilder, g: Grouping, source: Source, matrix: Scalar, *before: Index) -> Scalar:
    """Returns the element of `source` at the indices `before` and, last, at the index `matrix`.

    Returns 0 if an index is out of range, as for the chunk before the first.
    """
    return b.read(source, *before, b.position(matrix, g.matrices), fill=0)


def _less(a: Index, b: Index) -> Scalar:
    return index_value(a, I32) < b


def _one_if(condition: Scalar) -> Scalar:
    return choose(condition, literal(1, I32), 0)


def to_tiles(grouping: Grouping, rows: TensorType, lead: Sequence[Index]) -> Expr:
    """Returns the expression that copies rows into tiles [tiles, tile, n].

    Its operands are the rows, and the row number of each place.  The axes of `rows` are `lead`,
    axes of length 1, and n.  `lead` broadcasts to the shape of the index tensor, so that several
    elements of that tensor can share a row.
    """
    b = ExprBuilder(rows, TensorType(I32, (grouping.places,)))
    t, i, n = b.iters(grouping.tiles, grouping.tile, element_count(rows.shape[len(lead) :]))
    row = b.position(b.read(1, t * grouping.tile + i), grouping.rows)
    at = aligned(lead, delinearise(row, grouping.index.shape))
    inner = delinearise(n, rows.shape[len(lead) :])
    return b.finish((t, i, n), b.read(0, *at, *inner))


def from_tiles(grouping: Grouping, tiles: TensorType, shape: Sequence[Index]) -> Expr:
    """Returns the expression that copies tiles back to rows, as a tensor of `shape`.

    Its operands are the tiles [tiles, tile, n], and the place of each row.
    """
    b = ExprBuilder(tiles, TensorType(I32, (grouping.rows,)))
    at = b.iters(*shape)
    linear, depth = linearise(at, shape), tiles.shape[2]
    place = b.position(b.read(1, linear // depth), grouping.places)
    return b.finish(at, b.read(0, place // grouping.tile, place % grouping.tile, linear % depth))
