"""The right groups get the schedule of two warpgroups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.ir.index import const
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import BF16, F32, DType, TensorType
from tcc.ops import OPS
from tcc.ops.composite.attention import AttentionAttrs
from tcc.schedule.gpu.choose import choose_blocks, ranked
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE
from tcc.schedule.gpu.warpgroups import warpgroup_schedule

from tests.passes.tile.gpu.tiles import group_of


def group(heads: int, length: int, dtype: DType = BF16, width: int = 128) -> TileGroup:
    t = TensorType(dtype, tuple(map(const, (1, heads, length, width))))
    expr = OPS["attention"].expr
    assert expr is not None
    return group_of(expr((t, t, t), AttentionAttrs(0.1, False, 0.0, const(0))))


def test_attention_of_halves_has_two_warpgroups() -> None:
    schedule = warpgroup_schedule(group(64, 4096), TYPICAL_DEVICE)
    assert schedule is not None
    assert dict(schedule.blocks)[schedule.parallel[-1]] == 128
    assert dict(schedule.blocks)["stream"] == 128
    assert schedule.warps == 8


@pytest.mark.parametrize(
    "other", [group(64, 4096, F32), group(1, 2048)], ids=["floats", "few rows"]
)
def test_other_kernels_have_no_warpgroups(other: TileGroup) -> None:
    assert warpgroup_schedule(other, TYPICAL_DEVICE) is None
    profile = replace(TYPICAL_DEVICE, warpgroups=True)
    assert choose_blocks(other, profile) == ranked(other, profile)[0].schedule


def test_only_devices_with_roles_for_warps_take_it() -> None:
    group_ = group(64, 4096)
    profile = replace(TYPICAL_DEVICE, warpgroups=True)
    assert choose_blocks(group_, profile) == warpgroup_schedule(group_, profile)
    assert choose_blocks(group_) == ranked(group_, TYPICAL_DEVICE)[0].schedule
