"""Clusters as JSON: the hosts on which ranks run, and the measured speeds of their links.

    {"version": 1,
     "hosts": [{"name": "a", "ranks": 2, "memory_bytes": 8000000000, "flops": 1e11}],
     "links": [{"between": ["a", "a"], "kind": "any", "bytes": 0,
                "latency_s": 5e-6, "bytes_per_s": 1e10}]}

`memory_bytes` and `flops` (operations per second) are those of each rank of the host.  A link joins
two hosts; a link from a host to itself joins its ranks.  Files are not trusted.
"""

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from tcc.distributed.costs import ANY, Cluster, Host, LinkRate, RankRates, one_host
from tcc.distributed.json_file import read_json
from tcc.distributed.mesh import Mesh
from tcc.errors import UserError
from tcc.ir.program import CollectiveKind

_VERSION = 1
_MOST_COUNT = 10**18
_MOST_RANKS = 64
_KINDS = frozenset({ANY, *(kind.name.lower() for kind in CollectiveKind)})
_HINT = "tcc plan --help shows such a file"


def read_cluster(path: Path) -> Cluster:
    """Returns the cluster in a file; raises UserError for a file that is none."""
    faults = "the cluster file cannot be read", "the file describes no cluster"
    return read_json(path, _parse, f"--cluster {path}", *faults, _HINT)


def _parse(table: Any) -> Cluster:
    if not isinstance(table, dict) or table.get("version") != _VERSION:
        raise ValueError(f'it has no "version": {_VERSION}')
    hosts = _list(table, "hosts")
    if not hosts:
        raise ValueError("hosts is empty")
    names: dict[str, int] = {}
    for number, host in enumerate(hosts):
        name = _text(host, "name", f"hosts[{number}]")
        if name in names:
            raise ValueError(f"hosts[{number}] has the name of hosts[{names[name]}], {name!r}")
        names[name] = number
    counts = [_count(host, "ranks", f"hosts[{n}]", _MOST_RANKS) for n, host in enumerate(hosts)]
    if sum(counts) > _MOST_RANKS:
        raise ValueError(f"the hosts have {sum(counts)} ranks together, more than {_MOST_RANKS}")
    sizes = [_count(host, "memory_bytes", f"hosts[{n}]") for n, host in enumerate(hosts)]
    speeds = [_rate(host, "flops", f"hosts[{n}]") for n, host in enumerate(hosts)]
    links = [_link(row, f"links[{n}]", names) for n, row in enumerate(_list(table, "links"))]
    rates = RankRates(operations=min(speeds), memory=min(sizes), links=tuple(links))
    described = tuple(map(Host, names, counts, sizes))
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


def _link(row: Any, place: str, names: dict[str, int]) -> LinkRate:
    between = row.get("between") if isinstance(row, dict) else None
    if not isinstance(between, list) or len(between) != 2:
        raise ValueError(f"{place}.between is not a pair of names")
    for name in between:
        if not isinstance(name, str) or name not in names:
            raise ValueError(f"{place} goes to {str(name)[:64]!r}, which is no host")
    kind = _text(row, "kind", place)
    if kind not in _KINDS:
        raise ValueError(f"{place}.kind is {kind!r}, not one of {', '.join(sorted(_KINDS))}")
    first, second = sorted(between)
    latency = row.get("latency_s")
    if isinstance(latency, bool) or not isinstance(latency, int | float) or not 0 <= latency < 1e6:
        raise ValueError(f"{place}.latency_s is not a time in seconds")
    size = row.get("bytes")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{place}.bytes is not a number of bytes")
    rate = _rate(row, "bytes_per_s", place)
    return LinkRate((first, second), kind, size, float(latency), rate)


def _list(table: dict[str, Any], name: str) -> list[Any]:
    value = table.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")
    return value


def _text(row: Any, name: str, place: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise ValueError(f"{place}.{name} is not a name")
    return value


def _count(row: Any, name: str, place: str, most: int = _MOST_COUNT) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"{place}.{name} is not a number from 1 to {most}")
    return value


def _rate(row: Any, name: str, place: str) -> float:
    value = row.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or not 1 <= value <= 1e18:
        raise ValueError(f"{place}.{name} is not a rate from 1 to 1e18 a second")
    return float(value)
