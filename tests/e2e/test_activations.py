"""`--activations int8` works from the model to the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper
from tcc.errors import UserError
from tcc.passes.quantize.quantize_weights import group_size, quantized

from tests.passes.quantize.test_level_bytes import Array, close, drawn, summed

DEPTH, COLUMNS = 96, 320


def model(depth: int = DEPTH, columns: int = COLUMNS) -> tuple[onnx.ModelProto, Array]:
    """Returns the model x @ w for any number of rows, and w."""
    rng = np.random.default_rng(depth)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(w, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 9
    return proto, w


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_all_counts(bits: int) -> None:
    proto, w = model()
    weights, numerics = f"int{bits}", "strict" if bits == 4 else "default"
    module = tcc.compile(proto, weights=weights, activations="int8", numerics=numerics, threads=2)
    assert module.manifest["activations"] == "int8"
    assert [r["operands"] for r in module.manifest["variants"][0]["rounded"]] == ["int8"]
    levels = quantized(w, 0, bits)
    assert levels is not None
    for rows in (1, 2, 13, 64):
        x = drawn(rows, DEPTH)
        close(np.asarray(module.run({"x": x})["y"]), summed(x, *levels, group_size(DEPTH)))


def test_all_row_counts_read_one_copy_of_weights() -> None:
    proto, _ = model(256, 1024)
    module = tcc.compile(
        proto, weights="int4", activations="int8", buckets={"n": [1, 8, 128]}, cpu="znver4"
    )
    levels, scales = 256 * 1024 // 2, 256 // 32 * 1024 * 2
    assert module.manifest["variants"][0]["weights"]["bytes"] == levels + scales


@pytest.mark.parametrize(
    ("depth", "options", "why"),
    [
        (DEPTH, {}, "add --weights int8"),
        (80, {"weights": "int8"}, "a multiple of 32"),
        (
            DEPTH,
            {"weights": "int8", "target": "cuda"},
            "kernels for GPUs multiply levels as floats",
        ),
    ],
)
def test_models_that_cannot_use_int8_activations_are_refused(
    depth: int, options: dict[str, Any], why: str
) -> None:
    proto, _ = model(depth)
    with pytest.raises(UserError) as caught:
        tcc.compile(proto, activations="int8", **options)
    assert why in str(caught.value)
