"""If a model's random nodes return tcc's draws, ONNX Runtime gives tcc's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tcc.frontends import load_model
from tcc.frontends.onnx.drawn import random_nodes, write_drawn
from tcc.ir.graph.evaluate import evaluate_graph

from tests.e2e.random_models import flow, looped, node
from tests.lib.agreement import FLOAT, Array, expected, model_of, session, value
from tests.lib.import_oracle import model_of as parsed


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


def by_runtime(path: Path, feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    """Returns ONNX Runtime's outputs with the draws of a seed."""
    assert write_drawn(path, path.with_name("drawn.onnx"), seed)
    return expected(session(path.with_name("drawn.onnx")), feeds)


def test_a_voice(tmp_path: Path) -> None:
    path, graph = saved(flow(), tmp_path), load_model(flow())
    for t, seed in ((1, 0), (20, 7)):
        x = np.random.default_rng(t).standard_normal((t, 8)).astype(np.float32)
        feeds = {"x": x, "temperature": np.array(0.7, np.float32)}
        outputs, due = by_runtime(path, feeds, seed), evaluate_graph(graph, feeds, seed=seed)
        assert list(outputs) == list(due)
        np.testing.assert_allclose(outputs["z"], due["z"], rtol=1e-5, atol=1e-5)


def test_every_law(tmp_path: Path) -> None:
    double = TensorProto.DOUBLE
    nodes = [
        node("RandomUniform", [], ["a"], shape=[3, 4], low=-1.0, seed=2.0),
        node("RandomNormal", [], ["b"], shape=[70_000], dtype=double, mean=1.0),
        node("RandomNormalLike", ["x"], ["c"], dtype=double),
        node("RandomUniformLike", ["x"], ["d"]),
    ]
    kinds = {"a": FLOAT, "b": double, "c": double, "d": FLOAT}
    ranks = {"a": 2, "b": 1}
    outputs = [value(n, k, [None] * ranks.get(n, 3)) for n, k in kinds.items()]
    model = model_of(nodes, [value("x", FLOAT, ["n", 300, 3])], outputs, opset=17)
    path, graph = saved(model, tmp_path), load_model(model)
    for n in (100, 0):
        x = {"x": np.full((n, 300, 3), 0.3, np.float32)}
        draws, due = by_runtime(path, x, 5), evaluate_graph(graph, x, seed=5)
        for name, array in due.items():
            np.testing.assert_array_equal(draws[name], array)


@pytest.mark.parametrize(
    "body",
    [
        "l = Unsqueeze (x, z) i = Multinomial (l) y = Cast <to = 1> (i)",
        "y = Dropout (x, r, t)",
        "y = Bernoulli (x)",
        "y = RandomUniformLike <dtype = 16> (x) ",
        "y = local.noise (x)",
    ],
)
def test_models_that_draw_random_numbers_have_no_peer(body: str, tmp_path: Path) -> None:
    functions = """
    <domain: "local", opset_import: ["" : 17]>
    noise (x) => (y) { y = RandomUniformLike (x) }"""
    constants = "z = Constant <value_ints = [0]> () r = Constant <value_float = 0.5> ()"
    text = f"g (float[4] x, bool t) => (float[4] y) {{ {constants} {body} }}"
    model = parsed(text, functions=functions)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert random_nodes(path)
    assert not write_drawn(path, tmp_path / "drawn.onnx", 0)
    assert not (tmp_path / "drawn.onnx").exists()


def test_draws_of_loops_are_not_given(tmp_path: Path) -> None:
    path = saved(looped(), tmp_path)
    assert len(random_nodes(path)) == 5
    assert not write_drawn(path, tmp_path / "drawn.onnx", 0)
    still = model_of([node("Relu", ["x"], ["y"])], [value("x")], [value("y")])
    assert not random_nodes(saved(still, tmp_path))
