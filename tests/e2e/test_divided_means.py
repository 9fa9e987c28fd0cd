"""Means over positions are divided along the rows that threads of another kernel have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tcc
from onnx import helper
from tcc.driver import compile_model
from tcc.options import read_options

from tests.draws import RNG
from tests.lib.agreement import FLOAT, expected, model_of, session, value

IMAGE = [1, 96, 28, 28]


def gated() -> onnx.ModelProto:
    """Returns a depthwise convolution whose channels are gated by their means."""
    weights = {
        "w": RNG.standard_normal((96, 1, 3, 3)),
        "a": RNG.standard_normal((8, 96, 1, 1)),
        "b": RNG.standard_normal((96, 8, 1, 1)),
    }
    return model_of(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=96),
            helper.make_node("GlobalAveragePool", ["c"], ["m"], name="mean"),
            helper.make_node("Conv", ["m", "a"], ["s"]),
            helper.make_node("Conv", ["s", "b"], ["e"]),
            helper.make_node("Sigmoid", ["e"], ["g"]),
            helper.make_node("Mul", ["c", "g"], ["y"]),
        ],
        [value("x", FLOAT, IMAGE)],
        [value("y", FLOAT, IMAGE)],
        {name: array.astype(np.float32) for name, array in weights.items()},
    )


def test_a_mean_is_divided_and_equal_for_all_threads(tmp_path: Path) -> None:
    model = gated()
    artifact = compile_model(model, read_options({"cpu": "x86-64-v3"}), tmp_path / "m.so")
    sources = [k["source"] for k in artifact.manifest["variants"][0]["kernels"]]
    assert sum("GlobalAveragePool" in source for source in sources) == 2
    x = RNG.standard_normal(IMAGE).astype(np.float32)
    one, two, three = (tcc.load(artifact.path, threads=n).run({"x": x})["y"] for n in (1, 2, 3))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)
    reference = expected(session(model), {"x": x})["y"]
    assert np.abs(one - reference).max() <= 1e-5 * np.abs(reference).max()
