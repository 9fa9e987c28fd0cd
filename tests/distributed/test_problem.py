"""The solver's problems contain every set of shardings that could be best."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed import problem
from tcc.distributed.costs import Cluster, RankRates, one_host
from tcc.distributed.mesh import Mesh
from tcc.distributed.problem import cost_of, with_alternative
from tcc.distributed.solve import solved
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.types import F32, tensor

from .lockstep import collectives
from .one_axis import mesh_sharded, mesh_strategies
from .test_shard import RATES, add, block
from .test_solve import network

SQUARE = Cluster(Mesh((2, 2)), (RankRates(latency=2e-5), RATES))


def two_readers(width: int) -> Graph:
    """Returns a matmul whose result two matmuls read."""
    rng, b = np.random.default_rng(1), GraphBuilder("g")
    x = b.input("x", tensor(F32, 8, width))
    first, *other_weights = (
        b.constant(rng.normal(size=(width, width)).astype(np.float32), f"w{n}") for n in range(3)
    )
    h = add(b, "matmul", x, first)
    return b.finish([add(b, "matmul", h, weight) for weight in other_weights])


def test_readers_share_a_part() -> None:
    graph, pair = two_readers(1024), one_host(2, RATES)
    choice = mesh_strategies(graph, pair, partition_solver())
    assert collectives(mesh_sharded(graph, choice, pair.mesh.axes)) == ["all_reduce"] * 2


@pytest.mark.parametrize("seed", range(20))
def test_columns_that_are_left_out_are_undercut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, size=(3, 30))
    minimal = problem._minimal(points)
    for number in range(30):
        undercut = [k for k in minimal if k != number and (points[:, k] <= points[:, number]).all()]
        assert (number in minimal) == (not undercut)


@pytest.mark.parametrize("seed", range(6))
def test_all_sets_of_shardings_together_cost_no_less(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network(seed) if seed else block(4, 8, 16)
    cluster = SQUARE if seed % 2 else one_host(2, RATES)
    seconds = solved(graph, cluster, partition_solver(), {}).seconds

    def everything(points: np.ndarray) -> list[int]:
        return list(range(points.shape[1]))

    monkeypatch.setattr(problem, "_minimal", everything)
    assert solved(graph, cluster, partition_solver(), {}).seconds == seconds


def test_a_problem_with_one_alternative_costs_as_much_as_the_choice_of_it() -> None:
    nodes = [
        problem.ProblemNode([5, 1, 7], [0, 0, 0], (0, 1)),
        problem.ProblemNode([2, 3], [4, 5], (0, 1)),
    ]
    problem_of_all = problem.Problem(nodes, [problem.ProblemEdge((0, 1), [1, 2, 3, 4, 5, 6])], 9)
    for number in range(3):
        forced = with_alternative(problem_of_all, 0, number)
        assert [cost_of(forced, (0, s)) for s in range(2)] == [
            cost_of(problem_of_all, (number, s)) for s in range(2)
        ]
    for number in range(2):
        forced = with_alternative(problem_of_all, 1, number)
        assert (forced.nodes[1].usages, forced.limit) == ([4 + number], 9)
        assert [cost_of(forced, (s, 0)) for s in range(3)] == [
            cost_of(problem_of_all, (s, number)) for s in range(3)
        ]
