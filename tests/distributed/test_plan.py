"""Plan files fix strategies, and bad files are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed import problem
from tcc.distributed.costs import HOST, one_host
from tcc.distributed.facts import explained, planned
from tcc.distributed.offers import mesh_offers
from tcc.distributed.plan import fixed_strategies, plan_of, plan_text, read_plan
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const
from tcc.ir.types import F32, TensorType
from tcc.ops import OPS

from .one_axis import mesh_strategies, predicted_seconds

RANKS = 2
PAIR = one_host(RANKS, HOST)


def network(columns: int = 256) -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(F32, (const(16), const(256))))
    shapes = (256, columns), (columns, 256)
    weights = (np.full(shape, n + 1, np.float32) for n, shape in enumerate(shapes))
    first, second = (b.constant(w, f"w{n}") for n, w in enumerate(weights))
    (h,) = b.add(OPS["matmul"], (x, first), names=["h"])
    (r,) = b.add(OPS["relu"], (h,), names=["r"])
    (y,) = b.add(OPS["matmul"], (r, second), names=["y"])
    return b.finish((y,))


def written(path: Path, graph: Graph, **changes: Any) -> Path:
    """Writes a plan of the graph to a file, with changed values of some keys."""
    choice = mesh_strategies(graph, PAIR, partition_solver())
    table = json.loads(plan_text(graph, plan_of(graph, choice, PAIR.mesh)))
    path.write_text(json.dumps({**table, **changes}))
    return path


def rows(**texts: str) -> list[Mapping[str, str]]:
    return [{"node": node, "strategy": text} for node, text in texts.items()]


def test_a_plan_fixes_the_choice_that_it_was_made_of(tmp_path: Path) -> None:
    graph = network()
    choice = mesh_strategies(graph, PAIR, partition_solver())
    plan = read_plan(written(tmp_path / "plan.json", graph))
    assert fixed_strategies(graph, plan, PAIR.mesh) == choice


def test_strategies_that_a_partial_plan_fixes_stay(tmp_path: Path) -> None:
    graph = network()
    for text in ("whole, whole -> whole", "split(0), whole -> split(0)"):
        plan = read_plan(written(tmp_path / "plan.json", graph, nodes=rows(h=text)))
        fixed = fixed_strategies(graph, plan, PAIR.mesh)
        choice = mesh_strategies(graph, PAIR, partition_solver(), fixed)
        assert [repr(*choice[node]) for node in graph.nodes if node.outputs[0].name == "h"] == [
            text
        ]


def test_the_prices_of_strategies_are_those_of_the_best_runs_with_them() -> None:
    graph = network()
    records = explained(graph, PAIR, partition_solver(), {}, "h")
    (choice,) = (record for record in records if record["chosen"])
    assert choice["seconds"] == min(record["seconds"] for record in records)
    best = mesh_strategies(graph, PAIR, partition_solver())
    assert choice["seconds"] == predicted_seconds(graph, best, PAIR)
    with pytest.raises(UserError, match="no node has this name"):
        explained(graph, PAIR, partition_solver(), {}, "nobody")


def test_facts_count_the_bytes_of_a_rank() -> None:
    result = planned(network(), PAIR, partition_solver(), {})
    assert result.facts["weight_bytes"] == 2 * 256 * 256 * 4
    assert result.facts["rank_weight_bytes"] == 256 * 256 * 4
    assert [item["kind"] for item in result.collectives] == ["all_reduce"]
    assert [item["bytes"] for item in result.collectives] == [16 * 256 * 4]


def test_the_strategies_of_a_node_are_priced_with_one_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return mesh_offers(*arguments)

    monkeypatch.setattr(problem, "mesh_offers", counted)
    assert len(explained(network(), PAIR, partition_solver(), {}, "h")) > 3
    assert len(calls) == 1


REFUSED = {
    "for another model": {"model": "0" * 32},
    "for another number of ranks": {"ranks": 3},
    "names an unknown node": {"nodes": rows(nobody="whole -> whole")},
    "cannot be divided so": {"nodes": rows(h="split(7), whole -> split(7)")},
}


@pytest.mark.parametrize("what", REFUSED)
def test_plans_that_do_not_fit_are_refused(what: str, tmp_path: Path) -> None:
    graph = network()
    plan = read_plan(written(tmp_path / "plan.json", graph, **REFUSED[what]))
    with pytest.raises(UserError, match=what):
        fixed_strategies(graph, plan, PAIR.mesh)


def test_plans_do_not_fit_a_model_with_other_weights_or_sizes(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path / "plan.json", network()))
    with pytest.raises(UserError, match="for another model"):
        fixed_strategies(network(512), plan, PAIR.mesh)


EMPTY = b'{"tcc_plan": 1, "model": "", "ranks": 2, "nodes": []'
BROKEN = {
    b"": "it is not JSON",
    b"[]": 'no "tcc_plan": 1',
    b'{"tcc_plan": 2}': 'no "tcc_plan": 1',
    b'{"tcc_plan": 1, "model": 3}': "model is not",
    b'{"tcc_plan": 1, "model": "", "ranks": true}': "ranks is not",
    b'{"tcc_plan": 1, "model": "", "ranks": 0}': "ranks is not",
    b'{"tcc_plan": 1, "model": "", "ranks": 2, "nodes": {}}': "nodes is not a list",
    b'{"tcc_plan": 1, "model": "", "ranks": 2, "nodes": [1]}': "is not an object",
    b'{"tcc_plan": 1, "model": "", "ranks": 2, "nodes": [{"node": 1}]}': "no texts",
    b"[" * 100_000: "nested deeper than 64",
    b'{"tcc_plan": 1, "model": "", "ranks": 2, "nodes": ['
    + b'{"node": "a", "strategy": "b"}, ' * 2
    + b'{"node": "c", "strategy": "d"}]}': "for the second time",
    EMPTY + b', "exchanges": []}': "exchanges is not an object",
    EMPTY + b', "exchanges": {"all_reduce": [1, -2]}}': "no pair of a number and of bytes",
    EMPTY + b', "exchanges": {"all_reduce": [1]}}': "no pair of a number and of bytes",
    EMPTY + b', "rank_weight_bytes": "1"}': "rank_weight_bytes is not",
    b"\xff": "it is not JSON",
    b'{"tcc_plan": 1, "ranks": ' + b"9" * 10_000 + b"}": "more than 30 digits",
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_files_that_are_no_plans_are_refused(number: int, tmp_path: Path) -> None:
    data, why = [*BROKEN.items()][number]
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with pytest.raises(UserError, match="no plan") as error:
        read_plan(path)
    assert why in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.json"):
        read_plan(tmp_path / "nowhere.json")
