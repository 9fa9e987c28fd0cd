"""Models that draw random numbers, and statistics of the draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.lib.agreement import FLOAT, INT32, INT64, Array, model_of, value

node = helper.make_node
DOUBLE, HALF = TensorProto.DOUBLE, TensorProto.FLOAT16
# The mean of 20,000 draws has a standard error of 0.7 % of the deviation; it is off by four times
# that once in 16,000.
COUNT = 20_000


def every_kind(n: int | str = "n") -> onnx.ModelProto:
    """Returns one node for each operator and floating type, and two nodes where draws must
    differ."""
    shape = {"shape": [COUNT // 100, 100]}
    nodes = [
        node("RandomNormal", [], ["normal"], mean=2.0, scale=3.0, **shape),
        node("RandomNormal", [], ["again"], mean=2.0, scale=3.0, **shape),
        node("RandomUniform", [], ["uniform"], low=-2.0, high=3.0, **shape),
        node("RandomNormal", [], ["normal64"], dtype=DOUBLE, **shape),
        node("RandomUniform", [], ["uniform64"], dtype=DOUBLE, **shape),
        node("RandomNormalLike", ["x"], ["like"]),
        node("RandomUniformLike", ["x"], ["uniform16"], dtype=HALF),
        node("RandomNormalLike", ["x"], ["normal16"], dtype=HALF, scale=0.5),
        node("Bernoulli", ["p"], ["coin"]),
        node("Bernoulli", ["p"], ["coins"], dtype=INT64),
        node("Multinomial", ["l"], ["classes"], sample_size=7),
        node("Mul", ["like", "x"], ["y"]),
    ]
    kinds = {
        "normal": FLOAT, "again": FLOAT, "uniform": FLOAT, "normal64": DOUBLE, "uniform64": DOUBLE,
        "like": FLOAT, "uniform16": HALF, "normal16": HALF, "coin": FLOAT, "coins": INT64,
        "classes": INT32, "y": FLOAT,
    }  # fmt: skip
    inputs = [value("x", FLOAT, [n, 100]), value("p", FLOAT, [n, 100]), value("l", FLOAT, [n, 4])]
    return model_of(nodes, inputs, [value(k, t, [None, None]) for k, t in kinds.items()], opset=17)


CHANCES = np.array([0.0, 0.1, 0.5, 0.9, 1.0] * 20, np.float32)
WEIGHTS = np.array([0.5, 0.0, 0.2, 0.3])


def feeds(n: int) -> dict[str, Array]:
    """Returns inputs of `every_kind`: chances that differ by column, and weights with shifted
    logarithms."""
    with np.errstate(divide="ignore"):
        logarithms = np.log(WEIGHTS) + 5
    return {
        "x": np.ones((n, 100), np.float32),
        "p": np.broadcast_to(CHANCES, (n, 100)).copy(),
        "l": np.broadcast_to(logarithms, (n, 4)).astype(np.float32),
    }


def furthest(draws: Array, distribution: Any) -> float:
    """Returns the Kolmogorov-Smirnov statistic times the root of the count, which exceeds 2.2 once
    in 10,000 samples of the distribution."""
    values = np.sort(np.asarray(draws, np.float64).reshape(-1))
    ranks = np.arange(values.size + 1) / values.size
    exact = distribution(values)
    gap = max(np.max(exact - ranks[:-1]), np.max(ranks[1:] - exact))
    return float(gap * values.size**0.5)


def flow(rows: int = 4) -> onnx.ModelProto:
    """Returns the middle of a VITS voice: scaled prior noise through two affine couplings, and
    durations predicted with other noise."""
    rng = np.random.default_rng(5)
    width = 8
    constants = {
        f"w{n}": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        for n in range(3)
    }
    constants |= {"one": np.float32(1), "half": np.float32(0.5)}
    nodes = [
        node("MatMul", ["x", "w0"], ["mean"]),
        node("MatMul", ["x", "w1"], ["scales"]),
        node("Exp", ["scales"], ["deviation"]),
        node("RandomNormalLike", ["mean"], ["noise"], dtype=FLOAT, mean=0.0, scale=1.0),
        node("Mul", ["noise", "deviation"], ["spread"]),
        node("Mul", ["spread", "temperature"], ["warm"]),
        node("Add", ["mean", "warm"], ["z0"]),
        node("MatMul", ["z0", "w2"], ["shift"]),
        node("Tanh", ["shift"], ["bounded"]),
        node("Sub", ["z0", "bounded"], ["z"]),
        node("RandomNormalLike", ["mean"], ["jitter"], dtype=FLOAT),
        node("Mul", ["jitter", "temperature"], ["j"]),
        node("Add", ["scales", "j"], ["logw"]),
        node("Exp", ["logw"], ["w"]),
        node("Ceil", ["w"], ["durations"]),
    ]
    return model_of(
        nodes,
        [value("x", FLOAT, ["t", width]), value("temperature", FLOAT, [])],
        [value("z", FLOAT, ["t", width]), value("durations", FLOAT, ["t", width])],
        constants,
        opset=17,
    )


def looped() -> onnx.ModelProto:
    """Returns nested loops and a scan that draw, each beside a draw outside of it."""

    def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
        return helper.make_graph(nodes, "body", inputs, outputs)

    def trip(name: str, inner: list[Any], result: str, shape: list[int]) -> Any:
        heads = [value(f"{name}i", INT64, []), value(f"{name}c", TensorProto.BOOL, [])]
        nodes = [*inner, node("Identity", [f"{name}c"], [f"{name}d"])]
        outputs = [value(f"{name}d", TensorProto.BOOL, []), value(result, FLOAT, shape)]
        return graph(nodes, heads, outputs)

    inner = trip("b", [node("RandomUniformLike", ["x"], ["u"])], "u", [5])
    outer = trip(
        "a",
        [node("Loop", ["three", ""], ["us"], body=inner), node("Identity", ["us"], ["r"])],
        "r",
        [3, 5],
    )
    step = graph(
        [node("RandomUniformLike", ["s"], ["v"]), node("Identity", ["h"], ["k"])],
        [value("h", FLOAT, [5]), value("s", FLOAT, [5])],
        [value("k", FLOAT, [5]), value("v", FLOAT, [5])],
    )
    nodes = [
        node("RandomUniformLike", ["x"], ["alone"]),
        node("Loop", ["three", ""], ["nested"], body=outer),
        node("Scan", ["x", "rows"], ["last", "scanned"], body=step, num_scan_inputs=1),
        node("RandomUniformLike", ["x"], ["seeded"], seed=3.0),
        node("RandomUniformLike", ["x"], ["seeded2"], seed=3.0),
    ]
    shapes = {"alone": [5], "nested": [3, 3, 5], "scanned": [6, 5], "seeded": [5], "seeded2": [5]}
    return model_of(
        nodes,
        [value("x", FLOAT, [5]), value("rows", FLOAT, [6, 5])],
        [value(name, FLOAT, shape) for name, shape in shapes.items()],
        {"three": np.array(3)},
        opset=17,
    )
