"""Products of the same few rows with several matrices become one product with all their columns.

    %q = matmul(%x, %a[1024, 1024])              %y = matmul(%x, [%a %b])
    %k = matmul(%x, %b[1024, 256])       ->      %q, %k = split(%y)

What prepares the rows is then done for one kernel, one stream of weights keeps all cores busy, and
the parts are index maps to those who read them.  With many rows a product fills the cores alone,
and its readers rather find their part dense.  Products whose results meet element by element stay
apart: the second to run finishes both.
Requires nothing.  Establishes that such products read different rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.types import TensorType, element_count
from tcc.ops import OPS
from tcc.ops.algebra.movement import SplitAttrs
from tcc.passes.fuse.partition import NodeKind, classify
from tcc.passes.graph.emit import emit
from tcc.schedule.limits import TYPICAL_LIMITS


def merge_matmuls(graph: Graph, few: int = TYPICAL_LIMITS.few_rows) -> Graph:
    """`graph` with products of the same rows, at most `few`, merged; itself if it has none."""
    users = graph.users()
    bundles: dict[Node, list[Node]] = {}
    several = [nodes for nodes in _by_rows(graph, users, few).values() if len(nodes) > 1]
    ends = _elementwise_ends(graph, chain.from_iterable(several), users)
    for nodes in several:
        apart = _apart(nodes, ends)
        bundles.update((n, apart) for n in apart if len(apart) > 1)
    made: dict[Node, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node not in bundles:
            return None
        if node not in made:
            made.update(zip(bundles[node], _merged(b, graph, bundles[node], inputs), strict=True))
        return [made[node]]

    return rewritten(graph, visit) if bundles else graph


def has_few_rows(graph: Graph, few: int) -> bool:
    """Whether a product with a constant matrix has at most `few` rows: such are merged."""
    return any(
        node.op.name == "matmul"
        and (x := node.inputs[0]) is not None
        and node.inputs[1] in graph.constants
        and _few(x.type, few)
        for node in graph.nodes
    )


def _few(rows: TensorType, few: int) -> bool:
    known = as_int(element_count(rows.shape[:-1]))
    return known is not None and known <= few


def _by_rows(
    graph: Graph, users: dict[Value, list[Node]], few: int
) -> dict[tuple[Value, str], list[Node]]:
    """Products of few rows and a matrix that nothing else reads, by rows and element type."""
    found: dict[tuple[Value, str], list[Node]] = {}
    kept = set(graph.outputs)
    for node in graph.nodes:
        if node.op.name != "matmul" or kept.intersection(node.outputs):
            continue
        x, matrix = node.inputs
        if x is None or matrix is None or matrix not in graph.constants or x in graph.constants:
            continue
        if not _few(x.type, few) or len(matrix.type.shape) != 2 or len(x.type.shape) < 2:
            continue
        if len(users[matrix]) == 1:
            found.setdefault((x, matrix.type.dtype.name), []).append(node)
    return found


def _apart(nodes: Sequence[Node], ends: Mapping[Node, int]) -> list[Node]:
    """The products whose results meet no other's element by element."""
    once = twice = 0
    for node in nodes:
        twice |= once & ends[node]
        once |= ends[node]
    return [node for node in nodes if not ends[node] & twice]


def _elementwise_ends(
    graph: Graph, products: Iterable[Node], users: Mapping[Value, Sequence[Node]]
) -> dict[Node, int]:
    """For each product the set, as bits, of the nodes at which its result ends that it reaches
    through what computes values of the same shape point by point: two results meet on the way
    where they have an end in common."""
    after: dict[Node, list[Node]] = {}
    left = [*products]
    while left:
        node = left.pop()
        if node not in after:
            after[node] = [u for u in _readers(node, users) if _point_by_point(node, u)]
            left += after[node]
    ends: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        if node in after:
            ends[node] = reduce(or_, (ends[u] for u in after[node]), 0) or 1 << len(ends)
    return ends


def _readers(node: Node, users: Mapping[Value, Sequence[Node]]) -> Iterable[Node]:
    return dict.fromkeys(u for v in node.outputs for u in users.get(v, ()))


def _point_by_point(node: Node, user: Node) -> bool:
    """Whether `user` computes values of the shape of the node's result, point by point."""
    if classify(user).kind is not NodeKind.POINTWISE:
        return False
    return user.outputs[0].type.shape == node.outputs[0].type.shape


def _merged(
    b: GraphBuilder, graph: Graph, nodes: Sequence[Node], inputs: Inputs
) -> tuple[Value, ...]:
    """One product for `nodes`, and their results as parts of its own."""
    matrices = [n.inputs[1] for n in nodes]
    arrays = [graph.constant(m) for m in matrices if m is not None]
    first = matrices[0]
    assert first is not None
    whole = np.concatenate([a for a in arrays if a is not None], axis=1)
    sources = [s for m in matrices if m is not None for s in _sources(graph, m)]
    columns = b.constant(whole, first.name, first.type.dtype, sources)
    value = emit(b, "matmul", inputs[0], columns)
    sizes = tuple(n.outputs[0].type.shape[-1] for n in nodes)
    return b.add(OPS["split"], [value], SplitAttrs(value.type.rank - 1, sizes))


def _sources(graph: Graph, matrix: Value) -> tuple[str, ...]:
    return graph.store.sources(graph.constants[matrix])
