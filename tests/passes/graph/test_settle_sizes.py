"""Broadcast sizes of symbolic operands are settled by the model where possible, and checked in
runs."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.errors import InternalError, UserError
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.passes.graph.canonicalize import canonicalize
from tcc.passes.graph.fix_sizes import fix_sizes
from tcc.passes.graph.settle_sizes import settle_sizes

from tests.lib.import_oracle import model_of

ADDED = "g (float[n] a, float[m] b) => (float[k] y) { y = Add (a, b) }"
# The sum has the length of a third operand, of one of its own operands, or of an earlier sum.
LATER = {
    "third": "g (float[n] a, float[m] b, float[4, k] w) => (float[4] y)"
    " { c = Add (a, b)  y = MatMul (w, c) }",
    "first": "g (float[n] a, float[m] b) => (float[] y) { c = Add (a, b)  y = MatMul (c, a) }",
    "second": "g (float[n] a, float[m] b) => (float[] y) { c = Add (a, b)  y = MatMul (b, c) }",
    "chain": "g (float[n] a, float[m] b, float[p] c) => (float[] y)"
    " { d = Add (a, b)  e = Add (d, c)  f = MatMul (d, a)  h = MatMul (e, a)  y = Sub (f, h) }",
}


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in canonicalize(graph).nodes]


def run(graph: Graph, sizes: tuple[int, ...]) -> object:
    """Returns the graph's result for operands of `sizes` and a matrix of four rows; None if
    refused."""
    names = {dim.key: size for dim, size in zip(_open(graph), sizes, strict=True)}
    shapes = (tuple(names.get(d.key, d.const) for d in v.type.shape) for v in graph.inputs)
    arrays = (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes)
    try:
        (output,) = evaluate_graph(
            graph, {v.name: a for v, a in zip(graph.inputs, arrays, strict=True)}
        ).values()
    except UserError:
        return None
    return output.tolist()


def _open(graph: Graph) -> list:  # type: ignore[type-arg]
    return [d for v in graph.inputs for d in v.type.shape if d.terms]


def test_a_sum_of_two_symbolic_sizes_stays_symbolic() -> None:
    graph = load_model(model_of(ADDED))
    assert settle_sizes(graph) is graph


@pytest.mark.parametrize("name", LATER)
def test_a_size_that_is_demanded_to_be_another_is_that_one(name: str) -> None:
    graph = load_model(model_of(LATER[name]))
    settled_graph = settle_sizes(graph)
    verify_graph(settled_graph)
    assert "broadcast_size" in ops(graph)
    assert "broadcast_size" not in ops(settled_graph)
    assert "slice" not in ops(settled_graph)
    count = len(_open(graph))
    accepted = 0
    for sizes in np.ndindex(*(4,) * count):
        reference = run(graph, sizes)
        assert run(settled_graph, sizes) == reference, sizes
        accepted += reference is not None
    assert 3 < accepted < 4**count


def test_known_sizes_leave_nothing_to_repeat_or_check() -> None:
    graph = load_model(model_of(ADDED))
    settled_graph = settle_sizes(fix_sizes(graph, {"n": 4, "m": 4}))
    assert [name for name in ops(settled_graph) if name != "require"] == ["add"]
    one = settle_sizes(fix_sizes(graph, {"n": 1, "m": 4}))
    assert one.outputs[0].type.static_shape == (4,)


def test_our_own_faults_are_not_the_users_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Graph:
        raise InternalError("a rewrite changes its results")

    monkeypatch.setattr("tcc.passes.graph.fix_sizes.with_sizes", broken)
    with pytest.raises(InternalError, match="changes its results"):
        fix_sizes(load_model(model_of(ADDED)), {"n": 4})


def test_a_name_for_a_number_is_that_number() -> None:
    halvings = " ".join(
        f"s{n} = Shape (x{n}) h{n} = Div (s{n}, two) p{n} = Slice (x{n}, h{n}, s{n})"
        f" q{n} = Slice (x{n}, one, h{n}) x{n + 1} = Concat <axis = 0> (p{n}, q{n}, p{n})"
        for n in range(6)
    )
    constants = "<int64[1] one = {1}, int64[1] two = {2}>"
    graph = load_model(model_of(f"g (float[n] x0) => (float[k] x6) {constants} {{ {halvings} }}"))
    assert "name_size" in ops(graph)
    fixed = fix_sizes(graph, {"n": 20})
    verify_graph(fixed)
    assert "name_size" not in ops(fixed)
    x = np.arange(20, dtype=np.float32)
    for form in (graph, fixed):
        (output,) = evaluate_graph(form, {"x0": x}).values()
        due = x
        for _ in range(6):
            half = len(due) // 2
            due = np.concatenate([due[half:], due[1:half], due[half:]])
        assert np.array_equal(output, due)
