"""Plans block kernels: as `plan_kernels` does for cores, for GPUs.

    conv with w constant [64, 32, 3, 3]   ->   w stored as [3, 3, 32, 64]: lanes along the result's
                                               channels, what a block sums next to each other

Requires layouts.  Establishes one block kernel a distinct structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tcc.errors import TccError
from tcc.ir.expr import Expr
from tcc.ir.group import GroupStage, TileGroup
from tcc.ir.index import Var
from tcc.passes.blocks.divide import divide_sums
from tcc.passes.blocks.join import blocks_join
from tcc.passes.blocks.lower import blocks_fit, lower_blocks
from tcc.passes.fuse.partition import row_major_storage
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.plan_kernels import Bound, KernelPlanner, packable, permuted_constant
from tcc.schedule.block_axes import factors, of_bytes
from tcc.schedule.blocks import TYPICAL_DEVICE, BlockProfile, BlockSchedule
from tcc.schedule.choose_blocks import choose_blocks
from tcc.schedule.nest import depends, stride
from tcc.schedule.registers import TYPICAL_CORE


class BlockPlanner(KernelPlanner):
    """Plans block kernels for one device and remembers them by structure."""

    gaps = False  # reads outside are masked, and halos are the host's to fill

    def __init__(self, profile: BlockProfile = TYPICAL_DEVICE, skips: bool = True) -> None:
        """`skips` as of `lower_blocks`."""
        super().__init__(TYPICAL_CORE)
        self.profile, self.skips = profile, skips
        self.lowers = partial(blocks_join, profile=profile)
        self.divides = partial(divide_sums, profile=profile)

    def makes(self, expr: Expr) -> bool:
        """Whether there is a block kernel of `expr` with everything row-major."""
        operands, results = row_major_storage(expr, [False] * len(expr.params))
        try:
            return blocks_fit(build_group(expr, operands, results), self.profile)
        except TccError:
            return False

    def bind(
        self, expr: Expr, operands: tuple[Storage, ...], results: tuple[Storage, ...]
    ) -> tuple[tuple[Storage, ...], Bound]:
        """The operands, constants packed, and the kernel.

        Raises `NotBlocks` for what is no block kernel.
        """
        loops = build_group(expr, operands, results, collapsed=False)
        packed = pack_factors(loops, operands)
        group = build_group(expr, packed, results)
        return packed, self.scheduled(group, choose_blocks(group, self.profile))

    def scheduled(self, group: TileGroup, schedule: BlockSchedule) -> Bound:
        """The kernel of `group` under `schedule`.  Raises `NotBlocks` where there is none."""
        return Bound(lower_blocks(group, schedule, self.skips), schedule, group)

    def exchange(self, changes: Mapping[Bound, Bound]) -> None:
        """Plans the second of each pair from now on where the first was planned."""
        for key, (packed, bound) in self._known.items():
            self._known[key] = packed, changes.get(bound, bound)


def pack_factors(group: TileGroup, operands: Sequence[Storage]) -> tuple[Storage, ...]:
    """Layouts for the constants that products read across: neighbours are results side by side, or
    of bytes, of which matrix units take no others, what is summed.

    `group` is not collapsed, so that each loop runs along one axis of each operand.
    """
    packed = list(operands)
    for stage in group.stages:
        if factors(stage) is not None and stage.reduce:
            _pack(packed, group, stage)
    return tuple(packed)


def _pack(packed: list[Storage], group: TileGroup, stage: GroupStage) -> None:
    loops = (*stage.iters, *stage.reduce)
    for node, access in stage.accesses.items():
        if access.buffer >= len(packed) or not packable(group, node, access, packed[access.buffer]):
            continue
        last = stage.reduce[-1]
        fine = (last,) if of_bytes(stage) else (*stage.iters, last)
        if any(stride(access, v) == 1 for v in fine):
            continue
        own = [v for v in stage.iters if v in depends(stage, node)]
        vector = last if of_bytes(stage) else _side(stage, own)
        if vector is None:
            continue
        storage = packed[access.buffer]
        found = permuted_constant(storage, node, vector, loops)
        packed[access.buffer] = replace(storage, layout=found or storage.layout)


def _side(stage: GroupStage, loops: Sequence[Var]) -> Var | None:
    """The last loop of the result that a factor varies with, if possible alone."""
    found = factors(stage)
    assert found is not None
    both = depends(stage, found.a) & depends(stage, found.b)
    return next((v for v in reversed(loops) if v not in both), loops[-1] if loops else None)
