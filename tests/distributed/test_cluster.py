"""Cluster files are read and checked, and change plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.cluster import part_of, read_cluster
from tcc.distributed.costs import LinkRate, RankRates, one_host
from tcc.distributed.facts import fewest_ranks, planned
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const
from tcc.ir.types import F32, TensorType
from tcc.ops import OPS

HOST = {"name": "a", "ranks": 2, "memory_bytes": 1 << 30, "flops": 1e11}
LINK = {"between": ["a", "a"], "kind": "any", "bytes": 0, "latency_s": 1e-6, "bytes_per_s": 1e10}


def written(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({"version": 1, "hosts": [HOST], "links": [LINK], **changes}))
    return path


def test_a_cluster_has_the_ranks_of_all_hosts_and_the_least_of_each(tmp_path: Path) -> None:
    other = {"name": "b", "ranks": 3, "memory_bytes": 1 << 20, "flops": 5e10}
    cluster = read_cluster(written(tmp_path / "c.json", hosts=[HOST, other]))
    assert cluster.ranks == 5
    (rates,) = cluster.rates
    assert (rates.operations, rates.memory) == (5e10, 1 << 20)


def test_the_slowest_link_and_the_nearest_size_count() -> None:
    fast, slow = ("a", "a"), ("a", "b")
    rates = RankRates(links=(
        LinkRate(fast, "any", 0, 1e-6, 1e10),
        LinkRate(slow, "any", 0, 1e-5, 1e9),
        LinkRate(slow, "any", 1 << 20, 2e-3, 1e9),
        LinkRate(slow, "all_gather", 0, 7e-5, 1e12),
    ))  # fmt: skip
    assert rates.exchange_seconds("all_reduce", 1000) == 1e-5 + 1000 / 1e9
    assert rates.exchange_seconds("all_reduce", 1 << 20) == 2e-3 + (1 << 20) / 1e9
    assert rates.exchange_seconds("all_gather", 1000) == 7e-5 + 1000 / 1e12
    assert rates.exchange_seconds("all_gather", 1 << 20) == 1e-6 + (1 << 20) / 1e10
    assert RankRates(latency=1.0, link_bytes=2.0).exchange_seconds("all_reduce", 3) == 2.5


def layers(count: int) -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(F32, (const(4), const(64))))
    for number in range(count):
        weight = b.constant(np.full((64, 64), number + 1, np.float32), f"w{number}")
        (x,) = b.add(OPS["matmul"], (x, weight))
    return b.finish((x,))


def test_memory_forces_a_division_that_time_would_not() -> None:
    graph, slow = layers(4), RankRates(latency=1.0)
    weights, values = 4 * 64 * 64 * 4, 2 * 4 * 64 * 4
    free = planned(graph, one_host(2, slow), partition_solver(), {}).facts
    assert free["rank_weight_bytes"] == weights
    tight = RankRates(latency=1.0, memory=weights // 2 + values)
    divided = planned(graph, one_host(2, tight), partition_solver(), {}).facts
    assert divided["rank_weight_bytes"] == weights // 2
    assert divided["seconds"] > free["seconds"]
    none = RankRates(latency=1.0, memory=weights // 2 + values - 1)
    with pytest.raises(UserError, match="does not fit the memory"):
        planned(graph, one_host(2, none), partition_solver(), {})


def test_a_constant_of_several_readers_counts_once() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(F32, (const(4), const(64))))
    weight = b.constant(np.ones((64, 64), np.float32), "w")
    for _ in range(3):
        (x,) = b.add(OPS["matmul"], (x, weight))
    rates = RankRates(latency=1.0, memory=64 * 64 * 4 + 2 * 4 * 64 * 4)
    assert (
        planned(b.finish((x,)), one_host(2, rates), partition_solver(), {}).facts["seconds"] < 1.0
    )


BROKEN: dict[str, dict[str, Any]] = {
    'no "version": 1': {"version": 2},
    "hosts is empty": {"hosts": []},
    "hosts is not a list": {"hosts": 3},
    "has the name of hosts[0]": {"hosts": [HOST, HOST]},
    "hosts[0].name": {"hosts": [{**HOST, "name": ""}]},
    "hosts[0].ranks": {"hosts": [{**HOST, "ranks": 0}]},
    "ranks together": {"hosts": [{**HOST, "ranks": 40}, {**HOST, "name": "b", "ranks": 40}]},
    "hosts[0].memory_bytes": {"hosts": [{**HOST, "memory_bytes": 0}]},
    "hosts[0].flops": {"hosts": [{**HOST, "flops": -1.0}]},
    "goes to 'nowhere'": {"links": [{**LINK, "between": ["a", "nowhere"]}]},
    "links[0].between": {"links": [{**LINK, "between": ["a"]}]},
    "links[0].kind": {"links": [{**LINK, "kind": "smoke"}]},
    "links[0].bytes_per_s": {"links": [{**LINK, "bytes_per_s": -5}]},
    "links[0].latency_s": {"links": [{**LINK, "latency_s": -1e-6}]},
    "links[0].bytes is": {"links": [{**LINK, "bytes": 1.5}]},
    "NaN is no number": {"hosts": [{**HOST, "flops": float("nan")}]},
    "more than 30 digits": {"hosts": [{**HOST, "memory_bytes": 10**30}]},
}


@pytest.mark.parametrize("why", BROKEN)
def test_files_that_describe_no_cluster_are_refused(why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cluster") as error:
        read_cluster(written(tmp_path / "c.json", **BROKEN[why]))
    assert why in str(error.value)


def test_the_fewest_ranks_that_have_room() -> None:
    graph = layers(4)
    weights, values = 4 * 64 * 64 * 4, 2 * 4 * 64 * 4
    # Blocks of 64 are padded: 3 ranks have 22 each (0.344), 5 ranks 13 (0.203), 6 ranks 11 (0.172).
    for parts, ranks in ((1.0, 1), (0.5, 2), (0.45, 3), (0.34, 4), (0.25, 4), (0.2, 6)):
        rates = RankRates(memory=int(parts * weights) + values)
        assert fewest_ranks(graph, one_host(8, rates), partition_solver()).ranks == ranks
    with pytest.raises(UserError, match="does not fit the memory"):
        fewest_ranks(graph, one_host(8, RankRates(memory=weights // 9)), partition_solver())
    with pytest.raises(UserError, match="memory of a rank is unknown"):
        fewest_ranks(graph, one_host(8), partition_solver())


def test_hosts_of_equal_ranks_are_an_axis_of_the_mesh(tmp_path: Path) -> None:
    hosts = [{**HOST, "name": name} for name in "abc"]
    links = [{**LINK, "between": [first, second]} for first, second in ("aa", "ab", "cb", "cc")]
    cluster = read_cluster(written(tmp_path / "c.json", hosts=hosts, links=links))
    assert cluster.mesh.sizes == (3, 2)
    between, inside = ([link.between for link in rates.links] for rates in cluster.rates)
    assert between == [("a", "b"), ("b", "c")]
    assert inside == [("a", "a"), ("c", "c")]
    for ranks, sizes in ((6, (3, 2)), (4, (2, 2)), (2, (2,)), (3, (3,)), (5, (5,))):
        part = part_of(cluster, ranks)
        assert part.mesh.sizes == sizes
        counts = {len(rates.links) for rates in part.rates}
        assert counts == ({4} if ranks % 2 else {2})
