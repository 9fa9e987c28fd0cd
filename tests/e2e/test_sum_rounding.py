"""Contractions of any length round no more than sums in blocks of 384 terms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper

from tests.lib.agreement import FLOAT, Array, model_of, value

BLOCK = 384


def terms(shape: tuple[int, ...], seed: int) -> Array:
    return np.abs(np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def rms(error: Array) -> float:
    return float(np.sqrt(np.mean(np.square(error, dtype=np.float64))))


def rounded(a: Array, b: Array, block: int) -> Array:
    """Returns the dot product of each pair of rows of two (N, K) f32 arrays, in f32 with fused
    multiply-adds; blocks of `block` terms are summed separately."""
    total = np.zeros(len(a), np.float32)
    for start in range(0, a.shape[1], block):
        part = np.zeros(len(a), np.float32)
        for k in range(start, min(start + block, a.shape[1])):
            part = (part + a[:, k].astype(np.float64) * b[:, k]).astype(np.float32)
        total += part
    return total


def product(rows: int, steps: int, columns: int) -> tuple[onnx.ModelProto, Array, Array, Array]:
    """Returns a matmul model, its input, and the pairs of rows whose dot products are its
    results."""
    x, w = terms((rows, steps), 1), terms((steps, columns), 2)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, [rows, steps])],
        [value("y", FLOAT, [rows, columns])],
        {"w": w},
    )
    return model, x, np.repeat(x, columns, 0), np.tile(w.T, (rows, 1))


def convolution(channels: int) -> tuple[onnx.ModelProto, Array, Array, Array]:
    """Returns a 3 x 3 convolution model without padding, its input, and the pairs of rows of its
    results."""
    x, w = terms((1, channels, 9, 8), 3), terms((8, channels, 3, 3), 4)
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [value("x", FLOAT, [1, channels, 9, 8])],
        [value("y", FLOAT, [1, 8, 7, 6])],
        {"w": w},
    )
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), (1, 2))
    windows = windows.transpose(1, 2, 0, 3, 4).reshape(42, -1)
    return model, x, np.tile(windows, (8, 1)), np.repeat(w.reshape(8, -1), 42, 0)


@pytest.mark.parametrize(
    "case",
    [
        product(40, 480, 48),
        product(24, 997, 40),
        product(12, 3000, 32),
        convolution(72),
    ],
    ids=["one run", "a prime", "several runs", "convolution"],
)
def test_contractions_round_as_sums_in_blocks(
    case: tuple[onnx.ModelProto, Array, Array, Array],
) -> None:
    model, x, a, b = case
    exact = (a.astype(np.float64) * b).sum(1)
    blocks, one = (rms(rounded(a, b, n) - exact) for n in (BLOCK, a.shape[1]))
    assert one > 1.25 * blocks  # else the test could not distinguish them
    options = {"numerics": "strict", "cpu": "x86-64-v3"}  # direct sums; prices of one processor
    output = tcc.compile(model, **options).run({"x": x})["y"].reshape(-1)
    assert rms(output - exact) < 1.12 * blocks
