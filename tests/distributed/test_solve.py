"""The solver's strategies equal the best by brute force, on random graphs and on models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import RankRates, change_seconds, constant_seconds, work_seconds
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import expr_of
from tcc.distributed.problem import Problem, largest_values
from tcc.distributed.sharding import WHOLE
from tcc.distributed.strategies import Strategy, strategies
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, constant_bytes
from tcc.ir.index import const
from tcc.ir.types import F32, TensorType
from tcc.ops import OPS

from .greedy import choose_strategies
from .lockstep import collectives, on_ranks
from .networks import recurrent
from .one_axis import sharded, solve_strategies

RATES = (
    RankRates(),
    RankRates(latency=1e-8, link_bytes=1e9),
    RankRates(operations=1e8, latency=1e-6, link_bytes=1e9),
    RankRates(operations=1e9, latency=1e-3),
)


def network(seed: int) -> Graph:
    """Returns a random graph of up to five matmuls, additions and functions over 12 x 12 values;
    some values have several readers."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("g")
    shape = (const(12), const(12))
    values: list[Value] = [b.input("x", TensorType(F32, shape))]
    for number in range(int(rng.integers(2, 6))):
        x, y = (values[int(rng.integers(len(values)))] for _ in range(2))
        kind = rng.choice(["matmul", "product", "add", "exp", "softmax"])
        if kind == "matmul":
            weight = b.constant(rng.normal(size=(12, 12)).astype(np.float32) / 4, f"w{number}")
            operands: Sequence[Value] = (x, weight)
        else:
            operands = (x, y) if kind in ("add", "product") else (x,)
        row = OPS["matmul" if kind == "product" else kind]
        attrs = row.attrs(axis=1) if kind == "softmax" else row.attrs()
        values += b.add(row, operands, attrs)
    return b.finish(values[-1:] if rng.integers(2) else values[-2:])


def seconds_of(graph: Graph, choice: dict[Node, Strategy], ranks: int, rates: RankRates) -> float:
    """Returns the predicted seconds of a choice. Each needed sharding of a value is created once,
    from the producer's sharding, or from the whole value if that is also needed."""
    total = 0.0
    shardings = {value: [WHOLE] for value in graph.inputs}
    needs: dict[Value, set[object]] = {v: {WHOLE} for v in graph.outputs}
    for node in graph.nodes:
        expr, strategy = expr_of(node), choice[node]
        assert expr is not None
        total += work_seconds(expr, (strategy,), Mesh((ranks,)).axes, (rates,))
        for value, sharding in set(zip(node.inputs, strategy.operands, strict=True)):
            assert value is not None
            if value in graph.constants:
                total += constant_seconds(value.type, (sharding,), (ranks,), rates)
            else:
                needs.setdefault(value, set()).add(sharding)
        for value, sharding in zip(node.outputs, strategy.results, strict=True):
            shardings[value] = [sharding]
    for value, needed in needs.items():
        (source,) = shardings.get(value, [WHOLE])

        def change(a, b, type=value.type) -> float:
            seconds = change_seconds(type, a, b, ranks, rates)
            return float("inf") if seconds is None else seconds

        direct = sum(change(source, s) for s in needed)
        by_whole = change(source, WHOLE) + sum(
            min(change(WHOLE, s), change(source, s)) for s in needed if s != WHOLE
        )
        total += min(direct, by_whole)
    return total


def choices(graph: Graph, ranks: int) -> Iterator[dict[Node, Strategy]]:
    """Yields all choices of strategies for a graph."""
    exprs = [expr_of(node) for node in graph.nodes]
    lists = [strategies(expr, ranks) for expr in exprs if expr is not None]
    for combination in product(*lists):
        yield dict(zip(graph.nodes, combination, strict=True))


@pytest.mark.parametrize("seed", range(16))
def test_no_choice_takes_less_time(seed: int) -> None:
    graph, rates = network(seed), RATES[seed % len(RATES)]
    solved = solve_strategies(graph, 2, rates, partition_solver())
    seconds = seconds_of(graph, solved, 2, rates)
    least = min(seconds_of(graph, choice, 2, rates) for choice in choices(graph, 2))
    assert seconds <= least + 1e-8  # costs are whole nanoseconds
    assert seconds <= seconds_of(graph, choose_strategies(graph, 2, rates), 2, rates) + 1e-8


@pytest.mark.parametrize("seed", range(16))
def test_the_chosen_strategies_compute_the_same(seed: int) -> None:
    graph = network(seed)
    solved = solve_strategies(graph, 3, RankRates(latency=1e-9), partition_solver())
    feeds = {"x": np.random.default_rng(seed).normal(size=(12, 12)).astype(np.float32)}
    (expected,) = on_ranks(graph, feeds, 1)
    divided = sharded(graph, solved, 3)
    for outputs in on_ranks(divided, feeds, 3):
        for name, reference in expected.items():
            np.testing.assert_allclose(outputs[name], reference, rtol=1e-4, atol=1e-4)


def mlp(layers: int) -> Graph:
    b = GraphBuilder("mlp")
    x = b.input("x", TensorType(F32, (const(16), const(256))))
    for number in range(layers):
        weight = b.constant(np.full((256, 256), number + 1, np.float32), f"w{number}")
        (x,) = b.add(OPS["matmul"], (x, weight))
        (x,) = b.add(OPS["relu"], (x,))
    return b.finish((x,))


@pytest.mark.parametrize("ranks", [2, 4])
def test_layers_alternate_between_columns_and_rows(ranks: int) -> None:
    graph = mlp(6)
    free = RankRates(latency=1e-6, memory_bytes=1e9)
    choice = solve_strategies(graph, ranks, free, partition_solver())
    assert len(collectives(sharded(graph, choice, ranks))) == 3


def test_equal_models_get_equal_problems() -> None:
    problems: list[Problem] = []

    def record(problem: Problem) -> Sequence[int]:
        problems.append(problem)
        return partition_solver()(problem)

    choices_ = [solve_strategies(mlp(4), 2, RankRates(), record) for _ in range(2)]
    first, second = (list(map(repr, choice.values())) for choice in choices_)
    assert problems[0] == problems[1]
    assert first == second


def test_weights_that_several_nodes_read_have_to_fit_too() -> None:
    """Each of two ranks needs half of the weights, and its memory holds a third."""
    graph = recurrent()
    weights = constant_bytes(graph)
    room = largest_values(graph)
    for share, fits in ((0.3, False), (0.51, True)):
        rates = RankRates(memory=int(share * weights) + room)
        if fits:
            assert solve_strategies(graph, 2, rates, partition_solver())
        else:
            with pytest.raises(UserError, match="no plan fits"):
                solve_strategies(graph, 2, rates, partition_solver())
