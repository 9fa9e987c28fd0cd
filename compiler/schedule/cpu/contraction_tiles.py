"""Tiles of a contraction: the rows that a tile covers, and the order in which tiles run.

128 rows, 8 panels, 2 cores    ->    tiles of 128 rows and one panel, 4 tiles for each core
"""

from collections.abc import Mapping, Sequence
from math import prod

from tcc.ir.expr import extent
from tcc.ir.index import Var, Vars, as_int, divisor_of
from tcc.ir.tile.group import GroupBuffer, GroupStage, TileGroup
from tcc.schedule.cpu.contraction import ContractionLoops, fair, most_rows, panel_of, parts_of
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.vectors import lanes_of
from tcc.schedule.nest import depends, is_open, points, tile_count, trips

# The fewest rows that use a panel for as long as it takes to fetch the next panel.
ENOUGH = 32


def row_tiles(
    common: Vars,
    contraction: ContractionLoops,
    core: CoreModel,
    row_limit: int,
    other_tiles: Mapping[Var, int],
    blocks: Mapping[Var, int],
    *,
    bounded: bool,
) -> dict[Var, int]:
    """Returns the elements of a tile along each row loop: about `row_limit` rows in all (no more if
    `bounded`).

    If there are few tiles, they get a size with which every core has the same number of tiles.
    `other_tiles` has the elements of a tile along other loops. Along a symbolic loop, a tile has
    whole register blocks (`blocks`). If the loops inside a symbolic loop have enough rows, a tile
    has one element along the symbolic loop, because it may have a single trip.
    """
    rows = [v for v in contraction.rows if v in common]
    counts = _counts(rows)
    row_count = prod(counts.values())
    covered = {**other_tiles, contraction.vector: panel_of(contraction, core)}
    other_count = tile_count((v for v in common if v not in rows), covered)
    pieces = parts_of(other_count, row_count, core, row_limit)
    remaining = -(-row_count // pieces)
    tiles: dict[Var, int] = {}
    for var in reversed(rows):
        size = counts[var]
        core.because("tile_sizes: rows that share a panel", None, var)
        tiles[var] = max(1, min(size, remaining))
        if is_open(var):
            even = _even(size, tiles[var], row_limit)
            tiles[var] = even if fair(other_count * -(-trips(var) // even), core) else tiles[var]
            if (tall := _tall(contraction, core) or tiles[var]) < tiles[var]:
                core.because("tile_sizes: knob tall, by price", None, var)
                tiles[var] = tall
            tiles[var] = _in_blocks(tiles[var], blocks.get(var, 1), row_limit)
        above = -(-remaining // size) if remaining >= size else 1
        over = bounded and above * prod(tiles.values()) > row_limit
        remaining = max(1, remaining // max(size, tiles[var])) if over else above
    return tiles


def _tall(contraction: ContractionLoops, core: CoreModel) -> int | None:
    """Returns the most rows that the knob `tall` allows in a tile along a symbolic loop; None
    without a limit."""
    blocks = core.knobs.tall
    vectors = -(-panel_of(contraction, core) // lanes_of(contraction.stage, core))
    return blocks and blocks * most_rows(vectors, core)


def _in_blocks(rows: int, block: int, row_limit: int) -> int:
    """Returns about `rows`, at most `row_limit`.

    Every tile of a symbolic loop is cut into equal register blocks of `block` rows. If the last
    block would lack a tenth of all rows or more, `rows` is rounded to whole blocks. Measured on Zen
    5: a block of four rows out of six takes 0.7 of the time of a whole one.
    """
    above = -(-rows // block) * block
    if rows == 1 or 10 * rows >= 9 * above:
        return rows
    return above if above <= row_limit else max(rows // block * block, min(rows, block))


def _counts(rows: Sequence[Var]) -> dict[Var, int]:
    """Returns the number of trips with which each row loop enters the choice of a tile.

    For a symbolic loop, this is a known divisor of its size, or 1 if the loops inside it have
    enough rows.
    """
    counts: dict[Var, int] = {}
    for var in reversed(rows):
        few = prod(counts.values()) < ENOUGH
        certain = divisor_of(extent(var))
        if is_open(var) and certain >= ENOUGH:
            counts[var] = certain  # the size is a multiple of this number, and may equal it
        else:
            counts[var] = trips(var) if few or not is_open(var) else 1
    return counts


def _even(size: int, rows: int, row_limit: int) -> int:
    """Returns a divisor of `size` near `rows`, or `rows` if no divisor is near.

    Tiles of that many rows divide each multiple of `size` too.
    """
    above = next(n for n in range(rows, size + 1) if size % n == 0)
    below = next(n for n in range(rows, 0, -1) if size % n == 0)
    return next(
        (n for n in (above, below) if rows <= 2 * n and n <= min(row_limit, 2 * rows)), rows
    )


def panels_outer(
    group: TileGroup,
    contraction: ContractionLoops,
    tiles: Mapping[Var, int],
    core: CoreModel,
) -> bool:
    """Returns True if the grid should run over panels outside and rows inside, False for the
    reverse.

    The order that moves fewer bytes from beyond the second-level cache is better.
    """
    stage = contraction.stage
    size = stage.body[0].dtype.bytes
    vector_bytes = footprint(group, stage, contraction.vector_factor) * size
    row_bytes = footprint(group, stage, contraction.row_factor) * size
    panels = tile_count((contraction.vector,), tiles)
    parts = tile_count((v for v in group.common if v not in contraction.vector_factor), tiles)
    panel = vector_bytes // panels
    outer = vector_bytes * (1 if panel <= core.l2 else parts) + row_bytes * (
        1 if row_bytes <= core.l2 else panels
    )
    inner = row_bytes + vector_bytes * (1 if vector_bytes <= core.l2 else parts)
    if outer != inner:
        return outer < inner
    # Both orders move equally many bytes. With rows outside, each core has a part of the rows, and
    # reads the whole vector operand. With panels outside, each core has a part of the panels, reads
    # the whole row operand, and stores parts of all rows. So panels are outside only if the vector
    # operand is larger than the row operand and the results together.
    return vector_bytes > row_bytes + points(stage.iters) * size


def footprint(group: TileGroup, stage: GroupStage, loops: frozenset[Var]) -> int:
    """Returns the number of stored elements of the factor that varies with `loops`."""
    sizes = (as_int(b.size) for b in _buffers_read(group, stage, loops))
    return sum(points(loops) if size is None else size for size in sizes)


def is_constant(group: TileGroup, stage: GroupStage, loops: frozenset[Var]) -> bool:
    """Returns True if the factor that varies with `loops` reads only constants."""
    return all(b.constant for b in _buffers_read(group, stage, loops))


def _buffers_read(group: TileGroup, stage: GroupStage, loops: frozenset[Var]) -> list[GroupBuffer]:
    """Returns the buffers of the reads that depend on no loop outside of `loops`."""
    return [
        group.buffers[access.buffer]
        for node, access in stage.accesses.items()
        if depends(stage, node) <= loops
    ]
