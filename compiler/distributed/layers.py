"""A plan as rows for a picture: layers of nodes, and the exchanges between them.

matmul, relu    split(1)          weights of a rank: 1 of 2 MiB
matmul          partial(sum)      weights of a rank: 1 of 2 MiB
all_reduce      2 KiB             ranks 0 to 3
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tcc.distributed.exchanges import Division, exchange_of, is_exchange
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import operand_shardings, result_shardings
from tcc.distributed.plan import joined
from tcc.distributed.sharding import Partial, Shardings, Split, type_bytes
from tcc.frozen import frozen
from tcc.ir.graph import Node, Value
from tcc.zipped import zip_equal


@frozen
class PlanLayer:
    """Nodes between two exchanges whose results ranks hold in the same way.

    `nodes` are their names, and `ops` the names of their ops, each once.  `kind` is "partial" if
    their values are parts of a sum along an axis of the mesh, else "split" if an axis divides them,
    else "whole".  `shardings` are the texts of the shardings of their first results, each once.
    `blocks` has the number of each rank's block.  A rank has `rank_bytes` of the layer's weights,
    which take `bytes` bytes.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    kind: str
    shardings: tuple[str, ...]
    blocks: tuple[int, ...]
    rank_bytes: int
    bytes: int


@frozen
class Crossing:
    """A collective of the kind `kind` between layers, to which a rank hands `bytes` bytes.

    `groups` are the groups of ranks that run it.
    """

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]


Row = PlanLayer | Crossing
# How the ranks of a layer hold values, and the number of each rank's block.
_Key: TypeAlias = tuple[str, tuple[int, ...]]


def plan_rows(division: Division) -> Iterator[Row]:
    """Yields the layers of a divided graph and its collectives, in the order of a run."""
    producers = division.local.producers()
    origins: dict[Node | None, tuple[Node, Shardings]] = {}
    for node, items in division.choice.items():
        for value, shardings in zip(node.outputs[:1], result_shardings(items), strict=False):
            array = division.arrays[value].get(shardings)
            origins[producers.get(array)] = node, shardings
    layers: dict[_Key, list[tuple[Node, Shardings]]] = {}
    weights: set[Value] = set()
    everyone = (tuple(range(division.mesh.ranks)),)
    for local in division.local.nodes:
        if is_exchange(local):
            yield from _layers(division, layers, weights)
            layers = {}
            exchange = exchange_of(local)
            yield Crossing(exchange.kind, exchange.bytes, local.attrs.members or everyone)
        elif local in origins:
            node, shardings = origins[local]
            key = _kind(shardings), _blocks(shardings, division.mesh)
            layers.setdefault(key, []).append((node, shardings))
    yield from _layers(division, layers, weights)


def _kind(shardings: Shardings) -> str:
    kinds = {type(sharding) for sharding in shardings}
    return "partial" if Partial in kinds else "split" if Split in kinds else "whole"


def _blocks(shardings: Shardings, mesh: Mesh) -> tuple[int, ...]:
    """Returns the number of each rank's block of a value."""
    numbers = [0] * mesh.ranks
    for axis, sharding in zip_equal(mesh.axes, shardings):
        if isinstance(sharding, Split):
            numbers = [n * axis.ranks + axis.place(rank) for rank, n in enumerate(numbers)]
    return tuple(numbers)


def _layers(
    division: Division,
    layers: Mapping[_Key, Sequence[tuple[Node, Shardings]]],
    weights: set[Value],
) -> Iterator[PlanLayer]:
    """Yields a layer for each kind of sharding; `weights` are those of earlier layers."""
    for (kind, blocks), pairs in layers.items():
        rank_bytes = bytes = 0
        for node, _ in pairs:
            operands = operand_shardings(division.choice[node])
            for value, shardings in zip_equal(node.inputs, operands):
                if value is None or value in weights:
                    continue
                if value in division.graph.constants:
                    weights.add(value)
                    bytes += type_bytes(value.type)
                    rank_bytes += type_bytes(division.arrays[value][shardings].type)
        yield PlanLayer(
            tuple(node.result.name for node, _ in pairs),
            tuple(dict.fromkeys(node.op.name for node, _ in pairs)),
            kind,
            tuple(dict.fromkeys(joined(tuple(map(repr, s))) for _, s in pairs)),
            blocks,
            rank_bytes,
            bytes,
        )
