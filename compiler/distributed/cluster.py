"""Clusters as JSON: the hosts on which ranks run, and the measured speeds of their links.

    {"version": 1,
     "hosts": [{"name": "a", "ranks": 2, "memory_bytes": 8000000000, "flops": 1e11}],
     "links": [{"between": ["a", "a"], "kind": "any", "bytes": 0,
                "latency_s": 5e-6, "bytes_per_s": 1e10}]}

`memory_bytes` and `flops` (operations per second) are those of each rank of the host.  A link joins
two hosts; a link from a host to itself joins its ranks.  Files are not trusted.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from tcc.distributed.costs import ANY, Cluster, Host, LinkRate, RankRates, one_host
from tcc.distributed.mesh import Mesh
from tcc.errors import UserError
from tcc.ir.program import CollectiveKind
from tcc.json_file import count, name, number, read_json, rows

_VERSION = 1
_MOST, _MOST_SECONDS = 10**18, 1e6
_MOST_RANKS = 64
_KINDS = ANY, *(kind.name.lower() for kind in CollectiveKind)
_HINT = "tcc plan --help shows such a file"


def read_cluster(path: Path) -> Cluster:
    """Returns the cluster in a file; raises UserError for a file that is none."""
    faults = "the cluster file cannot be read", "the file describes no cluster"
    return read_json(path, _parse, f"--cluster {path}", *faults, _HINT)


def _parse(table: Any) -> Cluster:
    if not isinstance(table, dict) or table.get("version") != _VERSION:
        raise ValueError(f'it has no "version": {_VERSION}')
    hosts = rows(table, "hosts")
    if not hosts:
        raise ValueError("hosts is empty")
    places: dict[str, str] = {}
    for place, host in hosts.items():
        title = name(host.get("name"), f"{place}.name")
        if title in places:
            raise ValueError(f"{place} has the name of {places[title]}, {title!r}")
        places[title] = place
    counts = [count(h.get("ranks"), f"{p}.ranks", _MOST_RANKS) for p, h in hosts.items()]
    if sum(counts) > _MOST_RANKS:
        raise ValueError(f"the hosts have {sum(counts)} ranks together, more than {_MOST_RANKS}")
    sizes = [count(h.get("memory_bytes"), f"{p}.memory_bytes", _MOST) for p, h in hosts.items()]
    speeds = [number(h.get("flops"), f"{p}.flops", 1, _MOST) for p, h in hosts.items()]
    links = [_link(row, place, places) for place, row in rows(table, "links").items()]
    rates = RankRates(operations=min(speeds), memory=min(sizes), links=tuple(links))
    described = tuple(map(Host, places, counts, sizes))
    if len(hosts) == 1 or len({*counts}) > 1 or counts[0] == 1:
        return Cluster(Mesh((sum(counts),)), (rates,), described)
    inside = tuple(link for link in links if link.between[0] == link.between[1])
    outside = tuple(link for link in links if link.between[0] != link.between[1])
    return Cluster(
        Mesh((len(hosts), counts[0])),
        (replace(rates, links=outside), replace(rates, links=inside)),
        described,
    )


def cluster_of(path: Path | None, ranks: int) -> Cluster:
    """Returns the first ranks of the cluster in a file, or one host without a file.

    Raises UserError for a file that describes no cluster, or a smaller cluster.
    """
    if path is None:
        return one_host(ranks)
    cluster = read_cluster(path)
    if ranks > cluster.ranks:
        raise UserError(
            "the cluster has too few ranks",
            where=f"--cluster {path}",
            why=f"its hosts have {cluster.ranks} together, and the plan is for {ranks}",
            hint="give fewer ranks, or more hosts",
        )
    return part_of(cluster, ranks)


def part_of(cluster: Cluster, ranks: int) -> Cluster:
    """Returns the first ranks of a cluster: whole hosts if possible, else ranks in a row.

    `ranks` is at most the number of ranks of the cluster.
    """
    *hosts, per_host = cluster.mesh.sizes
    if hosts and ranks <= per_host:
        return replace(cluster, mesh=Mesh((ranks,)), rates=cluster.rates[1:])
    if hosts and ranks % per_host == 0:
        return replace(cluster, mesh=Mesh((ranks // per_host, per_host)))
    return on_mesh(cluster, (ranks,))


def on_mesh(cluster: Cluster, sizes: tuple[int, ...]) -> Cluster:
    """Returns the first ranks of a cluster as a mesh of `sizes`, whose axes have the links of all
    axes; `cluster` itself if its mesh is that one."""
    if cluster.mesh.sizes == sizes:
        return cluster
    links = tuple(link for speeds in cluster.rates for link in speeds.links)
    rates = replace(cluster.rates[0], links=links)
    return replace(cluster, mesh=Mesh(sizes), rates=(rates,) * len(sizes))


def _link(row: dict[str, Any], place: str, hosts: Collection[str]) -> LinkRate:
    between = row.get("between")
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"{place}.between is not a pair of names")
    for host in between:
        if not isinstance(host, str) or host not in hosts:
            raise ValueError(f"{place} goes to {str(host)[:64]!r}, which is no host")
    kind = row.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"{place}.kind is {kind!r:.64}, not one of {', '.join(_KINDS)}")
    first, second = sorted(between)
    return LinkRate(
        (first, second),
        kind,
        count(row.get("bytes"), f"{place}.bytes", _MOST, 0),
        number(row.get("latency_s"), f"{place}.latency_s", 0, _MOST_SECONDS),
        number(row.get("bytes_per_s"), f"{place}.bytes_per_s", 1, _MOST),
    )
