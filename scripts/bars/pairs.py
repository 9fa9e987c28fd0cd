"""Plans of models for clusters, beside the rule "columns, then rows, vocabulary divided".

The rule divides the first matmul that reads a whole value by columns, and the next matmul that
reads the divided values by rows. A table of rows that are gathered is divided by rows. The solver
chooses for all other nodes, about which the rule says nothing.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import Cluster, RankRates
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import NodeStrategies, mesh_offers
from tcc.distributed.plan import texts_of
from tcc.distributed.solve import solved
from tcc.ir.graph import Graph, Node, Value

from bars.figures import Figure, say
from bars.shapes import Shape, llama, mlp

SHARED = RankRates()  # ranks of a host
NETWORK = RankRates(latency=2e-5, link_bytes=1.25e9)  # hosts with 10 Gbit/s
FAST_NETWORK = RankRates(latency=5e-6, link_bytes=1.25e10)
SMALL = Shape(2, 512, 8, 4, 1408, 8000, 64)
DECODE = Shape(2, 2048, 16, 16, 5632, 32000, 1)
LARGE = Shape(1, 4096, 32, 8, 14336, 128256, 512)
MODELS = {
    "mlp of 8 layers": lambda: mlp(8, 64, 1024),
    "mlp of many rows": lambda: mlp(4, 8192, 256),
    "small llama": lambda: llama(SMALL),
    "llama, one token": lambda: llama(DECODE),
    "layer of an 8B llama": lambda: llama(LARGE),
}
ONE_HOST, TWO_HOSTS = Cluster(Mesh((4,)), (SHARED,)), Cluster(Mesh((2, 2)), (NETWORK, SHARED))
EIGHT_HOSTS = Cluster(Mesh((8, 4)), (FAST_NETWORK, SHARED))
PAIRS: tuple[tuple[str, str, Cluster], ...] = (
    ("mlp of 8 layers", "4 ranks", ONE_HOST),
    ("mlp of 8 layers", "2x2 ranks", TWO_HOSTS),
    ("mlp of many rows", "4 ranks", ONE_HOST),
    ("mlp of many rows", "2x2 ranks", TWO_HOSTS),
    ("small llama", "4 ranks", ONE_HOST),
    ("small llama", "2x2 ranks", TWO_HOSTS),
    ("llama, one token", "4 ranks", ONE_HOST),
    ("llama, one token", "2x2 ranks", TWO_HOSTS),
    ("layer of an 8B llama", "4 ranks", ONE_HOST),
    ("layer of an 8B llama", "8x4 ranks", EIGHT_HOSTS),
)
LLAMA_70B = Shape(80, 8192, 64, 8, 28672, 128256, 128)
MOST_SECONDS, MOST_BYTES = 20.0, 1 << 30


def rule(graph: Graph, mesh: Mesh) -> dict[Node, NodeStrategies]:
    """Returns the strategies that the rule fixes: those of matmuls with weights, and of gathered
    tables; nodes that cannot be divided so are left out."""
    divided: set[Value] = set()
    fixed: dict[Node, NodeStrategies] = {}
    offered = mesh_offers(graph, mesh.axes)
    for node in graph.nodes:
        operands = [value for value in node.inputs if value is not None]
        reads_weight = operands[-1] in graph.constants
        is_divided = any(value in divided for value in operands)
        if node.op.name == "gather" and operands[0] in graph.constants:
            text = "split(0), whole -> partial(sum)"
        elif node.op.name == "matmul" and reads_weight and is_divided:
            text = "split(1), split(0) -> partial(sum)"
        elif node.op.name == "matmul" and reads_weight:
            text = "whole, split(1) -> split(1)"
            divided.update(node.outputs)
        else:
            if is_divided:
                divided.update(node.outputs)
            continue
        texts = (text,) * len(mesh.sizes)
        for items in offered[node]:
            if texts_of(items) == texts:
                fixed[node] = items
    return fixed


def seconds_of(graph: Graph, cluster: Cluster) -> tuple[float, float]:
    """Returns the predicted seconds of the best plan, and of the best plan that obeys the rule."""
    solver = partition_solver()
    free = solved(graph, cluster, solver, {}).seconds
    return free, solved(graph, cluster, solver, rule(graph, cluster.mesh)).seconds


def pairs(_: Path) -> Iterator[Figure]:
    """Yields the predicted time of the best plan over that of the rule's, for each pair."""
    for model, ranks, cluster in PAIRS:
        say(f"{model} on {ranks}")
        free, ruled = seconds_of(MODELS[model](), cluster)
        what = f"{model} on {ranks}: plan over rule"
        yield Figure(what, f"{free / ruled:.3f} ({free * 1e3:.3f} ms)", "<= 1", free <= ruled)


def large(_: Path) -> Iterator[Figure]:
    """Yields the seconds and the memory in which a graph of a 70B llama is planned for 8 hosts of
    8 ranks."""
    graph = llama(LLAMA_70B)
    cluster = Cluster(Mesh((8, 8)), (FAST_NETWORK, SHARED))
    start = time.process_time()
    solution = solved(graph, cluster, partition_solver(), {})
    seconds = time.process_time() - start
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    value = f"{seconds:.1f} s, {size / (1 << 20):.0f} MiB"
    met = seconds <= MOST_SECONDS and size <= MOST_BYTES
    what = f"70B llama on 8x8 ranks ({solution.seconds * 1e3:.1f} ms)"
    yield Figure(what, value, "<= 20 s, 1024 MiB", met)


__all__: Sequence[str] = ("PAIRS", "large", "pairs", "rule", "seconds_of")
