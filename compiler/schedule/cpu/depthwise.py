"""Tiles of stages that slide a small window over an operand, in each lane by itself: depthwise
convolutions and pooling.

    y[h, w, c] = sum(p, q)  x[h + p, w + q, c] * f[p, q, c]

Windows of neighbouring results in a row share columns of x, and windows of neighbouring rows share
all but one row. A tile covers a strip of rows that is narrow enough for the rows under a window to
stay in the first-level cache until the next row of results. A wider strip would fetch each row
again for every row of the window.
"""

from collections.abc import Mapping

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, Vars, linear_in
from tcc.ir.tile.group import Access, GroupStage
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import is_open, stride, tile_count, trips, typical

# The rows of a tile that lie under a window have at most this many bytes: half of a first-level
# cache. The other half is for results.
NEAR = 24 << 10
# At least about this many tiles for each core, so that the cores share the tiles evenly.
FEW = 8
# If a size is symbolic, a tile has STRIP rows, and at least WIDE register blocks side by side along
# its columns. Tiles of fewer rows or columns read a larger share of x twice, at their borders.
STRIP, WIDE = 4, 2


def window_tiles(
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    common: Vars,
    core: CoreModel,
) -> dict[Var, int]:
    """Returns the elements of a tile along the two loops along which a window slides.

    If the size of one of them is symbolic, the dict also has the vector loop. It is empty if a
    window slides along fewer than two loops.
    """
    for access in stage.accesses.values():
        slides = _slides(access, stage, vector, common)
        if vector is None or len(slides) < 2:
            continue
        (rows, tall, _), (row, wide, along) = slides[-2:]
        block = blocks.get(row, 1)
        lanes = blocks.get(vector, 1)
        column = tall * lanes * stage.body[0].dtype.bytes
        narrowest = WIDE * block * along + wide - along
        is_symbolic = is_open(rows) or is_open(row)
        parts = _parts(vector, blocks, NEAR // (column * narrowest)) if is_symbolic else 1
        column *= parts
        widest = (NEAR // column - wide + along) // along // block * block
        if is_symbolic:
            return {rows: STRIP, row: max(widest, block), vector: parts * lanes}
        count = -(-trips(row) // max(widest, block))
        even = -(-trips(row) // count)
        width = -(-even // block) * block
        other_loops = [v for v in common if v is not rows and v is not row]
        tiles = tile_count(other_loops, blocks) * -(-trips(row) // width)
        parts = min(trips(rows), -(-FEW * core.cores // tiles))
        return {rows: -(-trips(rows) // parts), row: min(width, trips(row))}
    return {}


def _parts(vector: Var, blocks: Mapping[Var, int], limit: int) -> int:
    """Returns how many register blocks a tile covers along the vector loop: at most `limit`, but at
    least one.

    All tiles cover about equally many blocks. It is more than one where possible, because
    neighbouring blocks read neighbouring cache lines.
    """
    count = -(-(known_extent(vector) or 1) // blocks.get(vector, 1))
    return -(-count // -(-count // max(limit, 1)))


def _slides(
    access: Access, stage: GroupStage, vector: Var | None, common: Vars
) -> list[tuple[Var, int, int]]:
    """Returns the loops along which windows of neighbouring results overlap in an operand.

    The operand varies with the lanes. Each tuple is (loop, size, distance). A window reads `size`
    elements of the operand along the loop, and the windows of neighbouring results begin `distance`
    elements apart. The loop with the largest step in memory comes first.
    """
    if vector is None or vector not in common or stride(access, vector) != 1:
        return []
    slides: list[tuple[int, Var, int, int]] = []
    for var in common:
        step = _step(access, var)
        if var is vector or var not in stage.iters or not step:
            continue
        for inner in stage.reduce:
            tap_step = _step(access, inner)
            if tap_step and step % tap_step == 0 and step // tap_step < trips(inner):
                slides.append((step, var, trips(inner), step // tap_step))
    slides.sort(key=lambda f: -f[0])
    return [f[1:] for f in slides]


def _step(access: Access, var: Var) -> int:
    """Returns the distance in elements between neighbours along a loop, at typical sizes.

    The distance is 0 if it is not the same for all neighbours.
    """
    linear = linear_in(access.offset, var)
    return 0 if linear is None else typical(linear[0])
