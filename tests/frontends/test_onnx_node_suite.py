"""ONNX's own node tests: a sample of them, imported and evaluated, against their stored outputs.

`TCC_NODE_SUITE=all` runs every case.  `_OUTSIDE` says which cases are about what tcc does not have.
"""

from __future__ import annotations

import os
import re
import warnings
import zlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.evaluate import evaluate_graph

_SHARE = 6  # one case in so many

_OUTSIDE = re.compile(
    "|".join(
        (
            "string|strnorm|tfidf|regex|image_decoder|ai_onnx_ml",
            "sequence|optional|identity_opt|if_opt|if_seq|loop13|loop16",
            "adam|adagrad|momentum|training_|bernoulli|batchnorm_.*_training",
            "bitcast|antialias|scan_sum|test_not_[234]d",
            # ONNX's reference takes the fractional size that a scale gives; runtimes the whole one.
            "resize_downsample_scales_(linear|cubic)_align_corners",
        )
    )
)


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, while ONNX computes the expected outputs
        cases = load_model_tests(kind="node")
    every = os.environ.get("TCC_NODE_SUITE") == "all"
    return [
        case
        for case in cases
        if not _OUTSIDE.search(case.name)
        and "_expanded" not in case.name
        and (every or zlib.crc32(case.name.encode()) % _SHARE == 0)
    ]


# Types that NumPy lacks, and what carries their values here.
_CARRIERS = {
    "bfloat16": np.float32,
    **dict.fromkeys(("int2", "int4"), np.int8),
    **dict.fromkeys(("uint2", "uint4"), np.uint8),
    **dict.fromkeys(("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz"), np.float32),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), np.float32),
}


def _array(value: Any) -> Any:
    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
    return array.astype(_CARRIERS.get(array.dtype.name, array.dtype))


def _with_constants(model: onnx.ModelProto, feeds: dict[str, Any]) -> onnx.ModelProto:
    """The model with its integer vectors and its scalars fixed: axes, shapes and the like."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for name, array in feeds.items():
        vector = array.ndim == 1 and (array.dtype.kind in "iu" or array.size < 9)
        if (vector or array.ndim == 0) and array.dtype.name != "bfloat16":
            fixed.graph.initializer.append(numpy_helper.from_array(array, name))
    return fixed


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.name)
def test_node(case: Any) -> None:
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in case.model.graph.input]
    feeds = {name: _array(value) for name, value in zip(names, inputs, strict=True)}
    try:
        graph = load_model(case.model)
    except UserError:  # an attribute to tcc, an input to ONNX
        graph = load_model(_with_constants(case.model, feeds))
    with np.errstate(all="ignore"):
        found = evaluate_graph(graph, {v.name: feeds[v.name] for v in graph.inputs})
    loose = 2**-6 if re.search("bfloat16|BFLOAT16|bf16", case.name) else 0
    half = 2e-3 if any(a.dtype == np.float16 for a in feeds.values()) else 0
    for value, result in zip(case.model.graph.output, map(_array, outputs), strict=True):
        assert found[value.name].dtype == result.dtype
        assert found[value.name].shape == result.shape
        np.testing.assert_allclose(
            found[value.name], result, rtol=max(case.rtol, loose, half), atol=max(case.atol, 1e-6)
        )
