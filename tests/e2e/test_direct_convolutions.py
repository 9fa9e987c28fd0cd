"""Direct sums replace fast convolutions if symbolic sizes are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc.driver import model_choices
from tcc.options import Options
from tcc.passes.program.small_sizes import crossing
from tcc.schedule.alternatives import Decision

from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

from .test_buckets import steps_of_runs

_CHANNELS = 64


def layers(count: int = 2) -> onnx.ModelProto:
    """Returns 3x3 convolutions that fast forms compute at typical sizes."""
    rng = np.random.default_rng(48)
    nodes, weights = [], {}
    for n in range(count):
        shape = (_CHANNELS, _CHANNELS, 3, 3)
        weights[f"w{n}"] = (rng.standard_normal(shape) / 24).astype(np.float32)
        nodes += [
            helper.make_node("Conv", [f"x{n}", f"w{n}"], [f"c{n}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{n}"], [f"x{n + 1}"]),
        ]
    open_shape = [1, _CHANNELS, "h", "w"]
    ports = [value(name, FLOAT, open_shape) for name in ("x0", f"x{count}")]
    return model_of(nodes, ports[:1], ports[1:], weights)


def behind_a_result() -> onnx.ModelProto:
    """Returns a convolution whose operand one kernel computes, after another kernel that computes a
    result."""
    node, shape = helper.make_node, (_CHANNELS, _CHANNELS, 3, 3)
    rng = np.random.default_rng(49)
    nodes = [
        node("Reshape", ["x0", "flat"], ["early"]),
        node("ReduceMean", ["x0"], ["mean"], axes=[2, 3]),
        node("Mul", ["x0", "mean"], ["scaled"]),
        node("Conv", ["scaled", "w"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["y"]),
    ]
    weights = {"w": rng.standard_normal(shape).astype(np.float32) / 24, "flat": np.array([-1])}
    return model_of(
        nodes,
        [value("x0", FLOAT, [1, _CHANNELS, "h", "w"])],
        [
            value("early", FLOAT, ["n"]),
            value("y", FLOAT, [1, _CHANNELS, "h", "w"]),
        ],
        weights,
        opset=17,
    )


def image(h: int, w: int) -> Array:
    return np.random.default_rng((h, w)).standard_normal((1, _CHANNELS, h, w)).astype(np.float32)


def steps(path: Path, *sizes: tuple[int, int]) -> list[frozenset[int]]:
    return steps_of_runs(path, *((1, _CHANNELS, h, w) for h, w in sizes))


def test_an_input_of_packed_elements_stands_beside(tmp_path: Path) -> None:
    """Kernels see other sizes of the packed input than callers do."""
    model = layers(1)
    nibbles = helper.make_tensor_value_info("nibbles", onnx.TensorProto.INT4, ["n", 3])
    model.graph.input.append(nibbles)
    model.graph.node.append(helper.make_node("Cast", ["nibbles"], ["z"], to=FLOAT))
    model.graph.output.append(value("z", FLOAT, ["n", 3]))
    onnx.save(model, tmp_path / "m.onnx")
    module = tcc.compile(tmp_path / "m.onnx", jobs=1)
    plain = session(layers(1))
    numbers = np.arange(-6, 6).reshape(4, 3)
    for size in ((1, 2), (31, 33)):
        x = image(*size)
        results = module.run({"x0": x, "nibbles": numbers.astype(ml_dtypes.int4)})
        assert np.array_equal(results.pop("z"), numbers)
        assert_agree(results, expected(plain, {"x0": x}))


def test_small_sizes_run_direct_sums_alone(tmp_path: Path) -> None:
    model = layers()
    module = tcc.compile(model, jobs=1)
    module.save(tmp_path / "m.so")
    small, transposed, large, wide = steps(tmp_path / "m.so", (1, 2), (2, 1), (31, 33), (1, 900))
    assert small == transposed
    assert large == wide
    # The padded copy of the input, and one kernel per layer.
    assert len(small) <= 4 < len(large)
    lengths = range(1, 100)
    runs = steps(tmp_path / "m.so", *((1, w) for w in lengths))
    changes = [w for w in lengths[1:] if runs[w - 1] != runs[w - 2]]
    assert 1 <= len(changes) <= 2  # each layer has its own bound
    runner = session(model)
    edges = [(1, change - n) for change in changes for n in (0, 1)]
    for h, w in [(1, 1), (3, 3), (31, 33), *edges]:
        arrays = {"x0": image(h, w)}
        assert_agree(module.run(arrays), expected(runner, arrays), 1e-4)
    (empty,) = module.run({"x0": image(0, 7)}).values()
    assert empty.shape == (1, _CHANNELS, 0, 7)


def test_operands_of_direct_sums_and_results_are_computed_at_all_sizes(tmp_path: Path) -> None:
    module, runner = tcc.compile(behind_a_result(), jobs=1), session(behind_a_result())
    module.save(tmp_path / "m.so")
    small, large = steps(tmp_path / "m.so", (1, 2), (31, 33))
    assert len(small) < len(large)
    for h, w in [(1, 1), (2, 3), (31, 33)]:
        arrays = {"x0": image(h, w)}
        assert_agree(module.run(arrays), expected(runner, arrays), 1e-4)


def test_bad_values_stay_where_they_are_read_at_all_sizes() -> None:
    module = tcc.compile(layers(1), jobs=1)
    for h, w in [(2, 2), (5, 7), (40, 40)]:
        array = image(h, w)
        array[0, 3, 0, 0] = np.nan
        (result,) = module.run({"x0": array}).values()
        assert np.isnan(result).any(axis=1).sum() == min(h, 2) * min(w, 2)


@pytest.mark.parametrize("options", [{"typical": {"h": 64, "w": 64}}, {"derive": False}], ids=str)
def test_one_algorithm_is_enough(options: dict[str, Any], tmp_path: Path) -> None:
    tcc.compile(layers(1), jobs=1, **options).save(tmp_path / "m.so")
    small, large = steps(tmp_path / "m.so", (1, 1), (31, 33))
    assert small == large


def test_direct_sums_of_small_sizes_are_a_decision(tmp_path: Path) -> None:
    def decisions(model: onnx.ModelProto) -> list[Decision[Any]]:
        ledger = model_choices(model, Options(cpu="x86-64-v3"))
        return [d for d in ledger.decisions() if d.site.kind == "small-sizes"]

    model, renamed = layers(1), layers(1)
    for port in (*renamed.graph.input, *renamed.graph.output):
        for dim, name in zip(port.type.tensor_type.shape.dim[2:], "ab", strict=True):
            dim.dim_param = name
    (decision,) = decisions(model)
    assert decision.site == decisions(renamed)[0].site
    assert decision.rule.text == "fast"
    assert decision.choice.text.startswith("direct-up-to-")
    file = tmp_path / "choices.jsonl"
    file.write_text(json.dumps({"site": decision.site.text, "alternative": "fast"}))
    path = tmp_path / "m.so"
    tcc.compile(model, jobs=1, cpu="x86-64-v3", choices=file).save(path)
    small, large = steps(path, (1, 2), (31, 33))
    assert small == large


def test_the_bound_lies_where_times_cross() -> None:
    products = [10_000, 1_000, 10, 1]
    assert crossing(products, [n / 100 for n in products]) == 100
    # In powers of two, the upper ratio is half as far from 1 as the lower ratio.
    assert crossing([1_000, 10], [2**0.5, 0.5]) == round(1_000 ** (2 / 3) * 10 ** (1 / 3))


def test_a_bound_needs_a_gain_and_holds_for_all_sizes_below() -> None:
    assert crossing([100, 10, 1], [2.0, 1.5, 1.0]) is None
    assert crossing([100, 10, 1], [2.0, 1.0, 0.95]) == 10
    assert crossing([100, 10, 1], [0.5, 1.0, 0.5]) == 10
    assert crossing([100, 10, 1], [0.5, 0.6, 0.7]) == 100


def test_direct_sums_of_one_phase_leave_the_others() -> None:
    """Results at even and at odd places have separate kernels, of which one has a fast form."""
    channels, rng = 16, np.random.default_rng(50)
    weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], pads=[1] * 4, strides=[2, 2])
    ports = [value(name, FLOAT, ["n", channels, h, w]) for name, h, w in ("xhw", "ykl")]
    model = model_of([node], ports[:1], ports[1:], {"w": weight})
    module, runner = tcc.compile(model, jobs=1), session(model)
    for shape in ((1, 1), (1, 2), (3, 3), (5, 4), (31, 29), (97, 65)):
        x = rng.standard_normal((1, channels, *shape)).astype(np.float32)
        assert_agree(module.run({"x": x}), expected(runner, {"x": x}))
