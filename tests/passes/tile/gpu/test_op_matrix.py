"""The op matrix as block kernels: every sample of every row with an expression agrees."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.expr import Expr
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import NotBlocks

from tests.lib.op_matrix.cases import SOME_SYMBOLIC_CASES, each
from tests.ops.test_matrix import Case, check, reference
from tests.part import part
from tests.passes.tile.cpu.test_op_matrix import TILED, UNHELD, composed

from . import tiles
from .tiles import Array, Chooser

# The evaluator takes a fraction of a millisecond per statement.
MOST_STEPS = 2000

# Images whose taps are weighted by the sum of all weights: the same kernel reads these sums at
# other points.
REFUSED = tuple(f"resize-{mode}-antialias" for mode in ("linear", "cubic"))


def agree(case: Case, expr: Expr, operands: list[Array], sizes: dict[str, int]) -> None:
    seed = np.random.default_rng(zlib.crc32(case.name.encode()))
    expected_results = reference(case)
    choosers: list[Chooser] = [choose_blocks, tiles.drawn(seed)]
    for chooser in choosers:
        try:
            built = tiles.build(expr, chooser)
        except NotBlocks:
            assert chooser is not choose_blocks or case.name.startswith(REFUSED)
            continue
        assert chooser is not choose_blocks or not case.name.startswith(REFUSED)
        if tiles.steps(built.kernel, sizes) <= MOST_STEPS:
            actual = tiles.run_kernel(built.kernel, expr.types, operands, sizes)
            check(case, actual, expected_results, case.op.tolerance)


@each(part("blocks", TILED, 2))
def test_block_kernel_agrees_with_expression(case: Case) -> None:
    expr, operands = composed(case)
    agree(case, expr, operands, {})


@each(part("blocks of open sizes", SOME_SYMBOLIC_CASES, 2))
def test_block_kernel_with_open_sizes_agrees_with_expression(case: Case) -> None:
    expr, operands = composed(case, open_sizes=True)
    if case.name.startswith(UNHELD):
        with pytest.raises(InternalError, match="static size"):
            tiles.build(expr)
        return
    sizes = {f"n{n}": n for a in case.operands if a is not None for n in a.shape}
    agree(case, expr, operands, sizes)
