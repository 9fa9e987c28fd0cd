"""References and expressions agree on windows over images without elements."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.window import ConvTransposeAttrs

NONE, ONE, TWO = (0, 0), (1, 1), (2, 2)
CASES = [
    # (0 - 1) * 3 + 1 is a negative number of rows; with output padding it becomes zero.
    ("conv_transpose", ((1, 2, 0, 4), (2, 3, 1, 2)),
     ConvTransposeAttrs((3, 1), NONE, NONE, ONE, (2, 0), 1), (1, 3, 0, 5)),
    # Only the kernel contributes rows, to which nothing is added.
    ("conv_transpose", ((1, 2, 0, 4), (2, 3, 4, 2)),
     ConvTransposeAttrs(ONE, NONE, NONE, ONE, NONE, 1), (1, 3, 3, 5)),
    ("average_pool", ((2, 3, 0, 5),),
     PoolAttrs((3, 1), (1, 1), (0, 1), ONE, TWO, count_include_pad=True), (2, 3, 0, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "attrs", "result"), CASES)
def test_references_are_as_expressions(
    name: str, shapes: tuple[tuple[int, ...], ...], attrs: object, result: tuple[int, ...]
) -> None:
    rng, op = np.random.default_rng(0), OPS[name]
    arrays = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    (output,) = op.reference(arrays, attrs)
    assert op.expr is not None
    (expected,) = evaluate_expr(op.expr([tensor(F32, *a.shape) for a in arrays], attrs), arrays)
    assert output.shape == expected.shape == result
    np.testing.assert_array_equal(output, expected)
