"""Counts the exchanges that a plan needs, and finds each of them in the graph that ranks run.

    h : split(1), read as whole       one all_gather of h's block between the two arrays of h
    y : partial(sum), read as whole   one all_reduce of y

The rules stand here a second time: nothing of `changes.py`, of `costs.py` or of the solver is used.
A fault of the divided graph is a fault of tcc, so it is an InternalError.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from tcc.distributed.divisions import block_type
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import (
    NodeStrategies,
    expr_of,
    mesh_expr,
    operand_shardings,
    result_shardings,
)
from tcc.distributed.shard import RankArrays
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Shardings,
    Split,
    Whole,
    type_bytes,
)
from tcc.distributed.states import StateNames, kept_states, states_of
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value, captures, walk_nodes
from tcc.ir.op import Array, Trait
from tcc.ir.types import TensorType
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal


@frozen
class Exchange:
    """A collective of the kind `kind`, as in `all_reduce`, to which a rank hands `bytes` bytes.

    A symbolic size counts as its typical value.  `value` names what is exchanged.
    """

    kind: str
    bytes: int
    value: str

    @property
    def key(self) -> tuple[str, int]:
        """The kind and the bytes, without the name."""
        return self.kind, self.bytes


@frozen
class Division:
    """A graph, the strategies of each node, and what the ranks run: `local`, with their arrays of
    the values of `graph`.  `states` are pairs of an input's and an output's name."""

    graph: Graph
    choice: Mapping[Node, NodeStrategies]
    mesh: Mesh
    local: Graph
    arrays: RankArrays
    states: StateNames = ()

    @property
    def whole(self) -> Shardings:
        """The shardings of a value that every rank has."""
        return (WHOLE,) * len(self.mesh.sizes)


def is_exchange(node: Node) -> bool:
    """True for a node in which ranks exchange data: a collective with an operand."""
    return Trait.COLLECTIVE in node.op.traits and bool(node.inputs)


def exchange_of(node: Node) -> Exchange:
    """Returns the exchange of a collective node."""
    (operand,) = node.inputs
    assert operand is not None
    return Exchange(node.op.name, type_bytes(operand.type), operand.name)


def sums_by_kind(exchanges: Sequence[Exchange]) -> dict[str, tuple[int, int]]:
    """Returns the number of exchanges of each kind, and the bytes that a rank hands to them."""
    counts = Counter(item.kind for item in exchanges)
    sizes: Counter[str] = Counter()
    for item in exchanges:
        sizes[item.kind] += item.bytes
    return {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}


def check_exchanges(division: Division) -> tuple[Exchange, ...]:
    """Returns the exchanges of a run that the strategies need.

    Raises InternalError if an array of a rank has another shape than its sharding says, if a
    constant's blocks are not those of the whole constant, if a node reads another array than its
    strategy says, and if an exchange is missing, is another one, or is not needed.
    """
    checker = _Checker(division)
    checker.check_shapes()
    checker.check_readers()
    exchanges = (*checker.changes(), *_reductions_in_nodes(division))
    due = Counter(item.key for item in exchanges)
    there = Counter(exchange_of(n).key for n in walk_nodes(division.local) if is_exchange(n))
    for kind, size in (due - there) + (there - due):
        raise InternalError(
            "the ranks exchange something else than the plan needs",
            where=division.graph.name,
            why=f"{kind} of {size} bytes: {there[kind, size]} in the ranks' graph, "
            f"{due[kind, size]} needed",
        )
    return exchanges


class _Checker:
    """Compares the graph of the ranks with the strategies."""

    def __init__(self, division: Division) -> None:
        self._division, self._mesh = division, division.mesh
        self._producers = division.local.producers()
        self._kept = kept_states(states_of(division.graph, division.states), division.choice)
        self._live = {
            *division.local.inputs, *division.local.constants, *self._producers,
        }  # fmt: skip

    def check_shapes(self) -> None:
        """Compares the shape of each array with its shardings."""
        for value, arrays in self._division.arrays.items():
            for shardings, array in arrays.items():
                type = _rank_type(value.type, shardings, self._mesh.sizes)
                if type is None or (array.shape, array.dtype) != (type.shape, type.dtype):
                    raise InternalError(
                        "a rank's array has a wrong shape",
                        where=value.name,
                        why=f"{array.type!r} as {shardings} of {value.type!r}",
                    )

    def check_readers(self) -> None:
        """Finds the array that each node of the ranks reads, and the whole array of each output."""
        undivided = self._division.whole
        for node, items in self._division.choice.items():
            pairs = zip_equal(node.inputs, operand_shardings(items))
            operands = tuple(v and self._array(v, s) for v, s in pairs)
            reader = self._reader(node, items)
            if reader is None or any(s.reduced for s in items):  # dead, or several nodes
                continue
            inner = {
                self._array(v, undivided) for v in captures(node) if v in self._division.arrays
            }
            if not self._are_read(reader, operands) or not inner <= {*captures(reader)}:
                raise InternalError(
                    "a node of the ranks reads other arrays than its strategy says",
                    where=node.loc or node.result.name,
                    why=f"it has the strategies {items}",
                )
        graph, local = self._division.graph, self._division.local
        for output, array in zip_equal(graph.outputs, local.outputs):
            if self._array(output, self._kept.get(output, undivided)) is not array:
                raise InternalError("an output of the ranks is another array", where=output.name)

    def _are_read(self, reader: Node, operands: Sequence[Value | None]) -> bool:
        """True if `reader` reads `operands`, or arrays that a rank computes from each of them
        alone, such as those with zeros as padding."""
        return all(
            read is operand
            or (
                (producer := self._producers.get(read)) is not None
                and not is_exchange(producer)
                and producer.inputs == (operand,)
            )
            for read, operand in zip_equal(reader.inputs, operands)
        )

    def _reader(self, node: Node, items: NodeStrategies) -> Node | None:
        if not node.outputs:
            return None
        array = self._division.arrays[node.result].get(result_shardings(items)[0])
        return self._producers.get(array)

    def _array(self, value: Value, shardings: Shardings) -> Value:
        array = self._division.arrays[value].get(shardings)
        if array is None:
            what = "a change of sharding is missing"
            raise InternalError(what, where=value.name, why=f"no rank has {shardings}")
        return array

    def changes(self) -> Iterator[Exchange]:
        """Yields the exchanges behind all arrays that are not as their producer makes them."""
        origins = {
            value: shardings
            for node, items in self._division.choice.items()
            for value, shardings in zip_equal(node.outputs, result_shardings(items))
        }
        for value, arrays in self._division.arrays.items():
            origin = origins.get(value, self._kept.get(value, self._division.whole))
            for shardings, array in arrays.items():
                if shardings != origin and array in self._live:
                    yield from self._change(value, shardings, array)

    def _change(self, value: Value, shardings: Shardings, array: Value) -> Iterator[Exchange]:
        """Yields the exchange by which `array` comes from another array of the same value, which
        differs along one axis of the mesh."""
        if array in self._division.local.constants:
            # Equal blocks are one array, whatever their shardings.
            self._check_blocks(value, shardings, array)
            return
        sources = {a: s for s, a in self._division.arrays[value].items() if s != shardings}
        step, nodes = array, []
        while step not in sources:
            producer = self._producers.get(step)
            operand = producer.inputs[0] if producer is not None and producer.inputs else None
            if producer is None or operand is None:
                raise InternalError(
                    "an array does not come from its value", where=value.name, why=str(shardings)
                )
            nodes.append(producer)
            step = operand
        pairs = enumerate(zip_equal(sources[step], shardings))
        differences = [(n, pair) for n, pair in pairs if pair[0] != pair[1]]
        axis, (source, result) = differences[0]
        undivided = replaced(shardings, axis, WHOLE)
        type = _rank_type(value.type, undivided, self._mesh.sizes)
        assert type is not None
        due = _due(Value(value.name, type), source, result, self._mesh.sizes[axis])
        exchanges = [node for node in nodes if is_exchange(node)]
        have = [exchange_of(node).key for node in exchanges]
        members = self._mesh.axis(axis).members
        if len(differences) > 1 or have != [item.key for item in due] or any(
            node.attrs.members != members
            or (isinstance(source, Partial) and node.attrs.reduction != source.reduction)
            for node in exchanges
        ):  # fmt: skip
            raise InternalError(
                "a change of sharding has another exchange",
                where=value.name,
                why=f"{sources[step]} becomes {shardings} by {have or 'nothing'}",
            )
        yield from due

    def _check_blocks(self, value: Value, shardings: Shardings, array: Value) -> None:
        """Compares each rank's array of a constant with its part of the whole constant."""
        store, local = self._division.graph.store, self._division.local
        whole = store.get(self._division.graph.constants[value])
        parts = local.store.arrays(local.constants[array])
        for rank in range(self._mesh.ranks):
            due, later = whole, self._mesh.ranks
            for sharding, ranks in zip_equal(shardings, self._mesh.sizes):
                later //= ranks
                due = _part(due, sharding, rank // later % ranks, ranks)
            if not np.array_equal(parts[rank % len(parts)], due):
                what = f"rank {rank} has another part of a constant"
                raise InternalError(what, where=value.name, why=str(shardings))


def _part(whole: Array, sharding: Sharding, place: int, ranks: int) -> Array:
    """Returns the part of a constant that the rank at `place` of an axis has, with zeros as
    padding."""
    if isinstance(sharding, Whole):
        return whole
    if isinstance(sharding, Partial):
        return whole if place == 0 else np.zeros_like(whole)
    axis, groups = sharding.axis, sharding.groups
    size, place = whole.shape[axis] // groups, place // sharding.copies
    block = sharding.block or size * sharding.copies // ranks
    shape = replaced(whole.shape, axis, groups * block)
    part, before = np.zeros(shape, whole.dtype), (slice(None),) * axis
    first, end = place * block, min((place + 1) * block, size)
    for group in range(groups if first < end else 0):
        elements = slice(group * size + first, group * size + end)
        part[(*before, slice(group * block, group * block + end - first))] = whole[
            (*before, elements)
        ]
    return part


def _rank_type(type: TensorType, shardings: Shardings, sizes: Sequence[int]) -> TensorType | None:
    """Returns the type of a rank's array; None where the ranks have no equal blocks."""
    block: TensorType | None = type
    for sharding, ranks in zip_equal(shardings, sizes):
        block = block and block_type(block, sharding, ranks)
    return block


def _bytes(type: TensorType, ranks: int, *shardings: Sharding, covered: Sharding = WHOLE) -> int:
    """Returns the bytes of a rank's array of a value that is split by `shardings`; the blocks of
    `covered` and their padding are all there."""
    for sharding in shardings:
        type = block_type(type, sharding, ranks) or type
    if isinstance(covered, Split):
        axis = covered.axis
        block = block_type(type, covered, ranks) or type
        size = block.shape[axis] * ranks
        type = replace(type, shape=replaced(type.shape, axis, size))
    return type_bytes(type)


def _due(value: Value, source: Sharding, result: Sharding, ranks: int) -> list[Exchange]:
    """Returns the exchange that a change needs; empty where ranks have all that they need."""
    size, name = type_bytes(value.type), value.name
    match source, result:
        case Partial(), Split(copies=1):
            return [Exchange("reduce_scatter", _bytes(value.type, ranks, covered=result), name)]
        case Partial(), Whole() | Split():
            return [Exchange("all_reduce", size, name)]
        case Split(axis, copies=1), Split(other, copies=1) if axis != other:
            held = _bytes(value.type, ranks, source, covered=result)
            return [Exchange("all_to_all", held, name)]
        case Split(), Whole() | Split():
            return [Exchange("all_gather", _bytes(value.type, ranks, source), name)]
        case Whole(), _:
            return []
    raise InternalError(f"no exchange makes {result} of {source}", where=value.name)


def _reductions_in_nodes(division: Division) -> Iterator[Exchange]:
    """Yields the reductions inside of nodes, such as those of a softmax with divided keys."""
    axes = division.mesh.axes
    for node, items in division.choice.items():
        expr = expr_of(node) if any(strategy.reduced for strategy in items) else None
        if expr is not None:
            stages = mesh_expr(expr, items, axes).stages
            for number, monoids in (pair for strategy in items for pair in strategy.reduced):
                kind = "all_reduce" if {*monoids} <= {*REDUCTIONS} else "all_gather"
                for type in stages[number].types:
                    yield Exchange(kind, type_bytes(type), node.result.name)
