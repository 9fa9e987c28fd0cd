"""Artifacts in less than f32 agree with f64 and with each other on this machine."""

from __future__ import annotations

import re
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.errors import UserError
from tcc.options import TOLERANCES

from tests.lib.agreement import model_of, value
from tests.part import part
from tests.processors import distinct

Array = np.ndarray[Any, np.dtype[Any]]

MODES = (
    {"precision": "f32"},
    {"precision": "bf16"},
    {"precision": "f16"},
    {"weights": "int8"},
    {"weights": "int4"},
    {"precision": "bf16", "weights": "int8"},
)
# The least error of each mode; a smaller error would mean that nothing was rounded.
LEAST = {"f32": 0.0, "bf16": 3e-4, "f16": 3e-5, "int8": 1e-3, "int4": 1e-2}


def weights(*shape: int) -> Array:
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


EMBEDDING, UP, DOWN, BIAS = weights(500, 192), weights(192, 640), weights(640, 192), weights(640)


def language_model() -> onnx.ModelProto:
    """Returns normalised rows of an embedding, two matmuls and a residual, compared with all rows
    of the embedding; a gather and a matmul read the same table."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["x"]),
        helper.make_node("LayerNormalization", ["x", "ones"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "up"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["b"]),
        helper.make_node("Gelu", ["b"], ["g"]),
        helper.make_node("MatMul", ["g", "down"], ["d"]),
        helper.make_node("Add", ["d", "x"], ["r"]),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "t"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["shares"], axis=-1),
    ]
    constants = {
        "table": EMBEDDING, "up": UP, "down": DOWN, "bias": BIAS,
        "ones": np.ones(192, np.float32),
    }  # fmt: skip
    tokens = value("tokens", onnx.TensorProto.INT64, ("n",))
    outputs = [value("logits", shape=("n", 500)), value("shares", shape=("n", 500))]
    return model_of(nodes, [tokens], outputs, constants)


def exact(tokens: Array) -> Array:
    """Returns the logits in f64."""
    x = EMBEDDING.astype(np.float64)[tokens]
    centred = x - x.mean(-1, keepdims=True)
    n = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    h = n @ UP.astype(np.float64) + BIAS
    g = h * (1 + np.vectorize(erf)(h / np.sqrt(2))) / 2
    return np.asarray((g @ DOWN.astype(np.float64) + x) @ EMBEDDING.astype(np.float64).T)


def weight_bytes(mode: dict[str, str]) -> float:
    """Returns the bytes of the weights. A narrow mode stores the embedding twice: as a factor of
    the matmul, and in f32 for the gather, because a run reads few of its rows."""
    element = 4 if mode.get("precision", "f32") == "f32" else 2
    scales = 2 / 32
    factor = {"int8": 1 + scales, "int4": 0.5 + scales}.get(mode.get("weights", ""), element)
    rows = 0 if factor == 4 else EMBEDDING.size * 4
    return rows + (EMBEDDING.size + UP.size + DOWN.size) * factor


@pytest.mark.parametrize("mode", part("modes", MODES, 2), ids=lambda m: "-".join(m.values()))
@pytest.mark.parametrize("cpu", distinct("host", "x86-64-v3"))
def test_results_stay_near_f32_and_are_rounded(mode: dict[str, str], cpu: str) -> None:
    module = tcc.compile(language_model(), cpu=cpu, **mode)
    for count in (1, 7):
        tokens = np.arange(count) * 31 % 500
        outputs, reference = module.run({"tokens": tokens}), exact(tokens)
        error = np.abs(outputs["logits"] - reference).max() / np.abs(reference).max()
        assert outputs["logits"].dtype == np.float32
        assert error <= max(TOLERANCES[m] for m in mode.values())
        assert error >= max(LEAST[m] for m in mode.values())
        np.testing.assert_allclose(outputs["shares"].sum(-1), 1, rtol=0, atol=1e-5)
    assert module.manifest["precision"] == mode.get("precision", "f32")
    assert module.manifest["quantized"] == mode.get("weights")
    assert module.manifest["weights"]["bytes"] == pytest.approx(weight_bytes(mode), rel=0.03)


def test_numbers_that_are_none_stay_so() -> None:
    """NaN and infinities in inputs and weights stay in every mode."""
    w = weights(128, 128)
    w[3, 5], w[4, 6] = np.nan, np.inf
    graph = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(graph, [value("x", shape=(2, 128))], [value("y", shape=(2, 128))], {"w": w})
    x = np.ones((2, 128), np.float32)
    x[1, 0] = np.inf
    with np.errstate(invalid="ignore"):
        reference = x @ w
    for mode in MODES:
        if "weights" in mode:
            with pytest.raises(UserError, match="no weight of the model"):
                tcc.compile(model, **mode)
            continue
        output = tcc.compile(model, **mode).run({"x": x})["y"]
        np.testing.assert_array_equal(np.isnan(output), np.isnan(reference))
        np.testing.assert_array_equal(np.isposinf(output), np.isposinf(reference))
        np.testing.assert_array_equal(np.isneginf(output), np.isneginf(reference))


CONSTANTS = {"big": weights(256, 256), "small": weights(256, 8), "filter": weights(8, 8, 3, 3)}
SUMMARIES = {
    "y = MatMul(x, big)": "1 of 1 matmul and convolution weights as {0}",
    "a = MatMul(x, big)  b = Relu(a)  y = MatMul(b, small)": (
        "1 of 2 matmul and convolution weights as {0}"
    ),
    "y = MatMul(x, small)": "",
    "y = Softmax(x)": "",
    "s = Shape(x)  i = Reshape(x, image)  c = Conv(i, filter)  y = Flatten(c)": "",
}


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("text", SUMMARIES)
def test_the_summary_counts_the_weights_that_became_integers(
    text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If no weight becomes an integer, the compile is refused and writes nothing."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]> g (float[2, 256] x) => (float[a, b] y)
        <int64[4] image = {{1, 8, 8, 8}}> {{ {text} }}"""
    )
    named = {name for node in model.graph.node for name in node.input}
    tensors = (onnx.numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in named)
    model.graph.initializer.extend(tensors)
    onnx.save(model, tmp_path / "m.onnx")
    code = cli.execute(
        ["compile", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/m.so", "--weights", name]
    )
    said = capsys.readouterr()
    if SUMMARIES[text]:
        assert (code, said.err) == (0, "")
        assert f"stored  {SUMMARIES[text].format(name)}\n" in said.out
        is_partial = SUMMARIES[text].startswith("1 of 2")
        assert ("wide    1 as f32: small\n" in said.out) == is_partial
    else:
        assert (code, said.out) == (2, "")
        assert f"no weight of the model can be stored as {name}" in said.err
        assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_the_summary_describes_stored_narrow_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"])
    onnx.save(
        model_of([node], [value("x", shape=(3,))], [value("y", shape=(3,))], {}),
        tmp_path / "m.onnx",
    )
    for name, said in (("f32", ""), ("bf16", "stored  no matmul or convolution weights\n")):
        out = str(tmp_path / f"{name}.so")
        assert cli.execute(["compile", f"{tmp_path}/m.onnx", "-o", out, "--precision", name]) == 0
        out = capsys.readouterr().out
        assert f", {name}, 1 op in 1 kernel\n" in out
        assert said in out
        assert ("stored" in out) == bool(said)


def test_verify_prints_the_precision_and_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    path, artifact = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(language_model(), path)
    assert cli.execute(["compile", str(path), "-o", str(artifact), "--weights", "int8"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"stored  [1-9]\d* of \d+ matmul and convolution weights as int8\n", said)
    tokens = ["-i", "tokens=2xi64=3"]
    assert cli.execute(["verify", str(path), str(artifact), *tokens]) == 0
    text = capsys.readouterr().out
    cost = float(text.split("the precision costs ")[1].split()[0])
    assert 1e-3 < cost < 3e-2
    assert "agree" not in text
    assert cli.execute(["verify", str(path), str(artifact), *tokens, "--tolerance", "1e-4"]) == 1


@pytest.mark.parametrize("flag", [["--precision", "fp16"], ["--weights", "int3"]])
def test_unknown_modes_are_refused(flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["compile", "m.onnx", *flag]) == 2
    assert flag[0] in capsys.readouterr().err


def attention(heads: int, width: int, rows: int) -> onnx.ModelProto:
    """Returns self-attention of `rows` tokens with a mask, as torch exports a BERT layer."""
    size, node = heads * width, helper.make_node
    constants: dict[str, Array] = {
        "parts": np.array([1, rows, heads, width]),
        "whole": np.array([1, rows, size]),
        "scale": np.float32(width**-0.5) * np.ones((), np.float32),
    }
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        constants |= {f"{name}.w": weights(size, size), f"{name}.b": weights(size)}
        nodes += [
            node("MatMul", ["x", f"{name}.w"], [f"{name}.p"]),
            node("Add", [f"{name}.p", f"{name}.b"], [f"{name}.a"]),
            node("Reshape", [f"{name}.a", "parts"], [f"{name}.r"]),
            node("Transpose", [f"{name}.r"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Add", ["scaled", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "whole"], ["y"]),
    ]
    floats = onnx.TensorProto.FLOAT
    inputs = [value("x", floats, [1, rows, size]), value("mask", floats, [1, 1, 1, rows])]
    return model_of(nodes, inputs, [value("y", floats, [1, rows, size])], constants)


@pytest.mark.parametrize(("heads", "width", "rows"), [(12, 16, 128), (6, 64, 128), (2, 64, 64)])
def test_attention_of_any_number_of_heads_compiles_in_bf16(
    heads: int, width: int, rows: int, tmp_path: Path
) -> None:
    """znver4 multiplies pairs of bf16, which kernels store in scratch as words."""
    path = tmp_path / "m.onnx"
    onnx.save(attention(heads, width, rows), path)
    options = ["--precision", "bf16", "--cpu", "znver4", "-o", str(tmp_path / "m.so")]
    assert cli.execute(["compile", str(path), *options]) == 0
    rng = np.random.default_rng(heads)
    x = rng.standard_normal((1, rows, heads * width)).astype(np.float32)
    feeds = {"x": x, "mask": np.where(rng.random((1, 1, 1, rows)) < 0.3, -1e4, 0).astype("f4")}
    wide, narrow = (tcc.compile(path, precision=p).run(feeds)["y"] for p in ("f32", "bf16"))
    np.testing.assert_allclose(narrow, wide, atol=2e-2 * np.abs(wide).max(), rtol=0)
