"""Register capacity limits the expressions that may be one block kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.types import BF16, F32, DType, tensor
from tcc.passes.tile.gpu.legality import is_gpu_kernel
from tcc.schedule.gpu.schedule import BlockProfile

DEVICE = BlockProfile()


def mixed(rows: int, keys: int, width: int) -> Expr:
    """Returns exp(x[i, d] k[d, j]) v[j, e]: two matmuls, where a tile holds the operand of the
    second."""
    b = ExprBuilder(tensor(F32, rows, width), tensor(F32, width, keys), tensor(F32, keys, width))
    i, j = b.iters(rows, keys)
    (d,) = b.iters(width)
    first = apply("mul", b.read(0, i, d), b.read(1, d, j))
    scores = b.stage((i, j), first, over=(d,), monoid="sum")
    i, j = b.iters(rows, keys)
    powers = b.stage((i, j), apply("exp", b.read(scores, i, j)))
    i, e = b.iters(rows, width)
    (j,) = b.iters(keys)
    second = apply("mul", b.read(powers, i, j), b.read(2, j, e))
    b.stage((i, e), second, over=(j,), monoid="sum")
    return b.done()


@pytest.mark.parametrize(
    ("keys", "floats", "joined"),
    [
        (256, BF16, True),  # shared memory holds the operand
        (64, F32, True),
        (256, F32, False),  # registers would have to hold it
    ],
)
def test_a_join_needs_registers_for_its_values(keys: int, floats: DType, joined: bool) -> None:
    expr = mixed(8192, keys, 64)
    assert is_gpu_kernel(expr, (False,) * 3, DEVICE, floats) is joined


def test_a_device_with_more_registers_joins_more() -> None:
    large = replace(DEVICE, registers=1 << 19, lane_registers=4096)
    assert is_gpu_kernel(mixed(8192, 256, 64), (False,) * 3, large)
