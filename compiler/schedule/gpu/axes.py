"""The axes that the loops of a group's stages make in block kernels, and how long they are."""

from collections.abc import Iterable, Sequence
from math import prod

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Cast, StageRef
from tcc.ir.index import Var, bounds, free_vars
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import F32, FLOAT8, I8, I32
from tcc.known import all_known
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.nest import Factors, contraction_factors, in_scratch, multiplied, stride


def join(loops: Sequence[Var]) -> str:
    """The name of the axis of `loops`."""
    return "+".join(v.name for v in loops)


def power(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(0, size - 1).bit_length()


def factors(stage: GroupStage) -> Factors | None:
    """The factors of a sum of products, where they are floats or bytes."""
    found = contraction_factors(stage)
    return found if found and stage.body[0].dtype.is_float else _of_bytes(stage)


def _of_bytes(stage: GroupStage) -> Factors | None:
    found = multiplied(stage)
    if found is None or not isinstance(found.a, Cast) or not isinstance(found.b, Cast):
        return None
    kind, wide = found.a.arg.dtype, stage.body[0].dtype
    exact = wide is (F32 if kind in FLOAT8 else I32) and kind in (I8, *FLOAT8)
    return found if exact and found.b.arg.dtype is kind else None


def of_bytes(stage: GroupStage) -> bool:
    """Whether a stage sums products of signed bytes, or of floats of a byte."""
    return _of_bytes(stage) is not None


def most_positions(loops: Sequence[Var]) -> int | None:
    """The most positions of an axis; None where they are open."""
    tops = all_known(bounds(extent(v))[1] for v in loops)
    return None if tops is None else prod(tops)


def schedule_of(
    blocks: Iterable[tuple[Sequence[Var], int]],
    parallel: Sequence[Sequence[Var]],
    warps: int = 4,
    stages: int = 2,
) -> BlockSchedule:
    """Loops as axes, each in the first of its `blocks`; loops in blocks of one are none."""
    found: dict[str, int] = {}
    for loops, block in blocks:
        if loops and block > 1:
            found.setdefault(join(loops), block)
    names = tuple(join(loops) for loops in parallel if loops)
    return BlockSchedule(tuple(found.items()), names, warps, stages)


def own_axis(group: TileGroup, stage: GroupStage) -> list[Var]:
    """A stage's loops that neither all stages nor a streaming loop share, as what it holds lies."""
    own = [v for v in stage.iters if v not in group.cut]
    return _along(own, next(iter(in_scratch(group, stage.written)), None))


def reduced_axis(group: TileGroup, stage: GroupStage) -> list[Var]:
    """A stage's reduced loops but a streaming loop's, as what it reads of other stages lies."""
    loops = [v for v in stage.reduce if v not in group.cut]
    resident = (a for n, a in stage.accesses.items() if isinstance(n.source, StageRef))
    return _along(loops, next(resident, None))


def summed_in(group: TileGroup, steps: int) -> list[tuple[list[Var], int]]:
    """What each stage reduces along, in blocks of so many positions at most."""
    found = []
    for stage in group.stages:
        loops = reduced_axis(group, stage)
        limit = most_positions(loops)
        found.append((loops, steps if limit is None else min(steps, power(limit))))
    return found


def reads_stages(stage: GroupStage) -> bool:
    """Whether a stage reduces what another one holds."""
    return any(
        isinstance(n.source, StageRef) and set(free_vars(a.offset)) & set(stage.reduce)
        for n, a in stage.accesses.items()
    )


def _along(loops: list[Var], access: Access | None) -> list[Var]:
    return loops if access is None else sorted(loops, key=lambda v: -(stride(access, v) or 0))
