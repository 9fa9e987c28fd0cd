"""The axes of block kernels: which loops of a group's stages form an axis, and their lengths."""

from collections.abc import Iterable, Sequence
from math import prod

from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Cast, StageRef
from tcc.ir.index import Var, bounds, free_vars
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import BF16, F16, F32, FLOAT8, I8, I32
from tcc.known import all_known
from tcc.schedule.gpu.schedule import FLOAT8_NAME, BlockSchedule
from tcc.schedule.nest import Factors, in_scratch, multiplied, plain_factors, stride


def join(loops: Sequence[Var]) -> str:
    """Returns the name of the axis that `loops` form: their names joined by "+"."""
    return "+".join(v.name for v in loops)


def power(size: int) -> int:
    """Returns the smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def factors(stage: GroupStage) -> Factors | None:
    """Returns the factors of a contraction of floats or bytes, else None."""
    pair = plain_factors(stage)
    return pair if pair and stage.body[0].dtype.is_float else _of_bytes(stage)


def _of_bytes(stage: GroupStage) -> Factors | None:
    pair = multiplied(stage)
    if pair is None or not isinstance(pair.a, Cast) or not isinstance(pair.b, Cast):
        return None
    kind, accumulator = pair.a.arg.dtype, stage.body[0].dtype
    exact = accumulator is (F32 if kind in FLOAT8 else I32) and kind in (I8, *FLOAT8)
    return pair if exact and pair.b.arg.dtype is kind else None


def of_bytes(stage: GroupStage) -> bool:
    """Returns True for a contraction of signed bytes, or of floats of one byte."""
    return _of_bytes(stage) is not None


def matmul_type(stage: GroupStage) -> str:
    """Returns the name of the operands' type by which matrix units multiply a contraction.

    It is a 16-bit type if either operand has a 16-bit type. It is a type of one byte if the
    operands have it. Otherwise it is f32.
    """
    if of_bytes(stage):
        return I8.name if stage.body[0].dtype is I32 else FLOAT8_NAME
    types = [n.dtype for n in stage.accesses]
    return next((t.name for t in types if t in (BF16, F16)), F32.name)


def most_positions(loops: Sequence[Var]) -> int | None:
    """Returns the largest possible number of positions of an axis; None if it has no limit."""
    tops = all_known(bounds(extent(v))[1] for v in loops)
    return None if tops is None else prod(tops)


def schedule_of(
    blocks: Iterable[tuple[Sequence[Var], int]],
    parallel: Sequence[Sequence[Var]],
    warps: int = 4,
    stages: int = 2,
) -> BlockSchedule:
    """Returns a schedule; `blocks` yields pairs (loops of an axis, block size).

    If several pairs have the same loops, the first pair counts. Pairs with block size 1 or without
    loops are ignored. `parallel` has the loops of each axis of the grid. `stages` is the number of
    steps of loads in flight.
    """
    sizes: dict[str, int] = {}
    for loops, block in blocks:
        if loops and block > 1:
            sizes.setdefault(join(loops), block)
    names = tuple(join(loops) for loops in parallel if loops)
    return BlockSchedule(tuple(sizes.items()), names, warps, stages)


def own_axis(group: TileGroup, stage: GroupStage) -> list[Var]:
    """Returns the result loops of a stage that are neither loops of the grid nor the streaming
    loop, in the order in which the stage's values are stored."""
    loops = [v for v in stage.iters if v not in group.cut]
    return _along(loops, next(iter(in_scratch(group, stage.written)), None))


def reduced_axis(group: TileGroup, stage: GroupStage) -> list[Var]:
    """Returns the reduced loops of a stage without the streaming loop, in the order in which the
    values that the stage reads are stored."""
    loops = [v for v in stage.reduce if v not in group.cut]
    resident = (a for n, a in stage.accesses.items() if isinstance(n.source, StageRef))
    return _along(loops, next(resident, None))


def summed_in(group: TileGroup, steps: int) -> list[tuple[list[Var], int]]:
    """Returns a pair for each stage with reduced loops: these loops, and a block size of at most
    `steps`."""
    axes = []
    for stage in group.stages:
        loops = reduced_axis(group, stage)
        limit = most_positions(loops)
        axes.append((loops, steps if limit is None else min(steps, power(limit))))
    return axes


def reads_stages(stage: GroupStage) -> bool:
    """Returns True if a stage reduces values of another stage of its tile."""
    return any(
        isinstance(n.source, StageRef) and set(free_vars(a.offset)) & set(stage.reduce)
        for n, a in stage.accesses.items()
    )


def _along(loops: list[Var], access: Access | None) -> list[Var]:
    return loops if access is None else sorted(loops, key=lambda v: -(stride(access, v) or 0))
