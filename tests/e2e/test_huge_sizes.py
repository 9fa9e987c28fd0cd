"""The cost of a compile does not grow with sizes and attribute values: it iterates over none of
them and builds no tables.

The cost is counted in function calls and bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.agreement import FLOAT, INT64, value
from tests.part import part

node = helper.make_node
N = 1 << 30
# The compiles take at most 430,000 calls.
_CALLS, _BYTES = 1_000_000, 512 << 20


def one(op: str, shape: list[int] | None, *more: Any, dtype: int = FLOAT, **attrs: Any) -> Any:
    """Returns a maker of a one-node model with an input of `shape` and constants `more` (None:
    absent)."""
    constants = {f"c{n}": np.asarray(c) for n, c in enumerate(more) if c is not None}
    names = [f"c{n}" if c is not None else "" for n, c in enumerate(more)]
    inputs = [] if shape is None else [value("x", dtype, shape)]
    node_of_op = node(op, ["x"] * len(inputs) + names, ["y"], **attrs)
    element = INT64 if op in ("Range", "NonZero") else FLOAT
    return lambda: unchecked([node_of_op], inputs, [value("y", element, None)], constants)


def unchecked(nodes: Any, inputs: Any, outputs: Any, constants: dict[str, Any]) -> onnx.ModelProto:
    """Returns a model whose outputs have no declared shape."""
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def scan() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Relu", ["a"], ["b"])], "body", [value("a", FLOAT, [])], [value("b", FLOAT, [])]
    )
    scan_node = node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body)
    return unchecked([scan_node], [value("x", FLOAT, [N])], [value("y", FLOAT, [N])], {})


F0 = np.float32(0)
ONE = np.ones((1, 1, 3), np.float32)
CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "dft": one("DFT", [1, N, 1], None, 1),
    "dft of few": one("DFT", [1, 8, 1], N - 1, 1),
    "dft of constants": one("DFT", None, np.ones((1, 8, 1), np.float32), N, 1),
    "stft": one("STFT", [1, N, 1], 1 << 20, None, 1 << 20),
    "window": one("BlackmanWindow", None, N),
    "range": one("Range", None, 0, N, 1),
    "one hot": one("OneHot", [4], N, np.array([0, 1], np.float32), dtype=INT64),
    "eye": one("EyeLike", [1 << 15, 1 << 15]),
    "mel bins": one("MelWeightMatrix", None, N, 16, 16000, F0, np.float32(8000)),
    "mel length": one("MelWeightMatrix", None, 16, N, 16000, F0, np.float32(8000)),
    "resized up": one("Resize", [1, 1, 4, 8], None, None, [1, 1, 4, N], mode="cubic"),
    "resized down": one(
        "Resize", [1, 1, 4, N], None, None, [1, 1, 4, 8], mode="linear", antialias=1
    ),
    "pad": one("Pad", [4], [N, N]),
    "pad wrapped": one("Pad", [4], [N, N], mode="wrap"),
    "tile": one("Tile", [4], [N]),
    "expand": one("Expand", [4, 1], [4, N]),
    "filled": one("ConstantOfShape", None, [N]),
    "pool": one("MaxPool", [1, 1, N + 4], kernel_shape=[N]),
    "pool of constants": one(
        "AveragePool", None, np.ones((1, 1, 4), np.float32),
        kernel_shape=[N], strides=[N], pads=[N - 2, N - 2], count_include_pad=1,
    ),
    "lrn of constants": one("LRN", None, np.ones((1, 4, 4), np.float32), size=N - 1),
    "dilated": one("Conv", [1, 1, 4 * N], ONE, dilations=[N]),
    "padded": one("Conv", [1, 1, 4], ONE, pads=[N, N]),
    "transposed": one("ConvTranspose", [1, 1, 4], ONE, strides=[N]),
    "lrn": one("LRN", [1, N, 4], size=N - 1),
    "depth to space": one("DepthToSpace", [1, 1 << 28, 1, 1], blocksize=1 << 14),
    "roi": one(
        "RoiAlign", [1, 1, 8, 8], np.zeros((1, 4), np.float32), [0],
        output_height=1 << 15, output_width=1 << 15, sampling_ratio=N,
    ),
    "running": one("CumSum", [N], 0),
    "few largest": one("NonZero", [N]),
    "triangle": one("Trilu", [1 << 15, 1 << 15], N),
    "scan": scan,
}  # fmt: skip


class TooMuchError(BaseException):
    """Ends a compile; no handler on the way catches it, because it is no Exception."""


@pytest.mark.parametrize("case", part("huge sizes", CASES, 2))
def test_a_compile_iterates_over_no_size(case: str, tmp_path: Path) -> None:
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > _CALLS:
            raise TooMuchError

    model = CASES[case]()
    options = read_options({"jobs": 1, "budgets": {"bytes": _BYTES}})
    sys.setprofile(count)
    try:
        compile_model(model, options, tmp_path / "m.so")
    finally:
        sys.setprofile(None)
