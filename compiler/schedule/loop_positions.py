"""Names of loops by position, so that the text of a schedule names no loop of an expression.

loops i, j, k of a group    ->    l0, l1, l2
the axis i+j on a GPU       ->    l0+l1
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tcc.ir.expr import known_extent
from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.gpu.schedule import BlockSchedule


def loop_extents(group: TileGroup) -> dict[str, int]:
    """Returns the extents of a group's loops by name, and 0 for a symbolic extent.

    The loops are in the order of their positions: common loops, the streaming loop, then the other
    loops of each stage.
    """
    stream = () if group.stream is None else (group.stream.loop,)
    stage_loops = [v for stage in group.stages for v in stage.loops]
    extents: dict[str, int] = {}
    for loop in (*group.common, *stream, *stage_loops):
        extents.setdefault(loop.name, known_extent(loop) or 0)
    return extents


def check_loops(positions: Sequence[int], group: TileGroup) -> None:
    """Raises ValueError if the extents `positions` are not those of the group's loops."""
    extents = tuple(loop_extents(group).values())
    if tuple(positions) != extents:
        raise ValueError(f"its loops have the extents {tuple(positions)}, the kernel's {extents}")


def by_position(schedule: Schedule, group: TileGroup) -> Schedule:
    """Returns a CPU schedule of `group` with loops named by position."""
    return _renamed(schedule, _positions(group))


def by_name(schedule: Schedule, group: TileGroup) -> Schedule:
    """Returns a CPU schedule with the loops of `group`; the inverse of `by_position`.

    Raises ValueError for a loop that the group does not have.
    """
    return _renamed(schedule, _names(group))


def blocks_by_position(schedule: BlockSchedule, group: TileGroup) -> BlockSchedule:
    """Returns a GPU schedule of `group` with loops named by position."""
    return _renamed_blocks(schedule, _positions(group))


def blocks_by_name(schedule: BlockSchedule, group: TileGroup) -> BlockSchedule:
    """Returns a GPU schedule with the loops of `group`; the inverse of `blocks_by_position`.

    Raises ValueError for a loop that the group does not have.
    """
    return _renamed_blocks(schedule, _names(group))


def _positions(group: TileGroup) -> Callable[[str], str]:
    positions = {name: f"l{n}" for n, name in enumerate(loop_extents(group))}
    return positions.__getitem__


def _names(group: TileGroup) -> Callable[[str], str]:
    names = {f"l{n}": name for n, name in enumerate(loop_extents(group))}
    return lambda position: _name(position, names)


def _name(position: str, names: Mapping[str, str]) -> str:
    if position not in names:
        raise ValueError(f"there is no loop {position[:40]!r}: the kernel has {', '.join(names)}")
    return names[position]


def _renamed(schedule: Schedule, name: Callable[[str], str]) -> Schedule:
    return replace(
        schedule,
        tile_sizes=_sizes(schedule.tile_sizes, name),
        parallel=tuple(map(name, schedule.parallel)),
        nests=tuple(_renamed_nest(nest, name) for nest in schedule.nests),
    )


def _renamed_nest(nest: Nest, name: Callable[[str], str]) -> Nest:
    vectors = nest.vectors
    if vectors is not None and vectors.rows is not None:
        vectors = replace(vectors, rows=name(vectors.rows))
    return replace(
        nest,
        order=tuple(map(name, nest.order)),
        blocks=_sizes(nest.blocks, name),
        vector=None if nest.vector is None else name(nest.vector),
        k_blocks=_sizes(nest.k_blocks, name),
        vectors=vectors,
    )


def _renamed_blocks(schedule: BlockSchedule, name: Callable[[str], str]) -> BlockSchedule:
    def axis(names: str) -> str:
        return "+".join(map(name, names.split("+")))

    return replace(
        schedule, blocks=_sizes(schedule.blocks, axis), parallel=tuple(map(axis, schedule.parallel))
    )


def _sizes(
    pairs: tuple[tuple[str, int], ...], name: Callable[[str], str]
) -> tuple[tuple[str, int], ...]:
    return tuple((name(loop), size) for loop, size in pairs)
