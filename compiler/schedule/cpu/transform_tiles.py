"""Tiles of a contraction between two transforms: the first expands each point to many elements, the
second combines these elements again.

    v[p, t, c] = f(p; x[t, c])                             p: 36 elements of a point
    m[p, t, k] = sum(c) v[p, t, c] * u[p, c, k]
    y[t, k] = g(m[0, t, k], ..., m[35, t, k])

The exchanged values v and m are several times as large as x and y, and a tile holds them for its
rows t. If the weights u also fit the second-level cache, a tile has few rows. Else each tile reads
the weights from beyond that cache. Then a tile has many rows, so that the weights take little time
compared with v and m.
"""

from collections.abc import Mapping, Sequence
from math import prod

from tcc.ir.index import Var, as_int
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import constant_bytes, in_scratch

# The fraction of the second-level cache that a tile's values may fill. _NEAR: if the weights stay
# there too. _FAR: if they do not.
_NEAR = 0.25
_FAR = 0.9


def spreads(group: TileGroup) -> bool:
    """Returns True if the group has a transform: a stage with several components, all of which a
    tile holds in one scratch buffer, such as v[p, t, c] above for all p."""
    return any(len(_local(group, s)) == 1 < len(s.body) for s in group.stages)


def resident_rows(
    group: TileGroup,
    main: GroupStage,
    rows: Sequence[Var],
    tiles: Mapping[Var, int],
    core: CoreModel,
) -> int:
    """Returns the number of rows of a tile with which the exchanged values fit the second-level
    cache.

    `main` is the contraction. `tiles` has the elements of a tile along loops other than `rows`.
    """
    resident = 0
    for stage in group.stages:
        other_loops = [v for v in group.common if v in stage.iters and v not in rows]
        for number in _local(group, stage):
            buffer = group.buffers[number]
            size = as_int(buffer.size) or 0
            resident += size * buffer.dtype.bytes * prod(tiles.get(v, 1) for v in other_loops)
    room = int(core.l2 * _NEAR)
    if weight_bytes(group, main) + room > core.l2:
        room = int(core.l2 * _FAR)
    return max(1, room // max(1, resident))


def weight_bytes(group: TileGroup, stage: GroupStage) -> int:
    """Returns the bytes of the constants that a stage reads."""
    numbers = dict.fromkeys(a.buffer for a in stage.accesses.values())
    return constant_bytes(group.buffers[n] for n in numbers)


def _local(group: TileGroup, stage: GroupStage) -> tuple[int, ...]:
    """Returns the scratch buffers, by number, in which a tile holds a stage's results."""
    return tuple(dict.fromkeys(a.buffer for a in in_scratch(group, stage.written)))
