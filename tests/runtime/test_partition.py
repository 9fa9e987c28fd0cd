"""Partition plans equal the best by brute force; the command prints its answers."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sanitized import FLAGS, run_sanitized
from tcc.backends.artifact.toolchain import planner_library, planner_sources
from tcc.runtime import partition, partition_file
from tcc.runtime.partition import Partitioner, PlanEdge, PlanNode, PlanProblem, evaluate
from trials import HERE, RUNTIME, compile_c, includes

DATA = Path(__file__).parents[2] / "../shared/data"
needs_contest = pytest.mark.skipif(
    not DATA.is_dir(), reason="the problems of the contest are missing"
)
STEPS = 1 << 22
FORBIDDEN = 10**18


@pytest.fixture(scope="module")
def planner() -> Partitioner:
    return Partitioner(planner_library())


# ---- oracles ------------------------------------------------------------------------------------


def least(problem: PlanProblem) -> int | None:
    """Returns the cost of the best valid plan by brute force; None if no plan is valid."""
    every = product(*(range(len(node.costs)) for node in problem.nodes))
    return min((cost for cost, valid in (priced(problem, p) for p in every) if valid), default=None)


def priced(problem: PlanProblem, plan: tuple[int, ...]) -> tuple[int, bool]:
    """Returns the cost of a plan, and whether its memory fits at each time that a node begins."""
    cost = sum(node.costs[s] for node, s in zip(problem.nodes, plan, strict=True))
    for edge in problem.edges:
        a, b = edge.nodes
        cost += edge.costs[plan[a] * len(problem.nodes[b].costs) + plan[b]]
    limit = problem.limit
    fits = limit is None or all(
        sum(
            node.usages[s]
            for node, s in zip(problem.nodes, plan, strict=True)
            if node.life[0] <= begin.life[0] < node.life[1]
        )
        <= limit
        for begin in problem.nodes
    )
    return cost, fits


def drawn_cost(rng: random.Random, scale: int) -> int:
    return FORBIDDEN if rng.random() < 0.1 else rng.randint(0, scale)


def drawn(seed: int) -> PlanProblem:
    """Returns a problem of a few nodes, with empty lifetimes, parallel and reversed edges, loops,
    and all sizes."""
    rng = random.Random(seed)
    scale = rng.choice((3, 100, 10**6, FORBIDDEN))
    bytes_ = rng.choice((3, 20, 1 << 40, 1 << 62))
    nodes = []
    for _ in range(rng.randint(1, 6)):
        width, lower = rng.randint(1, 4), rng.randint(0, 6)
        costs = [drawn_cost(rng, scale) for _ in range(width)]
        usages = [rng.randint(0, bytes_) for _ in range(width)]
        nodes.append(PlanNode(costs, usages, (lower, lower + rng.randint(-1, 4))))
    edges = []
    for _ in range(rng.randint(0, 2 * len(nodes))):
        a, b = rng.randrange(len(nodes)), rng.randrange(len(nodes))
        size = len(nodes[a].costs) * len(nodes[b].costs)
        edges.append(PlanEdge((a, b), [drawn_cost(rng, scale) for _ in range(size)]))
    limit = None if rng.random() < 0.2 else min(rng.randint(0, 2 * bytes_), 1 << 62)
    return PlanProblem(nodes, edges, limit)


def tightened(problem: PlanProblem) -> PlanProblem:
    """Returns the problem with a limit that its best unlimited plan exceeds by 1."""
    free = replace(problem, limit=None)
    every = product(*(range(len(node.costs)) for node in problem.nodes))
    best = min(every, key=lambda plan: priced(free, plan)[0])
    usages = [node.usages[s] for node, s in zip(problem.nodes, best, strict=True)]
    lives = [node.life for node in problem.nodes]
    peaks = (
        sum(u for u, (low, up) in zip(usages, lives, strict=True) if low <= time < up)
        for time, _ in lives
    )
    return replace(problem, limit=max(*peaks, 1) - 1)


def widened(problem: PlanProblem, seed: int) -> PlanProblem:
    """Returns the problem with 41 more nodes whose second strategy no plan needs: too many to
    branch on."""
    rng = random.Random(seed)
    nodes, edges = list(problem.nodes), list(problem.edges)
    for _ in range(41):
        node = rng.randrange(len(problem.nodes))
        edges.append(PlanEdge((node, len(nodes)), [0] * 2 * len(nodes[node].costs)))
        nodes.append(PlanNode([0, 1], [0, 0], (0, 9)))
    return replace(problem, nodes=nodes, edges=edges)


# ---- plans --------------------------------------------------------------------------------------


def test_five_hundred_small_problems_have_their_best_plans(planner: Partitioner) -> None:
    impossible = 0
    for seed in range(500):
        problem = drawn(seed)
        best = least(problem)
        plan = planner.partition(problem, steps=STEPS)
        assert priced(problem, plan.strategies) == (plan.cost, plan.valid), seed
        assert evaluate(problem, plan.strategies) == (plan.cost, plan.valid), seed
        assert plan.impossible == (best is None) != plan.valid, seed
        if best is not None:
            assert plan.cost == plan.bound == best, seed
        impossible += best is None
    assert 50 < impossible < 250


def test_no_bound_is_above_a_best_plan(planner: Partitioner) -> None:
    missed = compared = 0
    for seed in range(150):
        small = tightened(drawn(seed)) if seed % 3 else drawn(seed)
        best, problem = least(small), widened(small, seed)
        plan = planner.partition(problem, steps=1 << 18)
        assert evaluate(problem, plan.strategies) == (plan.cost, plan.valid), seed
        if best is None:
            assert not plan.valid, seed
            continue
        assert plan.bound <= best, seed
        compared += 1
        assert plan.valid, seed
        missed += plan.cost > best
    assert compared > 100
    assert missed <= compared // 10


def test_edges_may_be_reversed_and_merged(planner: Partitioner) -> None:
    problem = drawn(3)
    nodes = problem.nodes
    reversed_ = [
        PlanEdge(
            (b, a), [edge.costs[r * len(nodes[b].costs) + c] for c in range(len(nodes[b].costs))
                     for r in range(len(nodes[a].costs))]
        )
        for edge in problem.edges for a, b in (edge.nodes,)
    ]  # fmt: skip
    twice = replace(problem, edges=[*problem.edges, *problem.edges])
    with_reversed = replace(problem, edges=[*problem.edges, *reversed_])
    plans = [planner.partition(variant, steps=STEPS) for variant in (twice, with_reversed)]
    assert plans[0].strategies == plans[1].strategies
    assert plans[0].cost == plans[1].cost


def test_sums_have_more_than_64_bits(planner: Partitioner) -> None:
    nodes = [PlanNode([1 << 62], [1 << 62], (0, 1)) for _ in range(100)]
    plan = planner.partition(PlanProblem(nodes, [], 1 << 62))
    assert (plan.cost, plan.valid) == (100 << 62, False)
    plan = planner.partition(PlanProblem(nodes, []))
    assert (plan.cost, plan.bound, plan.valid) == (100 << 62, plan.bound, True)
    assert plan.bound <= plan.cost
    two = PlanProblem(nodes[:2], [PlanEdge((0, 1), [1 << 62])])
    assert planner.partition(two).bound == 3 << 62


def test_a_problem_without_nodes(planner: Partitioner) -> None:
    assert planner.partition(PlanProblem([], [])).strategies == ()


@pytest.mark.parametrize(
    ("costs", "usages", "edges", "message"),
    [
        ([], [], [], "node 0 has no strategy"),
        ([1], [], [], "node 0 has not as many usages as costs"),
        ([-1], [1], [], "node 0 has a cost or usage that is not from 0"),
        ([1 << 63], [1], [], "does not fit into 64 bits"),
        ([1], [1], [PlanEdge((0, 1), [1])], "edge 0 has a node that is none"),
        ([1], [1], [PlanEdge((0, 0), [])], "edge 0 has 0 costs, not 1 x 1"),
        ([1], [1], [PlanEdge((0, 0), [-1])], "edge 0 has a cost that is not"),
    ],
)
def test_problems_that_are_none(
    planner: Partitioner, costs: list[int], usages: list[int], edges: list[PlanEdge], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        planner.partition(PlanProblem([PlanNode(costs, usages, (0, 1))], edges))


def test_sanitizers_find_nothing_where_allocations_fail(tmp_path: Path) -> None:
    binary = tmp_path / "partition"
    sources = [HERE / "partition.c", *planner_sources()]
    compile_c("cc", (*FLAGS, *includes(RUNTIME)), sources, binary)
    assert run_sanitized(binary).endswith("many failed\n")


def test_an_error_of_the_callback_ends_the_search(planner: Partitioner) -> None:
    def go_on(_: int) -> bool:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        planner.partition(widened(drawn(3), 3), go_on=go_on)


# ---- the contest's problems ---------------------------------------------------------------------


@needs_contest
@pytest.mark.parametrize(("name", "best"), [("B", 532_843), ("G", 217_039)])
def test_small_problems_of_the_contest(planner: Partitioner, name: str, best: int) -> None:
    problem = partition_file.read_problem(DATA / f"iopddl_{name}.json.gz")
    plan = planner.partition(problem, steps=100_000_000)
    assert evaluate(problem, plan.strategies) == (plan.cost, plan.valid) == (best, True)
    assert 0.99 * best < plan.bound <= best


@needs_contest
def test_equal_steps_give_equal_plans(planner: Partitioner) -> None:
    code = (
        "import sys; from pathlib import Path; from tcc.runtime.partition import *;"
        "from tcc.runtime.partition_file import read_problem;"
        "planner, problem = Partitioner(Path(sys.argv[1])), read_problem(Path(sys.argv[2]));"
        "print(planner.partition(problem, steps=10**8))"
    )
    words = (sys.executable, "-c", code, str(planner_library()), str(DATA / "iopddl_B.json.gz"))
    texts = {
        subprocess.run(
            words, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


# ---- the command --------------------------------------------------------------------------------


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    planner: Partitioner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Returns a function that runs the command on a file of some bytes, and returns its exit code
    and output."""
    monkeypatch.setattr(partition, "LIBRARY", planner_library())
    monkeypatch.setattr(partition, "Partitioner", lambda: planner)

    def run(content: bytes, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "problem.json"
        path.write_bytes(content)
        code = partition.main([str(path), *options])
        said = capsys.readouterr()
        return code, said.out, said.err.replace(str(path), "problem.json")

    return run


def example(**changes: Any) -> dict[str, Any]:
    """Returns a problem of two nodes in the contest's format, with some members changed."""
    nodes = {"intervals": [[0, 2], [1, 3]], "costs": [[15], [9, 4]], "usages": [[10], [5, 6]]}
    edges = {"nodes": [[0, 1]], "costs": [[1, 7]]}
    return {"name": "a", "nodes": nodes, "edges": edges, "usage_limit": 15} | changes


def text(value: object) -> bytes:
    return json.dumps(value).encode()


def test_the_command_prints_the_plan(command: Command) -> None:
    assert command(text({"problem": example()})) == (
        0, "[0, 0]\ncost 25 bound 25 verdict valid\n", "",
    )  # fmt: skip
    assert command(gzip.compress(text(example())), "--steps", "99") == (
        0, "[0, 0]\ncost 25 bound 25 verdict valid\n", "",
    )  # fmt: skip
    wide = example()
    del wide["usage_limit"]
    wide["edges"] = {"nodes": [[1, 0], [0, 1]], "costs": [[1, 0], [1, 0]]}
    assert command(text(wide))[1] == "[0, 1]\ncost 19 bound 19 verdict valid\n"
    code, out, _ = command(text(example(usage_limit=14)))
    assert code == 1
    assert out.endswith(" verdict invalid\n")


NODES = example()["nodes"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
        (b"[" * ((1 << 22) + 1), "it has more than 4194304 of the character ["),
        (text([]), "the problem is no object"),
        (text({"problem": 1}), "the file has no object 'problem'"),
        (text({"nodes": {}}), "the problem has no object 'edges'"),
        (text(example(edges={"nodes": []})), "edges has no list 'costs'"),
        (text(example(edges={"nodes": [], "costs": [[]]})), "edges has lists of different lengths"),
        (text(example(edges={"nodes": [[0, 2]], "costs": [[]]})), "the nodes of edge 0 has a numb"),
        (text(example(edges={"nodes": [[0, 1]], "costs": [[]]})), "edge 0 has 0 numbers, not 2"),
        (text(example(nodes=NODES | {"costs": [[15]]})), "nodes has lists of different lengths"),
        (text(example(nodes=NODES | {"costs": [[15], []]})), "the usages of node 1 has 2 numbers"),
        (text(example(nodes=NODES | {"costs": [[15], 1]})), "the costs of node 1 is no list"),
        (text(example(nodes=NODES | {"costs": [[15], [1, True]]})), "that is no whole number"),
        (text(example(nodes=NODES | {"costs": [[15], [1, -1]]})), "is not from 0 to"),
        (text(example(nodes=NODES | {"intervals": [[1], [1, 2]]})), "interval 0 has 1 numbers"),
        (text(example(usage_limit=1.5)), "1.5 is no whole number"),
        (text(example(usage_limit=1 << 63)), "usage_limit has a number that is not from 0"),
        (text(example(usage_limit="1")), "usage_limit has a value that is no whole number"),
        (b'{"nodes": NaN}', "NaN is no whole number"),
        (b'{"nodes": ' + b"1" * 9999 + b"}", "it is no JSON"),
        (gzip.compress(text(example()))[:-9], "it is no whole gzip file"),
        (b"\x1f\x8b" + b"\0" * 40, "it is no whole gzip file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_file_is_told_in_a_sentence(command: Command, content: bytes, message: str) -> None:
    code, out, err = command(content)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_is_too_large_is_not_read(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_file, "MOST_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(partition_file, "MOST_TEXT_BYTES", 2 << 20)
    assert "problem.json: it has more than 1 MiB" in command(b" " * (2 << 20))[2]
    assert "its text has more than 2 MiB" in command(gzip.compress(bytes(3 << 20)))[2]


def test_a_missing_file_and_a_missing_library(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert partition.main([str(tmp_path / "none.json")]) == 2
    monkeypatch.setattr(partition, "LIBRARY", tmp_path / "none.so")
    assert command(text(example()))[0] == 3
