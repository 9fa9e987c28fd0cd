"""An importer of a new format, written by the recipe in frontends/README.md, needs no other
importer."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.frontends.elements import decoded
from tcc.frontends.emit import Emitter
from tcc.frontends.outputs import output_values, rename
from tcc.frontends.scope import ImportSession, Scope
from tcc.ir.graph import GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.index import const
from tcc.ir.types import BF16, F32, TensorType


def layer(scope: Scope, name: str) -> Emitter:
    """Returns the emitter of one layer of a model in a format of its own."""
    return Emitter(scope, name, (name,), "layer")


def test_a_model_in_another_format_becomes_a_graph() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
    octets = (weights.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    scope = Scope(ImportSession(), GraphBuilder("model"))
    rows = scope.session.fresh_symbol("rows")
    x = scope.input("x", TensorType(F32, (rows, const(2))))
    w = scope.constant(decoded(octets, 6, BF16).reshape(2, 3), BF16, "w")
    scope.constant(weights, F32, "unread")
    with layer(scope, "layer.0").writing() as ctx:
        shares = ctx.emit("softmax", x @ w.cast(F32) + 1.0, axis=1)
    results = [("shares", shares), ("x.again", x)]
    values = output_values(scope, [x], results)
    graph = rename(
        scope.builder.finish(values),
        {value: name for value, (name, _) in zip(values, results, strict=True)},
    )

    feed = np.array([[1, -2], [0.5, 3]], np.float32)
    outputs = evaluate_graph(graph, {"x": feed})
    exponentials = np.exp((feed.astype(np.float64) @ weights.astype(np.float64)) + 1)
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(outputs["shares"], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(outputs["x.again"], feed)
    assert "unread" not in graph_text(graph)


def test_operands_add_nodes_only_for_a_source_node_under_import() -> None:
    scope = Scope(ImportSession(), GraphBuilder("model"))
    x = scope.input("x", TensorType(F32, (const(2),)))
    with layer(scope, "outer").writing():
        with layer(scope, "inner").writing():
            assert x.sqrt().name == "inner"
        assert x.sqrt().name == "outer"
        assert x.sum(0).shape == ()
    with pytest.raises(InternalError, match="outside a source node"):
        x + 1.0
    with pytest.raises(InternalError, match="outside a source node"):
        x.reshape((1, 2))
