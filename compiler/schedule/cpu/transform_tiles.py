"""Units of a product between stages that spread each point over many elements, and gather them.

    v[p, t, c] = f(p; x[t, c])                             p: 36 elements of a point
    m[p, t, k] = sum(c) v[p, t, c] * u[p, c, k]
    y[t, k] = g(m[0, t, k], ..., m[35, t, k])

What such stages exchange is several times what they read and write, and a unit holds it for its
rows t.  Where the weights u fit the second-level cache beside it, a unit is small; else each unit
reads the weights from afar, which has to be little beside moving what it holds there and back.
"""

from collections.abc import Mapping, Sequence
from math import prod

from tcc.ir.index import Var, as_int
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import in_scratch

# Parts of the second-level cache that a unit holds where the weights stay there too, and where they
# do not.
_NEAR = 0.25
_FAR = 0.9


def spreads(group: TileGroup) -> bool:
    """Whether the bodies of a stage are elements of one value that a unit holds."""
    return any(len(_local(group, s)) == 1 < len(s.body) for s in group.stages)


def resident_rows(
    group: TileGroup,
    main: GroupStage,
    rows: Sequence[Var],
    units: Mapping[Var, int],
    registers: CoreModel,
) -> int:
    """Rows of a unit: those of which it holds what its stages exchange."""
    resident = 0
    for stage in group.stages:
        others = [v for v in group.common if v in stage.iters and v not in rows]
        for number in _local(group, stage):
            buffer = group.buffers[number]
            size = as_int(buffer.size) or 0
            resident += size * buffer.dtype.bytes * prod(units.get(v, 1) for v in others)
    room = int(registers.l2 * _NEAR)
    if constant_bytes(group, main) + room > registers.l2:
        room = int(registers.l2 * _FAR)
    return max(1, room // max(1, resident))


def constant_bytes(group: TileGroup, stage: GroupStage) -> int:
    """Bytes of the constants that a stage reads."""
    numbers = dict.fromkeys(a.buffer for a in stage.accesses.values())
    constants = [group.buffers[n] for n in numbers if group.buffers[n].constant]
    return sum((as_int(b.size) or 0) * b.dtype.bytes for b in constants)


def _local(group: TileGroup, stage: GroupStage) -> tuple[int, ...]:
    """The buffers in which a unit holds a stage."""
    return tuple(dict.fromkeys(a.buffer for a in in_scratch(group, stage.written)))
