"""A plan as rows for a picture: layers of nodes, and the exchanges between them.

    matmul, relu    split(1)          weights of a rank: 1 of 2 MiB
    matmul          partial(sum)      weights of a rank: 1 of 2 MiB
    all_reduce      2 KiB             ranks 0 to 3

Equal sequences of rows, as of the layers of a transformer, become one sequence with a count.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from tcc.distributed.exchanges import Division, exchange_of, is_exchange
from tcc.distributed.sharding import Sharding, type_bytes
from tcc.frozen import frozen
from tcc.ir.graph import Node, Value


@frozen
class PlanLayer:
    """Nodes between two exchanges whose results ranks hold in the same way.

    `nodes` are their names, and `ops` the names of their ops, each once.  `kind` is `Whole`,
    `Split` or `Partial`, and `shardings` are the shardings of their first results, each once.  A
    rank has `rank_bytes` of the layer's weights, which take `bytes` bytes.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    kind: type[Sharding]
    shardings: tuple[Sharding, ...]
    rank_bytes: int
    bytes: int

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what equal layers have in common: all but names."""
        return len(self.nodes), self.ops, self.shardings, self.rank_bytes, self.bytes


@frozen
class Crossing:
    """A collective of the kind `kind` between layers, to which a rank hands `bytes` bytes.

    `groups` are the groups of ranks that run it.
    """

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what equal collectives have in common."""
        return self.kind, self.bytes, self.groups


Row = PlanLayer | Crossing


@frozen
class RepeatedRows:
    """Rows that follow one another `count` times; `rows` are those of the first time."""

    rows: tuple[Row, ...]
    count: int


def plan_rows(division: Division) -> tuple[RepeatedRows, ...]:
    """Returns the layers of a divided graph and its collectives, in the order of a run."""
    return tuple(_folded([*_rows(division)]))


def _rows(division: Division) -> Iterator[Row]:
    producers = division.local.producers()
    origins: dict[Node | None, tuple[Node, Sharding]] = {}
    for node, strategy in division.choice.items():
        for value, sharding in zip(node.outputs[:1], strategy.results, strict=False):
            array = division.arrays[value].get(sharding)
            origins[producers.get(array) if array is not None else None] = node, sharding
    layers: dict[type[Sharding], list[tuple[Node, Sharding]]] = {}
    weights: set[Value] = set()
    everyone = (tuple(range(division.ranks)),)
    for local in division.local.nodes:
        if is_exchange(local):
            yield from _layers(division, layers, weights)
            layers = {}
            exchange = exchange_of(local)
            yield Crossing(exchange.kind, exchange.bytes, local.attrs.members or everyone)
        elif local in origins:
            node, sharding = origins[local]
            layers.setdefault(type(sharding), []).append((node, sharding))
    yield from _layers(division, layers, weights)


def _layers(
    division: Division,
    layers: dict[type[Sharding], list[tuple[Node, Sharding]]],
    weights: set[Value],
) -> Iterator[PlanLayer]:
    """Yields a layer for each kind of sharding; `weights` are those of earlier layers."""
    for kind, pairs in layers.items():
        rank_bytes = bytes = 0
        for node, _ in pairs:
            strategy = division.choice[node]
            for value, sharding in zip(node.inputs, strategy.operands, strict=True):
                if value is None or value in weights:
                    continue
                if value in division.graph.constants:
                    weights.add(value)
                    bytes += type_bytes(value.type)
                    rank_bytes += type_bytes(division.arrays[value][sharding].type)
        yield PlanLayer(
            tuple(node.outputs[0].name for node, _ in pairs),
            tuple(dict.fromkeys(node.op.name for node, _ in pairs)),
            kind,
            tuple(dict.fromkeys(sharding for _, sharding in pairs)),
            rank_bytes,
            bytes,
        )


def _folded(rows: Sequence[Row]) -> Iterator[RepeatedRows]:
    """Yields the rows; at each row, the shortest sequence that covers most rows by repetition."""
    keys = [row.key for row in rows]
    first, plain = 0, 0
    while first < len(rows):
        length, times = max(_repeats(keys, first), key=lambda pair: pair[0] * (pair[1] - 1))
        if times > 1:
            if plain < first:
                yield RepeatedRows(tuple(rows[plain:first]), 1)
            yield RepeatedRows(tuple(rows[first : first + length]), times)
            plain = first + length * times
        first += length * times if times > 1 else 1
    if plain < len(rows):
        yield RepeatedRows(tuple(rows[plain:]), 1)


def _repeats(keys: Sequence[object], first: int) -> Iterable[tuple[int, int]]:
    """Yields lengths of sequences that begin at `first`, each with its number of repetitions."""
    yield 1, 1
    for length in range(1, (len(keys) - first) // 2 + 1):
        sequence = keys[first : first + length]
        for times in count(1):
            begin = first + times * length
            if keys[begin : begin + length] != sequence:
                break
        yield length, times
