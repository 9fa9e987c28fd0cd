"""`--precision int8` works from the model to the results, with errors of layers in the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.errors import UserError

from tests.closeness import assert_within
from tests.draws import RNG
from tests.passes.quantize.test_int8_layers import Array, expected, matmul, model_of

OPTIONS: dict[str, Any] = {"precision": "int8", "jobs": 1, "derive": False}


def weights(depth: int = 96, columns: int = 176) -> Array:
    return RNG.standard_normal((depth, columns)).astype(np.float32)


def network() -> onnx.ModelProto:
    """Returns a model with a convolution, and a matmul of what a pooling leaves of it."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "f"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["v"]),
        node("MatMul", ["v", "w"], ["y"], name="head"),
    ]
    filters = RNG.standard_normal((64, 8, 3, 3)).astype(np.float32)
    return model_of(nodes, (1, 8, 6, 6), {"f": filters, "w": weights(64, 256)})


def test_rows_of_all_counts() -> None:
    w = weights()
    module = tcc.compile(matmul(w), threads=2, **OPTIONS)
    facts = module.manifest["int8"]
    (layer,) = facts["layers"]
    assert module.manifest["precision"] == "int8"
    assert (facts["bound"], facts["samples"], layer["int8"]) == (0.02, 0, True)
    assert module.manifest["variants"][0]["weight_types"] == {"int8": 1}
    assert module.manifest["variants"][0]["weights"]["bytes"] < w.nbytes / 3
    for rows in (1, 2, 13, 64):
        x = RNG.standard_normal((rows, len(w))).astype(np.float32)
        exact = expected(x, w)
        # A byte may differ where the processor rounds a quotient to another float than NumPy.
        step = np.abs(x).max() / 127 * np.abs(w).max()
        y = np.asarray(module.run({"x": x})["y"])
        assert_within(y, exact, 1e-5 * np.abs(exact).max() + step)
        assert np.sqrt(((y - x @ w) ** 2).mean() / ((x @ w) ** 2).mean()) < 0.015


