"""Unary functions of halves are right on all 65,536 values as machine code;
`scripts/exact_functions` has the other rows and f32."""

from __future__ import annotations

import pytest
from tcc.ir.types import BF16, F16, F32, DType

from tests.lib.op_matrix.batch import run_batch
from tests.lib.op_matrix.unary import all_halves, cases_of, dense_floats, measured

# One function of each kind of code: polynomials, quotients, selections, roundings, compositions.
NAMES = ("abs", "atan", "elu", "exp", "gelu", "log", "reciprocal", "sign", "sin", "tanh")


@pytest.mark.parametrize(
    ("dtype", "names"),
    [(F16, NAMES), (BF16, NAMES), (F32, ("softplus", "tan", "asinh"))],
    ids=("f16", "bf16", "f32"),
)
def test_functions_are_within_their_bounds(dtype: DType, names: tuple[str, ...]) -> None:
    x = dense_floats(1 << 16) if dtype is F32 else all_halves(dtype)
    cases = cases_of(dtype, x, names)
    results = run_batch(cases)
    assert not results.failures
    errors = {case.name: measured(case, results.outputs[case.name][0]) for case in cases}
    assert {name: error.wrong for name, error in errors.items() if error.wrong} == {}


def test_a_wrong_result_is_found() -> None:
    x = all_halves(F16)
    (case,) = cases_of(F16, x, ("abs",))
    results = run_batch([case]).outputs[case.name][0].copy()
    results[x == 1.0] = 1.001
    assert measured(case, results).wrong.startswith("of 1.0 gives")
