"""The text of a CPU kernel's whole choice: its form, its knobs and its schedule.

CoreKernel(lanes=16, registers=32, loops=(6, 64, 32), form=Form(), knobs=Knobs(panel=2),
           schedule=Schedule(tile_sizes=((l0, 6)), parallel=(l0, l2), nests=(...)))

Rules choose a schedule from `Knobs`, so a later version may choose another one. The text has the
schedule itself, so that every version makes the same kernel of it. Loops are named by position
(`tcc.schedule.loop_positions`). The text may come from a file, so `check` refuses a choice that
does not fit a kernel.
"""

from collections.abc import Sequence
from math import prod

from tcc.frozen import frozen
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.choice_text import read_object
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.schedule import Nest, Schedule, TailVectors
from tcc.schedule.limits import Form
from tcc.schedule.loop_positions import check_loops
from tcc.schedule.nest import contracts

# Larger tiles and K-blocks than these have no use, and sizes of blocks stay small integers.
_LARGEST = 1 << 31


@frozen
class CoreKernel:
    """A kernel's form, knobs and schedule, for vectors of `lanes` f32 in `registers` registers.

    `loops` has the extent of each loop by position; 0 is a symbolic extent. `packing` is the
    schedule for which constants are packed, if it is not `schedule`.
    """

    lanes: int
    registers: int
    loops: tuple[int, ...]
    form: Form
    knobs: Knobs
    schedule: Schedule
    packing: Schedule | None = None


def read_kernel(text: str, core: CoreModel) -> CoreKernel:
    """Returns the choice of a text.

    Raises ValueError for a text of something else, and for a choice for other vectors.
    """
    kernel = read_object(text, CoreKernel, Form, Knobs, Schedule, Nest, TailVectors)
    if (kernel.lanes, kernel.registers) != (core.lanes, core.count):
        raise ValueError(
            f"it is for {kernel.registers} vectors of {kernel.lanes} f32, and the processor has "
            f"{core.count} of {core.lanes}"
        )
    return kernel


def check(kernel: CoreKernel, schedule: Schedule, group: TileGroup, core: CoreModel) -> None:
    """Raises ValueError if `schedule`, which names loops of `group`, does not fit the group.

    A schedule fits if it has each stage once, only loops of the stages that it blocks, and register
    blocks that fit the registers.
    """
    check_loops(kernel.loops, group)
    check_stages(schedule, group)
    common = {v.name for v in group.common}
    _check_names(schedule.parallel, common, "parallel")
    _check_sizes(schedule.tile_sizes, common, "tile_sizes")
    if (schedule.stream_block > 0) != (group.stream is not None):
        raise ValueError("stream_block is for kernels with a streaming loop")
    if not 0 <= schedule.stream_block <= _LARGEST:
        raise ValueError(f"stream_block has no size {schedule.stream_block}")
    for nest in schedule.nests:
        _check_nest(nest, group, core)


def check_stages(schedule: Schedule, group: TileGroup) -> None:
    """Raises ValueError unless the nests of `schedule` have each stage of `group` once."""
    numbers = [n for nest in schedule.nests for n in nest.all_stages]
    if sorted(numbers) != [*range(len(group.stages))]:
        raise ValueError(f"its nests have the stages {numbers}, of {len(group.stages)}")


def _check_nest(nest: Nest, group: TileGroup, core: CoreModel) -> None:
    stages = [group.stages[n] for n in nest.all_stages]
    loops = {v.name for stage in stages for v in stage.loops}
    reduced = {v.name for stage in stages for v in stage.reduce}
    _check_names(nest.order, loops, "order")
    _check_sizes(nest.blocks, loops, "blocks")
    _check_sizes(nest.k_blocks, reduced & {*nest.order}, "k_blocks")
    if nest.vector is not None:
        _check_names((nest.vector,), loops, "vector")
    if nest.vectors is not None:
        _check_tail(nest, loops, core)
    if nest.ahead not in range(4):
        raise ValueError(f"ahead is no cache level: {nest.ahead}")
    for stage in stages:
        needed = registers_of(stage, nest, core)
        if needed > core.count:
            raise ValueError(f"its blocks take {needed} registers, of {core.count}")


def _check_tail(nest: Nest, loops: set[str], core: CoreModel) -> None:
    vectors = nest.vectors
    assert vectors is not None
    if vectors.lanes <= 0 or vectors.lanes % core.lanes:
        raise ValueError(f"vectors have {core.lanes} lanes or a multiple, not {vectors.lanes}")
    if nest.vector is None or nest.block(nest.vector) % vectors.lanes:
        raise ValueError("vectors are parts of the block along the vector loop")
    if vectors.rows is not None:
        _check_names((vectors.rows,), loops, "rows")


def registers_of(stage: GroupStage, nest: Nest, core: CoreModel) -> int:
    """Returns how many vector registers a register block of a stage takes.

    A contraction takes one for each accumulator, a step of its vector operand and a value of the
    other operand. Any other stage takes one for each vector of its block, because a block of a
    result is computed at once.
    """
    blocks = {v.name: nest.block(v.name) for v in stage.iters}
    across = blocks.pop(nest.vector or "", 1)
    vectors, rows = -(-across // core.lanes), prod(blocks.values())
    if contracts(stage) and stage.reduce:
        return rows * vectors + vectors + 1
    return rows * vectors


def _check_names(names: Sequence[str], loops: set[str], field: str) -> None:
    if len({*names}) != len(names) or not loops.issuperset(names):
        raise ValueError(f"{field} names a loop twice, or a loop that it does not have")


def _check_sizes(pairs: Sequence[tuple[str, int]], loops: set[str], field: str) -> None:
    _check_names([name for name, _ in pairs], loops, field)
    for _, size in pairs:
        if not 0 < size <= _LARGEST:
            raise ValueError(f"{field} has no size {size}")
