"""Every operator that ONNX Runtime's tools and optimiser write is supported or refused with a
reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.onnx.converters import CONVERTERS
from tcc.frontends.onnx.support import REFUSED
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import expected, model_of

# Operators that tools read (shape inference, lists of types) and that no tool writes.
READ_ONLY = {
    "BranchwiseRMSNorm", "GatherPacked", "HyperConnectionPostMix", "HyperConnectionPreMix",
    "ScaledSiLU", "SparseAttention",
}  # fmt: skip
# Operators that tools write in ONNX's own domain.
STANDARD = {"Pad", "Range"}


def _described() -> set[str]:
    schemas = _pybind_state.get_all_operator_schema()
    return {schema.name for schema in schemas if schema.domain == "com.microsoft"}


def _supported() -> set[str]:
    return {name for domain, name in CONVERTERS if domain == "com.microsoft"}


def test_every_operator_that_a_tool_names_is_supported_or_refused_with_a_reason() -> None:
    """The operators are the strings in the sources of the quantisers, the transformer optimiser and
    other tools, so that a new operator of a newer ONNX Runtime fails here."""
    root = Path(ort.__file__).parent
    sources = (
        p
        for part in ("quantization", "transformers", "tools")
        for p in root.glob(f"{part}/**/*.py")
    )
    named = {
        name for p in sources for name in re.findall(r"""["'](\w+)["']""", p.read_text("utf-8"))
    }
    described = named & _described()
    assert {"DynamicQuantizeLSTM", "MatMulBnb4", "QLinearWhere", "SkipGroupNorm"} <= described
    refused = set().union(*REFUSED.values())
    assert not described - _supported() - refused - READ_ONLY - STANDARD
    assert not refused & _supported()
    assert (refused | READ_ONLY | STANDARD) <= described


# ---- models that ONNX Runtime saved --------------------------------------------------------------


class _Samples(CalibrationDataReader):
    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._left = iter(arrays)

    def get_next(self) -> dict[str, np.ndarray] | None:
        array = next(self._left, None)
        return None if array is None else {"x": array}


NETWORK = """
g (float[1, 8, 12, 12] x) => (float[1, 5] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    r = Relu (c)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    d = Conv <pads = [1, 1, 1, 1]> (p, w2, b2)
    l = LeakyRelu <alpha = 0.1> (d)
    s = Sigmoid (l)
    m = Mul (l, s)
    e = Add (m, p)
    q = Concat <axis = 1> (e, p)
    a = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (q)
    v = GlobalAveragePool (a)
    f = Flatten (v)
    h = Gemm <transB = 1> (f, w3, b3)
    t = MatMul (h, w4)
    y = Softmax (t)
}"""


def _network() -> tuple[onnx.ModelProto, list[np.ndarray]]:
    rng = np.random.default_rng(4)
    model = model_of(NETWORK, opset=13)
    shapes = {
        "w1": (16, 8, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,),
        "w3": (24, 32), "b3": (24,), "w4": (24, 5),
    }  # fmt: skip
    for name, shape in shapes.items():
        array = rng.standard_normal(shape) * (0.1 if name[0] == "b" else shape[-1] ** -0.5 / 2)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    samples = [rng.standard_normal((1, 8, 12, 12)).astype(np.float32) for _ in range(4)]
    return model, samples


def _saved(path: Path, level: str) -> onnx.ModelProto:
    """Returns the model at `path` as ONNX Runtime saves it after its optimisations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path.with_name("optimised.onnx"))
    ort.InferenceSession(str(path), options)
    return onnx.load(options.optimized_model_filepath)


def _own(model: onnx.ModelProto) -> set[str]:
    return {f"{n.domain}:{n.op_type}" for n in model.graph.node if n.domain}


@pytest.mark.parametrize(
    ("form", "level"),
    [
        ("QDQ", "ORT_ENABLE_EXTENDED"),
        ("QOperator", "ORT_ENABLE_BASIC"),
        ("QOperator", "ORT_ENABLE_EXTENDED"),
        ("QOperator", "ORT_ENABLE_ALL"),
    ],
)
def test_quantised_networks_that_onnx_runtime_saved(tmp_path: Path, form: str, level: str) -> None:
    """The saved networks have ONNX Runtime's own 8-bit operators, channels-last at full
    optimisation."""
    model, samples = _network()
    onnx.save(model, tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx", tmp_path / "bytes.onnx", _Samples(samples),
        quant_format=getattr(QuantFormat, form), weight_type=QuantType.QInt8, reduce_range=True,
    )  # fmt: skip
    model_saved = _saved(tmp_path / "bytes.onnx", level)
    assert _own(model_saved)
    if level == "ORT_ENABLE_ALL":
        assert {"com.microsoft:QLinearConv", "com.microsoft:NhwcMaxPool"} <= _own(model_saved)
    feeds = {"x": samples[1]}
    reference = expected(onnx.load(tmp_path / "bytes.onnx"), feeds)["y"]
    output = evaluate_graph(load_model(model_saved), feeds)["y"]
    np.testing.assert_allclose(output, reference, rtol=0, atol=2 / 255)
    assert np.abs(output - reference).mean() < 1 / 255


def test_networks_that_onnx_runtime_fused(tmp_path: Path) -> None:
    model, samples = _network()
    onnx.save(model, tmp_path / "float.onnx")
    model_saved = _saved(tmp_path / "float.onnx", "ORT_ENABLE_EXTENDED")
    assert {"com.microsoft:FusedConv", "com.microsoft:QuickGelu"} & _own(model_saved)
    reference = expected(model, {"x": samples[0]})["y"]
    output = tcc.compile(model_saved).run({"x": samples[0]})["y"]
    np.testing.assert_allclose(output, reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("domain", ["com.microsoft.nchwc", "com.ms.internal.nhwc"])
def test_memory_orders_of_one_machine_are_refused_with_the_way_out(domain: str) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 4, 4]) for n in "xy")
    node = helper.make_node("MaxPool", ["x"], ["y"], domain=domain, kernel_shape=[1, 1])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    model.ir_version = 8
    with pytest.raises(UserError) as caught:
        load_model(model)
    assert "in the memory order of one machine" in caught.value.why
    assert "ORT_ENABLE_EXTENDED" in caught.value.hint


def _unknown(name: str) -> Any:
    node = helper.make_node(name, ["x"], ["y"], domain="com.microsoft")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("reason", list(REFUSED))
def test_refusals_say_why(reason: str) -> None:
    for name in REFUSED[reason]:
        with pytest.raises(UserError) as caught:
            load_model(_unknown(name))
        assert reason in caught.value.why
