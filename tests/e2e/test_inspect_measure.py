"""`tcc inspect --measure` counts the same for a symbolic model at given sizes as for a model with
fixed sizes."""

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

from tests.lib.agreement import BOOL, FLOAT, INT64, model_of, value

node = helper.make_node
SIZES = {"x": (100, 64), "z": (2, 4, 60, 60), "i": (7,)}


def model() -> onnx.ModelProto:
    """Returns a matmul with softmax, adjacent windows, table rows, a loop of three trips, and an
    output of data-dependent size."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Tanh", ["a"], ["b"])],
        "body",
        [value("j", INT64, []), value("c", BOOL, []), value("a", FLOAT, ["n", 64])],
        [value("d", BOOL, []), value("b", FLOAT, ["n", 64])],
    )
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 32)).astype(np.float32),
        "table": rng.standard_normal((5000, 16)).astype(np.float32),
        "three": np.array(3),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Softmax", ["h"], ["y"]),
        node("MaxPool", ["z"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Gather", ["table", "i"], ["q"]),
        node("Loop", ["three", "", "x"], ["l"], body=body),
        node("Compress", ["x", "mask"], ["k"], axis=0),
        node("Sigmoid", ["k"], ["s"]),
    ]
    inputs = [
        value("x", FLOAT, ["n", 64]),
        value("z", FLOAT, ["c", 4, "t", "t"]),
        value("i", INT64, ["m"]),
        value("mask", BOOL, ["n"]),
    ]
    outputs = [
        value("y", FLOAT, ["n", 32]),
        value("p", FLOAT, ["c", 4, "u", "v"]),
        value("q", FLOAT, ["m", 16]),
        value("l", FLOAT, ["n", 64]),
        value("s", FLOAT, ["k", 64]),
    ]
    return model_of(nodes, inputs, outputs, weights)


def measured(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns the measured rows of the kernels, by the node that each computes."""
    arguments = [f"--input={name}={'x'.join(map(str, shape))}" for name, shape in SIZES.items()]
    words = ["inspect", str(path), "--measure", "--json", "--runs", "1", *arguments]
    assert cli.execute([*words, "--input=mask=100xbool=1"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {row["source"]: row for row in rows if row["source"]}


def test_work_at_open_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tcc.compile(model(), jobs=1).save(tmp_path / "open.so")
    tcc.compile(model(), jobs=1, inputs={**SIZES, "mask": (100,)}).save(tmp_path / "fixed.so")
    rows = measured(tmp_path / "open.so", capsys)
    rows_of_fixed = measured(tmp_path / "fixed.so", capsys)
    assert rows.keys() == rows_of_fixed.keys()
    assert len(rows) == 6, list(rows)
    for source, row in rows.items():
        if "Sigmoid" in source:
            assert (row["flops"], row["bytes"], row["share"]) == (None, None, None)
            continue
        fields = ("launches", "flops", "bytes")
        assert [row[name] for name in fields] == [rows_of_fixed[source][name] for name in fields], (
            source
        )
        assert row["predicted"] > 0
        assert row["flops"] or "Gather" in source or source == "size"
    assert {row["launches"] for row in rows.values()} == {1, 3}
