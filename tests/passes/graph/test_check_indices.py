"""Gathers whose indices provably lie inside their axis are not checked at run time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder, Node, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.rewrite import Inputs, rewritten
from tcc.passes.graph.check_indices import check_indices
from tcc.passes.graph.integer_bounds import integer_bounds

Read = Callable[..., Graph]

# Nodes from %k (constants of 0 to 8) and %n (any integers) to the indices %i of an axis of nine.
INSIDE = (
    "%i = transpose(%k) {perm=(1, 0)} : i64[3,3]",
    "%i = where(%c, %k, %k) : i64[3,3]",
    "%i = clip(%n, %zero, %eight) : i64[3,3]",
    "%i = gather(%k, %n) {axis=0} : i64[3,3,3]",
    "%a = max(%n, %zero) : i64[3,3]\n  %i = min(%a, %eight) : i64[3,3]",
    "%a = clip(%n, %zero, %eight) : i64[3,3]\n  %i = cast(%a) {to=i32} : i32[3,3]",
    "%a = concat(%k, %k) {axis=0} : i64[6,3]\n  %i = reshape(%a) {shape=(9, 2)} : i64[9,2]",
    "%a = clip(%n, %zero, %eight) : i64[3,3]\n  %i = sub(%k, %a) : i64[3,3]",
)
OUTSIDE = (
    "%a = sub(%k, %nine) : i64[3,3]\n  %i = sub(%a, %eight) : i64[3,3]",
    "%i = sub(%n, %k) : i64[3,3]",
    "%i = clip(%n, %zero, %nine) : i64[3,3]",
    "%i = clip(%n, %low, %eight) : i64[3,3]",
    "%i = min(%n, %eight) : i64[3,3]",
    "%i = max(%n, %zero) : i64[3,3]",
    "%i = where(%c, %k, %n) : i64[3,3]",
    "%i = add(%k, %n) : i64[3,3]",
    "%i = cast(%n) {to=i32} : i32[3,3]",
    "%i = cast(%x) {to=i64} : i64[9]",
    "%a = concat(%k, %n) {axis=0} : i64[6,3]\n  %i = reshape(%a) {shape=(9, 2)} : i64[9,2]",
)
CONSTANTS = {"zero": 0, "eight": 8, "nine": 9, "low": -10, "k": np.arange(9).reshape(3, 3)}


def graph_of(read: Read, steps: str, result: str) -> Graph:
    constants = {name: np.array(value) for name, value in CONSTANTS.items()}
    declarations = "".join(
        f"  %{n} = const @{n} : i64{list(a.shape)}\n" for n, a in constants.items()
    )
    head = "graph g(%x : f32[9], %n : i64[3,3], %c : bool[3,3]) {\n"
    return read(f"{head}{declarations.replace(', ', ',')}  {steps}\n  {result}\n}}\n", **constants)


def gathered(read: Read, steps: str) -> Graph:
    shape = steps[steps.rindex("[") :]
    return graph_of(read, steps, f"%y = gather(%x, %i) {{axis=0}} : f32{shape}\n  return %y")


def checks(graph: Graph) -> int:
    return sum(node.op.name == "check_indices" for node in walk_nodes(check_indices(graph)))


@pytest.mark.parametrize("steps", INSIDE)
def test_proved_indices_are_not_checked(read: Read, steps: str) -> None:
    assert checks(gathered(read, steps)) == steps.count("gather")  # one check of %n itself


@pytest.mark.parametrize("steps", OUTSIDE)
def test_other_indices_are_checked(read: Read, steps: str) -> None:
    assert checks(gathered(read, steps)) == 1


@pytest.mark.parametrize("steps", [*INSIDE, *OUTSIDE])
def test_no_element_is_out_of_its_bounds(read: Read, steps: str) -> None:
    """The bounds hold for all elements when evaluated with small and large integers."""
    shape = steps[steps.rindex("[") :]
    dtype = steps[: steps.rindex("[")].rpartition(" ")[2]
    graph = graph_of(read, steps, f"%y = identity(%i) : {dtype}{shape}\n  return %y")
    limits: list[tuple[int, int]] = []

    def see(b: GraphBuilder, node: Node, inputs: Inputs) -> None:
        if node.op.name == "identity" and inputs[0] is not None:
            limits.append(integer_bounds(b, inputs[0], {}))

    rewritten(graph, see)
    ((low, high),) = limits
    rng = np.random.default_rng(0)
    for largest in (4, 1 << 62):
        feeds = {
            "x": rng.standard_normal(9).astype(np.float32),
            "n": rng.integers(-largest, largest, (3, 3)),
            "c": rng.integers(0, 2, (3, 3)).astype(bool),
        }
        if "gather" in steps:
            feeds["n"] %= 3
        (result,) = evaluate_graph(graph, feeds).values()
        assert low <= result.min()
        assert result.max() <= high
