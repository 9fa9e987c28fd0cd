"""Compiled attention with constant masks and index tables agrees with NumPy in f64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tcc
from onnx import helper
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.agreement import FLOAT, Array, model_of, value

node = helper.make_node
WIDTH = 64


def normal(heads: int, rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    return {n: rng.standard_normal((heads, rows, WIDTH)).astype(np.float32) for n in "qkv"}


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def compiled(folder: Path, model: onnx.ModelProto, **options: Any) -> tuple[Path, int]:
    """Returns the path of the artifact, and the bytes of its arena."""
    settings = read_options({"cpu": "x86-64-v3", "jobs": 1, **options})
    result = compile_model(model, settings, folder / f"{len(list(folder.iterdir()))}.so")
    return result.path, result.summary.variants[0].arena


def band(heads: int, rows: int, reach: int) -> onnx.ModelProto:
    """Returns attention in which each row sees `reach` rows on both sides, copied by gathers."""
    places = np.arange(rows)[:, None] + np.arange(2 * reach + 1) - reach
    mask = np.where((places >= 0) & (places < rows), np.float32(0), np.float32(-np.inf))
    shape = [heads, rows, WIDTH]
    return model_of(
        [
            node("Gather", ["k", "places"], ["near_k"], axis=1),
            node("Gather", ["v", "places"], ["near_v"], axis=1),
            node("Unsqueeze", ["q", "two"], ["row"]),
            node("Transpose", ["near_k"], ["columns"], perm=[0, 1, 3, 2]),
            node("MatMul", ["row", "columns"], ["scores"]),
            node("Add", ["scores", "mask"], ["masked"]),
            node("Softmax", ["masked"], ["p"], axis=-1),
            node("MatMul", ["p", "near_v"], ["mixed"]),
            node("Squeeze", ["mixed", "two"], ["y"]),
        ],
        [value(name, FLOAT, shape) for name in "qkv"],
        [value("y", FLOAT, shape)],
        {
            "places": places.clip(0, rows - 1).astype(np.int64),
            "mask": mask[:, None],
            "two": np.array([2]),
        },
    )


def test_a_band_of_gathers_copies_no_windows(tmp_path: Path) -> None:
    heads, rows, reach = 4, 512, 16
    path, arena = compiled(tmp_path, band(heads, rows, reach))
    feeds = normal(heads, rows)
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    scores = q @ k.transpose(0, 2, 1)
    in_band = np.abs(np.arange(rows)[:, None] - np.arange(rows)) <= reach
    reference = softmax(np.where(in_band, scores, -np.inf)) @ v
    output = tcc.load(path).run(feeds)["y"]
    np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-5)
    operand = heads * rows * WIDTH * 4
    assert arena <= 3 * operand  # two operands, extended by the reach at both ends


def attention(heads: int, rows: int, mask: Array) -> onnx.ModelProto:
    shape = [heads, rows, WIDTH]
    return model_of(
        [
            node("Transpose", ["k"], ["columns"], perm=[0, 2, 1]),
            node("MatMul", ["q", "columns"], ["scores"]),
            node("Mul", ["scores", "scale"], ["scaled"]),
            node("Where", ["mask", "scaled", "hidden"], ["masked"]),
            node("Softmax", ["masked"], ["p"], axis=-1),
            node("MatMul", ["p", "v"], ["y"]),
        ],
        [value(name, FLOAT, shape) for name in "qkv"],
        [value("y", FLOAT, shape)],
        {
            "mask": mask,
            "scale": np.array(0.25, np.float32),
            "hidden": np.array(np.finfo(np.float32).min, np.float32),
        },
    )


def test_masked_attention_is_the_same_for_all_threads(tmp_path: Path) -> None:
    heads, rows = 4, 500
    distances = np.arange(rows)[:, None] - np.arange(rows)
    mask = (distances >= 0) & (distances < 70)
    model, feeds = attention(heads, rows, mask), normal(heads, rows)
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    reference = softmax(np.where(mask, 0.25 * q @ k.transpose(0, 2, 1), -np.inf)) @ v
    path, _ = compiled(tmp_path, model)
    outputs = [tcc.load(path, threads=n).run(feeds)["y"] for n in (1, 2)]
    np.testing.assert_allclose(outputs[0], reference, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs[0], outputs[1])
    # Rows that no query of a tile sees are not read, except in strict numerics.
    feeds["v"][:, 400:] = np.nan
    assert not np.isnan(tcc.load(path).run(feeds)["y"][:, :250]).any()
    strict, _ = compiled(tmp_path, model, numerics="strict")
    assert np.isnan(tcc.load(strict).run(feeds)["y"]).all()
