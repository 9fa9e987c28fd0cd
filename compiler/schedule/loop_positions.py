"""Names of loops by position, so that the text of a schedule names no loop of an expression.

loops i, j, k of a group    ->    l0, l1, l2
the axis i+j on a GPU       ->    l0+l1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tcc.frozen import field_names
from tcc.ir.expr import known_extent
from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.gpu.schedule import BlockSchedule

_S = TypeVar("_S", Schedule, BlockSchedule)


def _loops(group: TileGroup) -> dict[str, int]:
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


def extents_of_loops(group: TileGroup) -> tuple[int, ...]:
    """Returns the extents of a group's loops by position, and 0 for a symbolic extent."""
    return tuple(_loops(group).values())


def check_loops(positions: tuple[int, ...], group: TileGroup) -> None:
    """Raises ValueError if the extents `positions` are not those of the group's loops."""
    extents = extents_of_loops(group)
    if positions != extents:
        raise ValueError(f"its loops have the extents {positions}, the kernel's {extents}")


def by_position(schedule: _S, group: TileGroup) -> _S:
    """Returns a schedule of `group` with loops named by position."""
    renamed: _S = _renamed(schedule, {name: f"l{n}" for n, name in enumerate(_loops(group))})
    return renamed


def by_name(schedule: _S, group: TileGroup) -> _S:
    """Returns a schedule with the loops of `group`; the inverse of `by_position`.

    Raises ValueError for a loop that the group does not have.
    """
    renamed: _S = _renamed(schedule, {f"l{n}": name for n, name in enumerate(_loops(group))})
    return renamed


def _renamed(item: Any, names: Mapping[str, str]) -> Any:
    """Returns a schedule, or a part of one, with its loops renamed by `names`.

    Each string in a schedule is a loop, or the loops of an axis joined by `+`.
    """
    match item:
        case str():
            return "+".join(_name(loop, names) for loop in item.split("+"))
        case tuple():
            return tuple(_renamed(part, names) for part in item)
    parts = {field: _renamed(getattr(item, field), names) for field in field_names(item)}
    return replace(item, **parts) if parts else item


def _name(loop: str, names: Mapping[str, str]) -> str:
    if loop not in names:
        raise ValueError(f"there is no loop {loop[:40]!r}: the kernel has {', '.join(names)}")
    return names[loop]
