"""Weights of half the bytes are used where they make matmuls faster."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tcc.ir.types import BF16, F16, F32, DType
from tcc.schedule.cpu.narrow_storage import most_uses
from tcc.schedule.cpu.shipped_machines import shipped_machine

SERVER = shipped_machine("icelake-server")
LARGE = 1 << 30


@pytest.mark.parametrize(("dtype", "least", "most"), [(BF16, 32, 64), (F16, 24, 48)])
def test_the_row_limit_lies_between_the_measured_limits(
    dtype: DType, least: int, most: int
) -> None:
    """Measured for 24 matmuls of 1024 x 1024 weights on two threads: up to `least` rows the narrow
    weights are no slower, and from `most` rows on they are slower."""
    assert least <= most_uses(SERVER, dtype, LARGE) < most


def test_faster_memory_and_slower_arithmetic_turn_earlier() -> None:
    usual = most_uses(SERVER, BF16, LARGE)
    fast = replace(SERVER, memory=replace(SERVER.memory, read_all=4 * SERVER.memory.read_all))
    assert most_uses(fast, BF16, LARGE) == pytest.approx(usual / 4)
    assert most_uses(replace(SERVER, fmas=1.0), BF16, LARGE) == pytest.approx(usual / 2)
    assert most_uses(SERVER, BF16, SERVER.l3.size // 2) < usual  # read from the last cache


def test_f32_always_pays() -> None:
    assert most_uses(SERVER, F32, LARGE) == inf
