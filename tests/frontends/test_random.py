"""Imported random operators of ONNX and torch have the right distributions; others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tcc.cli.drawn import drawn_model
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph import Graph, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.options import read_options
from tcc.passes.graph.cse import merge_equal_nodes
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.pipeline import run_pipeline

from tests.lib.import_oracle import model_of

from .torch.torch_samples import Call

# One worker loads and warms torch's export and its compiler.
pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        yield


def imported(
    body: str, inputs: str = "float[n, 8] x", outputs: str = "y", element: int = 1
) -> Graph:
    results = ", ".join(f"float[a, b] {name}" for name in outputs.split())
    model = model_of(f"g ({inputs}) => ({results}) {{ {body} }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
        output.type.tensor_type.elem_type = element
    return load_model(model)


X = {"x": np.ones((500, 8), np.float32)}


def streams(graph: Graph) -> list[int]:
    return [n.attrs.number for n in walk_nodes(graph) if n.op.name == "stream_number"]


def test_passes_leave_equal_and_seeded_nodes_alone() -> None:
    """Passes do not merge equal random nodes, and do not fold a draw whose seed the model gives."""
    draw = "RandomNormal <shape = [5, 8], seed = 1.0> ()"
    graph = imported(f"a = {draw} b = {draw} y = Sub (a, b)")
    assert len({*streams(graph)}) == 3  # one for the seed, and one per node
    final = run_pipeline(graph, read_options({}).level, Trace(None, None))
    for changed in (fold_constants(graph), merge_equal_nodes(graph), final):
        bits = [n for n in walk_nodes(changed) if n.op.name == "random_bits"]
        numbers = [n.attrs.number for n in walk_nodes(changed) if n.op.name == "stream_number"]
        assert sorted(numbers) == sorted(streams(graph))
        assert len(bits) == 4 or changed is final
        output = evaluate_graph(changed, dict(X))["y"]
        assert np.abs(output).min() > 0
        np.testing.assert_allclose(output, evaluate_graph(graph, dict(X))["y"], atol=1e-6)


def test_streams_are_of_names() -> None:
    """A node draws the same numbers for any nodes before it."""
    one = imported("y = RandomNormalLike (x)")
    two = imported("z = RandomNormalLike (x) y = RandomNormalLike (x)", outputs="y z")
    outputs = [evaluate_graph(graph, X, seed=3) for graph in (one, two)]
    np.testing.assert_array_equal(outputs[0]["y"], outputs[1]["y"])
    assert not np.array_equal(outputs[1]["z"], outputs[1]["y"])


def test_calls_of_one_function_draw_apart() -> None:
    functions = """
    <domain: "local", opset_import: ["" : 17]>
    noise (x) => (y) { y = RandomUniformLike (x) }"""
    model = model_of(
        "g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z)"
        " { y = local.noise (x)  z = local.noise (x) }",
        functions=functions,
    )
    model.graph.node[0].name = model.graph.node[1].name = "same"
    outputs = evaluate_graph(load_model(model), {"x": X["x"][:4]})
    assert len(np.unique([outputs["y"], outputs["z"]])) == 64


@pytest.mark.parametrize(("name", "code"), [("f16", 10), ("bf16", 16), ("f32", 1), ("f64", 11)])
def test_types(name: str, code: int) -> None:
    for op in ("RandomNormalLike", "RandomUniformLike"):
        graph = imported(f"y = {op} <dtype = {code}> (x)", element=code)
        assert graph.outputs[0].type.dtype.name == name
        y = evaluate_graph(graph, X)["y"].astype(np.float64)
        uniform = op == "RandomUniformLike"
        assert abs(y.mean() - uniform / 2) < 0.06
        assert abs(y.std() - (12**-0.5 if uniform else 1)) < 0.05
        assert not uniform or (y.min() >= 0 and y.max() < 1)


def test_an_interval_excludes_its_end() -> None:
    """In f16 a number below 3 would round to 3 once in 8,192 draws."""
    x = {"x": np.ones((20_000, 8), np.float32)}
    y = evaluate_graph(
        imported(
            "d = RandomUniformLike <dtype = 10, low = 2.0, high = 3.0> (x) y = Cast <to = 1> (d)"
        ),
        x,
    )["y"]
    assert y.min() == 2
    assert y.max() == np.float16(3) - np.float16(2**-9)
    constant = imported("y = RandomUniformLike <low = 2.5, high = 2.5> (x)")
    assert {*evaluate_graph(constant, X)["y"].reshape(-1)} == {2.5}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = RandomNormal <shape = [2], dtype = 7> ()", "floating-point numbers, not i64"),
        ("i = Cast <to = 6> (x) y = RandomUniformLike (i)", "floating-point numbers, not i32"),
        ("y = RandomNormal <shape = [-2, 3]> ()", "negative"),
        ("r = ReduceSum <keepdims = 0> (x) y = Multinomial (r)", "0 axes; 2 are due"),
    ],
)
def test_refused(body: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        imported(body)


@pytest.mark.parametrize("known", [True, False])
def test_dropout_in_training(known: bool) -> None:
    """Kept elements are scaled; a condition that is known only in the run selects training."""
    constant = "t = Constant <value = bool {1}> () r = Constant <value = float {0.25}> ()"
    inputs = "float[n, 8] x" + ("" if known else ", bool t, float r")
    graph = imported(f"{constant if known else ''} y, m = Dropout (x, r, t)", inputs)
    ratio, feeds = np.array(0.25, np.float32), dict(X)
    for training in (True,) if known else (True, False):
        if not known:
            feeds |= {"t": np.array(training), "r": ratio}
        y = evaluate_graph(graph, feeds)["y"]
        if training:
            assert {*np.unique(y)} == {np.float32(0), np.float32(1) / np.float32(0.75)}
            assert abs((y == 0).mean() - 0.25) < 0.03
        else:
            np.testing.assert_array_equal(y, feeds["x"])


def test_a_class_without_weight_is_never_drawn() -> None:
    graph = imported(
        "i = Multinomial <sample_size = 400> (x) y = Cast <to = 1> (i)", "float[n, 3] x"
    )
    x = np.log(np.array([[0.0, 1.0, 3.0], [1e-30, 0.0, 0.0], [0.25, 0.25, 0.5]], np.float32))
    y = evaluate_graph(graph, {"x": x})["y"]
    shares = np.array([np.bincount(row.astype(int), minlength=3) for row in y]) / 400
    due = np.array([[0, 0.25, 0.75], [1, 0, 0], [0.25, 0.25, 0.5]])
    np.testing.assert_allclose(shares, due, atol=0.08)
    assert (shares[due == 0] == 0).all()


# ---- torch ---------------------------------------------------------------------------------------


def exported(function: Any, *inputs: Any) -> Any:
    module = function if isinstance(function, torch.nn.Module) else Call(function)
    return torch.export.export(module, inputs, strict=False)


def drawn(function: Any, *inputs: Any) -> list[np.ndarray]:
    """Returns the results, after a check of their shapes and types against eager torch."""
    graph = load_model(exported(function, *inputs))
    feeds = {v.name: t.numpy() for v, t in zip(graph.inputs, inputs, strict=True)}
    outputs = list(evaluate_graph(graph, feeds, seed=1).values())
    references = function(*inputs)
    for have, reference in zip(outputs, references, strict=True):
        assert (have.shape, str(have.dtype)) == (tuple(reference.shape), str(reference.dtype)[6:])
    return outputs


def everything(x: Any) -> Any:
    empty = torch.empty_like
    return (
        torch.rand(40, 50), torch.rand_like(x), torch.randn(40, 50), torch.randn_like(x),
        torch.bernoulli(x), torch.bernoulli(x, 0.3), F.dropout(x, 0.2, True),
        torch.randint(-3, 9, (40, 50)), torch.randint_like(x, 5), torch.normal(2.0, 3.0, (40, 50)),
        empty(x).uniform_(1, 3), empty(x).normal_(1, 2), empty(x).exponential_(2.0),
        empty(x).bernoulli_(0.25), torch.normal(x, 2.0), torch.rand(x.shape[0], 50),
        torch.randn_like(x, dtype=torch.float64), torch.rand(40, 50, dtype=torch.float16),
    )  # fmt: skip


MOMENTS = (
    (0.5, 0.289), (0.5, 0.289), (0, 1), (0, 1), (0.5, 0.5), (0.3, 0.458), (0.5, 0.25),
    (2.5, 3.452), (2, 1.414), (2, 3), (2, 0.577), (1, 2), (0.5, 0.5), (0.25, 0.433), (0.5, 2),
    (0.5, 0.289), (0, 1), (0.5, 0.289),
)  # fmt: skip


def test_moments() -> None:
    outputs = drawn(everything, torch.full((40, 50), 0.5))
    for y, (mean, deviation) in zip(outputs, MOMENTS, strict=True):
        y = y.astype(np.float64)
        assert abs(y.mean() - mean) < 0.1 * deviation  # 4.5 standard errors
        assert abs(y.std() - deviation) < 0.1 * deviation
    assert {*np.unique(outputs[7])} == {*range(-3, 9)}
    assert {*np.unique(outputs[8])} == {*range(5)}


def test_samples_of_classes() -> None:
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0]])

    def sampled(w: Any) -> Any:
        pairs = w.expand(2000, 4)
        again = torch.multinomial(w, 2000, replacement=True)
        return again, torch.multinomial(pairs, 2), torch.multinomial(w[0], 1), torch.randperm(50)

    again, pairs, one, order = drawn(sampled, weights)
    shares = np.bincount(again[0], minlength=4) / 2000
    np.testing.assert_allclose(shares, [0.125, 0, 0.375, 0.5], atol=0.04)
    assert shares[1] == 0
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (pairs != 1).all()
    # The first number of each pair is drawn by weight, the second by the remaining weights.
    first = np.bincount(pairs[:, 0], minlength=4) / 2000
    np.testing.assert_allclose(first, [0.125, 0, 0.375, 0.5], atol=0.04)
    second = np.mean(pairs[pairs[:, 0] == 3][:, 1] == 2)
    assert abs(second - 0.75) < 0.06
    assert one[0] in (0, 2, 3)
    assert sorted(order) == [*range(50)]
    assert list(order) != [*range(50)]


def test_an_archive_that_draws_has_the_evaluator_alone(tmp_path: Path) -> None:
    for draws, function in ((False, torch.relu), (True, torch.rand_like)):
        path = tmp_path / f"{draws}.pt2"
        torch.export.save(exported(function, torch.ones(3)), path)
        with drawn_model(path) as pair:
            assert pair == (path, draws)


def test_a_network_in_training_drops() -> None:
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5)).train()
    (y,) = drawn(lambda x: (network(x),), torch.ones(100, 50))
    assert {*np.unique(y)} == {0.0, 4.0}
    assert abs((y != 0).mean() - 0.25) < 0.03
