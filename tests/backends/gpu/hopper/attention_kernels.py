"""Attention of 16-bit floats as tile kernels, with rows for two warpgroups."""

from __future__ import annotations

from dataclasses import replace

from tcc.ir.index import const
from tcc.ir.tile import TileKernel
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.ir.types import BF16, DType, TensorType
from tcc.ops import OPS
from tcc.ops.composite.attention import AttentionAttrs
from tcc.passes.tile.gpu.lower import lower_blocks
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import BlockSchedule

from tests.passes.tile.gpu.tiles import group_of


def attention(
    queries: int,
    keys: int,
    *,
    width: int = 64,
    block: int = 64,
    dtype: DType = BF16,
    causal: bool = False,
    rows: int = 128,
    shared: int = 1,
) -> TileKernel:
    """Returns attention of two heads, `shared` of which share keys, in blocks of `rows` x
    `block`."""
    q, k = (
        TensorType(dtype, tuple(map(const, (1, heads, length, width))))
        for heads, length in ((2, queries), (2 // shared, keys))
    )
    row = OPS["attention"]
    assert row.expr is not None
    group = group_of(row.expr((q, k, k), AttentionAttrs(0.125, causal, 0.0, const(0))))
    kernel = lower_blocks(group, _with(choose_blocks(group), group.common[-1].name, rows, block))
    verify_kernel(kernel)
    verify_blocks(kernel)
    return kernel


def _with(schedule: BlockSchedule, rows: str, size: int, block: int) -> BlockSchedule:
    sizes = {**dict(schedule.blocks), rows: size, "stream": block}
    return replace(schedule, blocks=tuple(sizes.items()))