def test_rows_of_integers_that_several_kernels_read() -> None:
    """The kernel that rounds the rows of a sum stores the sum and the ranges for other kernels.
    With ranges of 255 and weights up to 127 all scales are 1, so all results are exact."""
    nodes = [
        helper.make_node("Slice", ["x", "first", "middle", "axes"], ["a"]),
        helper.make_node("Slice", ["x", "middle", "last", "axes"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["p"]),
        helper.make_node("MatMul", ["s", "w"], ["q"]),
        helper.make_node("Mul", ["p", "q"], ["pq"]),
        helper.make_node("Add", ["pq", "s"], ["y"]),
    ]
    bounds = {"first": [0], "middle": [160], "last": [320], "axes": [1]}
    levels = [RNG.integers(-9, 10, (160, 160)) for _ in range(2)]
    for matrix in levels:
        matrix[RNG.integers(0, 160), :] = 127
    constants = {k: np.asarray(v, np.int64) for k, v in bounds.items()}
    constants |= {k: m.astype(np.float32) for k, m in zip("vw", levels, strict=True)}
    module = tcc.compile(model_of(nodes, (24, 320), constants), threads=2, **OPTIONS)
    assert module.manifest["variants"][0]["weight_types"] == {"int8": 2}
    low = RNG.integers(-255, 1, (24, 1))
    rows = RNG.integers(low, low + 256, (24, 160))
    rows[:, [3]], rows[:, [77]] = low, low + 255
    part = RNG.integers(-999, 1000, rows.shape)
    y = np.asarray(module.run({"x": np.hstack([part, rows - part]).astype(np.float32)})["y"])
    p, q = (rows @ matrix for matrix in levels)
    assert np.array_equal(y, p.astype(np.float32) * q.astype(np.float32) + rows.astype(np.float32))


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    proto, data = network(), {"x": RNG.standard_normal((4, 8, 6, 6)).astype(np.float32)}
    np.savez(tmp_path / "data.npz", **data)
    folder = tmp_path / "data"
    folder.mkdir()
    for number, sample in enumerate(data["x"]):
        np.save(folder / f"{number}.npy", sample[np.newaxis])
    artifacts = []
    for source in ("data.npz", "data.npz", "data"):
        module = tcc.compile(proto, calibrate=tmp_path / source, **OPTIONS)
        module.save(tmp_path / "m.so")
        artifacts.append((tmp_path / "m.so").read_bytes())
    assert artifacts[0] == artifacts[1] == artifacts[2]


def test_convolutions_need_samples(tmp_path: Path) -> None:
    proto, x = network(), RNG.standard_normal((4, 8, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    wide = tcc.compile(proto, **OPTIONS).manifest
    module = tcc.compile(proto, calibrate=tmp_path / "data.npz", **OPTIONS)
    kinds = [
        {one["op"]: one["int8"] for one in m["int8"]["layers"]} for m in (wide, module.manifest)
    ]
    assert kinds == [{"conv": False, "matmul": True}, {"conv": True, "matmul": True}]
    assert wide["variants"][0]["wide"] == ["f"]
    assert module.manifest["int8"]["samples"] == 4
    assert module.manifest["ops"] == len(proto.graph.node)
    exact = tcc.compile(proto, jobs=1).run({"x": x[:1]})["y"]
    y = module.run({"x": x[:1]})["y"]
    error = np.sqrt(((np.asarray(y) - exact) ** 2).mean() / np.square(exact).mean())
    assert 0.001 < error < 0.04


def test_layers_beyond_the_bound_stay_in_f32() -> None:
    proto, x = matmul(weights()), RNG.standard_normal((3, 96)).astype(np.float32)
    module = tcc.compile(proto, int8_error=0.001, **OPTIONS)
    (layer,) = module.manifest["int8"]["layers"]
    assert not layer["int8"]
    assert layer["error"] > 0.001
    assert module.manifest["variants"][0]["wide"] == ["w"]
    plain = tcc.compile(proto, jobs=1, derive=False).run({"x": x})["y"]
    np.testing.assert_array_equal(module.run({"x": x})["y"], plain)


def test_the_error_of_a_layer_is_that_of_its_result(tmp_path: Path) -> None:
    w = weights()
    x = RNG.standard_normal((4, 96)).astype(np.float32)
    x[:, 0] *= 40  # an outlier takes most of the range of a row
    np.savez(tmp_path / "data.npz", x=x[:, np.newaxis])
    module = tcc.compile(matmul(w), calibrate=tmp_path / "data.npz", **OPTIONS)
    (layer,) = module.manifest["int8"]["layers"]
    exact = x.astype(np.float64) @ w
    error = np.sqrt(((expected(x, w) - exact) ** 2).sum() / (exact**2).sum())
    assert layer["error"] == pytest.approx(error, rel=0.02, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weights": "int4"}, "--weights int8 or int4, with or without --activations"),
        ({"activations": "int8"}, "stands alone"),
        ({"precision": "bf16", "int8_error": 0.1}, "add --precision int8"),
        ({"precision": "f32", "calibrate": "data"}, "add --precision int8"),
        ({"int8_error": -1}, "is no part"),
        ({"cpu": "x86-64-v3"}, "VNNI or dotprod"),
        ({"target": "cuda"}, "a precision of CPUs"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as caught:
        tcc.compile(matmul(weights()), **{"precision": "int8", **options})
    assert why in str(caught.value)


def test_models_without_layers_and_quantised_models_are_refused() -> None:
    node = helper.make_node
    relu = model_of([node("Relu", ["x"], ["y"])], (2, 3), {})
    quantised = model_of(
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("MatMul", ["d", "w"], ["y"]),
        ],
        (2, 96),
        {"w": weights()},
    )
    for model, why in ((relu, "no layer"), (quantised, "quantised already")):
        with pytest.raises(UserError, match=why):
            tcc.compile(model, **OPTIONS)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"image": np.zeros((3, 96))}, "it has image; the inputs are x"),
        ({"x": np.zeros((3, 2, 95))}, "the input is f32"),
        ({"x": np.ones((3, 2, 96), np.float64)}, "float64"),
        ({"x": np.full((3, 2, 96), np.nan)}, "a NaN or an infinity"),
        ({"x": np.ones((1, 2, 96))}, "only one sample"),
        ({"x": np.ones((3, 2, 96))}, "all 3 samples are equal"),
        ({"x": np.ones((0, 2, 96))}, "different numbers of samples, or none"),
    ],
)
def test_bad_samples(tmp_path: Path, arrays: dict[str, Array], why: str) -> None:
    samples = {k: a if "float64" in why else a.astype(np.float32) for k, a in arrays.items()}
    np.savez(tmp_path / "data.npz", **samples)
    with pytest.raises(UserError) as caught:
        tcc.compile(matmul(weights()), calibrate=tmp_path / "data.npz", **OPTIONS)
    assert why in str(caught.value)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, artifact = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(network(), model)
    flags = ["--precision", "int8", "--jobs", "1", "--no-derive"]
    assert cli.execute(["compile", str(model), "-o", str(artifact), *flags]) == 0
    out = capsys.readouterr().out
    assert "1 of 2 matmul and convolution weights as int8" in out
    assert "1 as f32: f" in out
    assert cli.execute(["verify", str(model), str(artifact), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["precision"] == "int8"
    assert 1e-4 < facts["outputs"][0]["cost"] < 0.05
    assert cli.execute(["verify", str(model), str(artifact), "--layers"]) == 2
    missing = ["--calibrate", str(tmp_path / "no")]
    assert cli.execute(["compile", str(model), "-o", str(artifact), *flags, *missing]) == 2
    assert "there is no such folder" in capsys.readouterr().err
