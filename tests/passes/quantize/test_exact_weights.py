"""In compiled models, constants are stored in narrower types that represent all their values
exactly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper


def _compiled(weights: np.ndarray) -> Any:
    """Returns the module of a matmul with constant weights."""
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "exact",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, len(weights)])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 128])],
            [numpy_helper.from_array(weights, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
    )
    model.ir_version = 9
    return tcc.compile(model)


def _bytes(module: Any) -> int:
    return int(module.manifest["variants"][0]["weights"]["bytes"])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_weights_whose_values_a_narrow_type_has_take_two_bytes(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((160, 128)).astype(dtype).astype(np.float32)
    x = rng.standard_normal((3, 160)).astype(np.float32)
    module = _compiled(weights)
    assert _bytes(module) == 2 * weights.size
    expected = x.astype(np.float64) @ weights
    bound = 320 * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(weights))
    assert (np.abs(module.run({"x": x})["y"] - expected) <= bound).all()


@pytest.mark.parametrize("value", [0.1, 1e-6 / 3, 3e38, np.inf])
def test_a_single_other_value_keeps_weights_in_f32(value: float) -> None:
    weights = np.random.default_rng(4).standard_normal((160, 128)).astype(np.float16)
    wide = weights.astype(np.float32)
    wide[-1, -1] = value
    is_exact = np.isinf(value)
    assert _bytes(_compiled(wide)) == (2 if is_exact else 4) * wide.size
