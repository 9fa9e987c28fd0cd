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
from tcc.ir.index import Var, Vars
from tcc.ir.tile.group import Access, GroupStage
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import stride, trips

# Bytes of the rows under a window: half of a first-level cache, the rest is for what is written.
NEAR = 24 << 10
# Units for each core: enough to share them evenly.
FEW = 8


def window_units(
    stage: GroupStage,
    vector: Var | None,
    blocks: Mapping[Var, int],
    common: Vars,
    registers: CoreModel,
) -> dict[Var, int]:
    """Elements of the two loops along which a window slides that a unit covers; empty where there
    are no two such loops of known size."""
    for access in stage.accesses.values():
        slides = _slides(access, stage, vector, common)
        if len(slides) < 2:
            continue
        (rows, tall, _), (row, wide, along) = slides[-2:]
        block = blocks.get(row, 1)
        bytes_ = blocks.get(vector, 1) * stage.body[0].dtype.bytes if vector is not None else 0
        column = tall * bytes_
        most = (NEAR // column - wide + along) // along // block * block
        count = -(-trips(row) // max(most, block))
        even = -(-trips(row) // count)
        width = -(-even // block) * block
        others = [v for v in common if v is not rows and v is not row]
        units = prod(-(-trips(v) // blocks.get(v, 1)) for v in others) * -(-trips(row) // width)
        parts = min(trips(rows), -(-FEW * registers.cores // units))
        return {rows: -(-trips(rows) // parts), row: min(width, trips(row))}
    return {}


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
        step = stride(access, var)
        if var is vector or var not in stage.iters or not step or known_extent(var) is None:
            continue
        for inner in stage.reduce:
            own = stride(access, inner)
            if own and step % own == 0 and step // own < trips(inner):
                found.append((step, var, trips(inner), step // own))
    found.sort(key=lambda f: -f[0])
    return [f[1:] for f in found]
