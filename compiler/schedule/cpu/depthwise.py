"""Units of stages that slide a small window over an operand, every lane for itself: depthwise
convolutions and pooling.

    y[h, w, c] = sum(p, q)  x[h + p, w + q, c] * f[p, q, c]

Neighbours in a row share columns of x, and neighbouring rows share all but one of its rows.  A unit
walks a strip of rows, so narrow that the rows a window covers stay in the first-level cache from
one row of results to the next; else each is fetched again for every row of the window.
"""

from collections.abc import Mapping
from math import prod

from tcc.ir.expr import known_extent
from tcc.ir.index import Var, Vars, linear_in
from tcc.ir.tile.group import Access, GroupStage
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import stride, trips, typical

# Bytes of the rows under a window: half of a first-level cache, the rest is for what is written.
NEAR = 24 << 10
# Units for each core: enough to share them evenly.
FEW = 8
# Rows of a unit, and blocks of columns at least, where there may be any number of either: units
# beside it read those at its border again.
STRIP, WIDE = 4, 2


def window_units(
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    common: Vars,
    registers: CoreModel,
) -> dict[Var, int]:
    """Elements of the two loops along which a window slides that a unit covers; empty where there
    are no two such loops."""
    for access in stage.accesses.values():
        slides = _slides(access, stage, vector, common)
        if vector is None or len(slides) < 2:
            continue
        (rows, tall, _), (row, wide, along) = slides[-2:]
        block = blocks.get(row, 1)
        lanes = blocks.get(vector, 1)
        column = tall * lanes * stage.body[0].dtype.bytes
        least = WIDE * block * along + wide - along
        is_open = known_extent(rows) is None or known_extent(row) is None
        parts = _parts(vector, blocks, NEAR // (column * least)) if is_open else 1
        column *= parts
        most = (NEAR // column - wide + along) // along // block * block
        if is_open:
            return {rows: STRIP, row: max(most, block), vector: parts * lanes}
        count = -(-trips(row) // max(most, block))
        even = -(-trips(row) // count)
        width = -(-even // block) * block
        others = [v for v in common if v is not rows and v is not row]
        units = prod(-(-trips(v) // blocks.get(v, 1)) for v in others) * -(-trips(row) // width)
        parts = min(trips(rows), -(-FEW * registers.cores // units))
        return {rows: -(-trips(rows) // parts), row: min(width, trips(row))}
    return {}


def _parts(vector: Var, blocks: Mapping[Var, int], most: int) -> int:
    """Blocks of lanes of a unit, at most about `most`, each unit as many: lines of all lanes follow
    each other in memory."""
    count = -(-(known_extent(vector) or 1) // blocks.get(vector, 1))
    return -(-count // -(-count // max(most, 1)))


def _slides(
    access: Access, stage: GroupStage, vector: Var | None, common: Vars
) -> list[tuple[Var, int, int]]:
    """The loops along which neighbours of the result share elements of an operand that differs from
    lane to lane: each with the window's steps along it, and how many of them neighbours are apart;
    the longest stride first."""
    if vector is None or vector not in common or stride(access, vector) != 1:
        return []
    found: list[tuple[int, Var, int, int]] = []
    for var in common:
        step = _step(access, var)
        if var is vector or var not in stage.iters or not step:
            continue
        for inner in stage.reduce:
            own = _step(access, inner)
            if own and step % own == 0 and step // own < trips(inner):
                found.append((step, var, trips(inner), step // own))
    found.sort(key=lambda f: -f[0])
    return [f[1:] for f in found]


def _step(access: Access, var: Var) -> int:
    """Elements between neighbours along a loop, at typical sizes; 0 if irregular."""
    linear = linear_in(access.offset, var)
    return 0 if linear is None else typical(linear[0])
