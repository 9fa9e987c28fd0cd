"""Prices use typical sizes for symbolic sizes, and choices equal those for known sizes."""

from __future__ import annotations

import pytest
import torch
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.text import graph_text
from tcc.ir.index import Index, IndexLike, const, free_vars, iterator, symbol
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.graph.fix_sizes import with_typical
from tcc.passes.program.price import priced_kernels
from tcc.schedule.nest import TYPICAL, trips, typical

from tests.frontends.torch.torch_samples import export
from tests.lib.oracle.graph.parse import parse_graph
from tests.passes.derive.bilinear.test_convolutions import PLANNER

N, OPEN = symbol("n", 1, typical=3), symbol("m")


@pytest.mark.parametrize(
    ("size", "counted"),
    [
        (const(0), 0),
        (N, 3),
        (4 * N * N + 1, 37),
        ((N + 1) // 2, 2),
        (N - 5, 1),  # symbolic sizes count as at least 1
        (OPEN, TYPICAL),
        (OPEN * N, 3 * TYPICAL),
        (symbol("s", 0, 64), 64),
        (symbol("l", 1000), 1000),
    ],
    ids=str,
)
def test_sizes_count_as_at_the_typical_values_of_their_symbols(size: Index, counted: int) -> None:
    assert typical(size) == counted
    (loop,) = free_vars(iterator("i", size))
    assert trips(loop) == counted


def product(rows: IndexLike) -> Graph:
    b = GraphBuilder("product")
    x, w = (b.input(n, tensor(F32, s, 64)) for n, s in (("x", rows), ("w", 64)))
    return b.finish(b.add(OPS["matmul"], [x, w]))


def test_prices_are_those_of_known_sizes() -> None:
    def seconds(rows: IndexLike) -> float:
        return sum(s for _, s in priced_kernels(product(rows), PLANNER))

    for rows in (32, 1024):
        assert seconds(symbol("n", typical=rows)) == pytest.approx(seconds(rows), rel=0.3)
    assert seconds(symbol("n", typical=1024)) > 3 * seconds(symbol("n"))


def test_typical_sizes_are_given_by_name() -> None:
    graph = with_typical(product(symbol("n", 1, 64)), {"n": 5})
    (var,) = free_vars(*graph.outputs[0].type.shape)
    assert (var.name, var.lo, var.hi, var.typical) == ("n", 1, 64, 5)
    text = graph_text(graph)
    assert "size n in [1,64] typical 5" in text
    assert graph_text(parse_graph(text, OPS, graph.store)) == text
    for name, size in (("m", 5), ("n", 65)):
        with pytest.raises(UserError, match="size"):
            with_typical(graph, {name: size})


def test_example_inputs_of_torch_are_typical() -> None:
    program = export(torch.nn.ReLU(), torch.ones(4, 6), shapes=({0: torch.export.Dim("n")},))
    (var,) = free_vars(*load_model(program).inputs[0].type.shape)
    assert var.typical == 4


def test_a_typical_size_of_a_part_of_a_dimension() -> None:
    """A cache has past + seq rows, and no input has past rows alone."""
    past, seq = symbol("past"), symbol("seq", 1)
    graph = with_typical(product(past + seq), {"past": 900, "seq": 2})
    assert typical(graph.inputs[0].shape[0]) == 902
    with pytest.raises(UserError, match="'capacity'"):
        with_typical(product(past + seq), {"capacity": 9})
