"""Plans for numbers of ranks that do not divide the heads or the vocabulary of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.artifact import read_manifest

from tests.commands import command
from tests.draws import RNG, seeded
from tests.ranks import on_ranks

Array = np.ndarray[Any, np.dtype[Any]]
HEADS, SIZE, TOKENS, VOCABULARY, HIDDEN = 10, 16, 12, 503, 100
WIDTH = HEADS * SIZE

with seeded("uneven"):
    WEIGHTS = {
        name: (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in {
            "table": (VOCABULARY, WIDTH),
            **dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)),
            "up": (WIDTH, HIDDEN),
            "down": (HIDDEN, WIDTH),
            "head": (WIDTH, VOCABULARY),
        }.items()
    }
    IDS = RNG.integers(0, VOCABULARY, (1, TOKENS))


def decoder() -> onnx.ModelProto:
    """Returns an embedding, attention with ten heads, two layers, and logits for all words."""
    node = helper.make_node
    nodes = [node("Gather", ["table", "ids"], ["x"], axis=0)]
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}.columns"]),
            node("Reshape", [f"{name}.columns", "heads"], [f"{name}.heads"]),
            node("Transpose", [f"{name}.heads"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["attention"], axis=-1),
        node("MatMul", ["attention", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["mixed.tokens"], perm=(0, 2, 1, 3)),
        node("Reshape", ["mixed.tokens", "rows"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["o"]),
        node("Add", ["o", "x"], ["y"]),
        node("MatMul", ["y", "up"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "down"], ["d"]),
        node("MatMul", ["d", "head"], ["logits"]),
    ]
    shapes = {"heads": [1, TOKENS, HEADS, SIZE], "rows": [1, TOKENS, WIDTH]}
    constants = [
        *(numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()),
        *(numpy_helper.from_array(np.array(dims), name) for name, dims in shapes.items()),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, TOKENS])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, TOKENS, VOCABULARY])
    graph = helper.make_graph(nodes, "decoder", [ids], [logits], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def reference() -> Array:
    """Returns the logits in float64."""
    w = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    x = w["table"][IDS[0]]
    q, k, v = (
        (x @ w[name]).reshape(TOKENS, HEADS, SIZE).swapaxes(0, 1) for name in ("wq", "wk", "wv")
    )
    scores = np.exp(q @ k.swapaxes(1, 2))
    mixed = scores / scores.sum(-1, keepdims=True) @ v
    y = mixed.swapaxes(0, 1).reshape(TOKENS, WIDTH) @ w["wo"] + x
    return (np.maximum(y @ w["up"], 0) @ w["down"] @ w["head"])[np.newaxis]


def tcc(library: Path, folder: Path, *words: str) -> None:
    ended = command(folder, *words, TCC_COMM_LIBRARY=str(library))
    assert ended.returncode == 0, ended.stderr


def assert_ranks_agree(folder: Path, library: Path, ranks: int) -> None:
    outputs = on_ranks(folder, library, {"decoder": [{"ids": IDS}] * ranks})["decoder"]
    expected, largest = reference(), np.abs(reference()).max()
    for results in outputs:
        np.testing.assert_array_equal(results["logits"], outputs[0]["logits"], strict=True)
        np.testing.assert_allclose(results["logits"], expected, rtol=0, atol=1e-5 * largest)


@pytest.fixture(scope="module")
def folder(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uneven")
    onnx.save(decoder(), folder / "decoder.onnx")
    tcc(comm_library, folder, "compile", "decoder.onnx", "--ranks", "1,3,4")
    return folder


@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_share_ten_heads_and_any_vocabulary(
    comm_library: Path, folder: Path, ranks: int
) -> None:
    assert_ranks_agree(folder, comm_library, ranks)
    one, *divided = read_manifest(folder / "decoder.so")["variants"]
    entry = next(entry for entry in divided if entry["ranks"] == ranks)
    assert entry["weights"]["bytes"] < 0.5 * one["weights"]["bytes"]


def test_a_plan_divides_attention_by_whole_heads(comm_library: Path, tmp_path: Path) -> None:
    ranks = 3
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    tcc(comm_library, tmp_path, "plan", "decoder.onnx", "--ranks", str(ranks), "-o", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    block = -(-HEADS // ranks)
    text = f"split(1, block={block}) -> split(1, block={block})"
    plan["nodes"] = [row | {"strategy": text} for row in plan["nodes"] if row["op"] == "softmax"]
    assert len(plan["nodes"]) == 1
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ("compile", "decoder.onnx", "--ranks", str(ranks), "--plan", "plan.json")
    tcc(comm_library, tmp_path, *words)
    assert_ranks_agree(tmp_path, comm_library, ranks)
