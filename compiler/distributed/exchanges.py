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
from tcc.distributed.divisions import has_equal_blocks
from tcc.distributed.offers import expr_of
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Split,
    Whole,
    type_bytes,
)
from tcc.distributed.states import StateNames, kept_states, states_of
from tcc.distributed.strategies import Strategy
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value, captures, walk_nodes
from tcc.ir.index import Index, const
from tcc.ir.op import Array, Trait
from tcc.ir.types import TensorType


@frozen
class Exchange:
    """A collective of the kind `kind`, as in `all_reduce`, to which a rank hands `bytes` bytes.

    A symbolic size counts as its typical value.  `value` names what is exchanged.
    """

    kind: str
    bytes: int
    value: str


@frozen
class Division:
    """A graph, a strategy for each node, and what the ranks run: `local`, with their arrays of the
    values of `graph`.  `states` are pairs of an input's and an output's name."""

    graph: Graph
    choice: Mapping[Node, Strategy]
    ranks: int
    local: Graph
    arrays: Mapping[Value, Mapping[Sharding, Value]]
    states: StateNames = ()


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
    exchanges = (*checker.changes(), *_reductions_in_nodes(division.choice))
    due = Counter((item.kind, item.bytes) for item in exchanges)
    there = Counter(
        (item.kind, item.bytes)
        for item in (exchange_of(node) for node in walk_nodes(division.local) if is_exchange(node))
    )
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
        self._division = division
        self._producers = division.local.producers()
        choice = {node: (strategy,) for node, strategy in division.choice.items()}
        kept = kept_states(states_of(division.graph, division.states), choice)
        self._kept = {value: sharding for value, (sharding,) in kept.items()}
        self._live = {
            *division.local.inputs, *division.local.constants, *self._producers,
        }  # fmt: skip

    def check_shapes(self) -> None:
        """Compares the shape of each array with its sharding."""
        for value, arrays in self._division.arrays.items():
            for sharding, array in arrays.items():
                shape = _block_shape(value.type, sharding, self._division.ranks)
                if shape is None or (array.type.shape, array.type.dtype) != (
                    shape, value.type.dtype,
                ):  # fmt: skip
                    raise InternalError(
                        "a rank's array has a wrong shape",
                        where=value.name,
                        why=f"{array.type!r} as {sharding} of {value.type!r}",
                    )

    def check_readers(self) -> None:
        """Finds the array that each node of the ranks reads, and the whole array of each output."""
        for node, strategy in self._division.choice.items():
            pairs = zip(node.inputs, strategy.operands, strict=True)
            operands = tuple(None if v is None else self._array(v, s) for v, s in pairs)
            reader = self._reader(node, strategy)
            if reader is None or strategy.reduced:  # dead, or several nodes
                continue
            inner = {self._array(v, WHOLE) for v in captures(node) if v in self._division.arrays}
            if not self._are_read(reader, operands) or not inner <= {*captures(reader)}:
                raise InternalError(
                    "a node of the ranks reads other arrays than its strategy says",
                    where=node.loc or node.outputs[0].name,
                    why=f"it has the strategy {strategy}",
                )
        graph, local = self._division.graph, self._division.local
        for output, array in zip(graph.outputs, local.outputs, strict=True):
            if self._array(output, self._kept.get(output, WHOLE)) is not array:
                raise InternalError("an output of the ranks is another array", where=output.name)

    def _are_read(self, reader: Node, operands: Sequence[Value | None]) -> bool:
        """True if `reader` reads `operands`, or arrays that a rank computes from each of them
        alone, such as those with zeros as padding."""
        return all(
            read is operand
            or (
                read is not None
                and (producer := self._producers.get(read)) is not None
                and not is_exchange(producer)
                and producer.inputs == (operand,)
            )
            for read, operand in zip(reader.inputs, operands, strict=True)
        )

    def _reader(self, node: Node, strategy: Strategy) -> Node | None:
        if not node.outputs:
            return None
        array = self._division.arrays[node.outputs[0]].get(strategy.results[0])
        return None if array is None else self._producers.get(array)

    def _array(self, value: Value, sharding: Sharding) -> Value:
        array = self._division.arrays[value].get(sharding)
        if array is None:
            raise InternalError(
                "a change of sharding is missing", where=value.name, why=f"no rank has {sharding}"
            )
        return array

    def changes(self) -> Iterator[Exchange]:
        """Yields the exchanges behind all arrays that are not as their producer makes them."""
        origins = {
            value: sharding
            for node, strategy in self._division.choice.items()
            for value, sharding in zip(node.outputs, strategy.results, strict=True)
        }
        for value, arrays in self._division.arrays.items():
            origin = origins.get(value, self._kept.get(value, WHOLE))
            for sharding, array in arrays.items():
                if sharding != origin and array in self._live:
                    yield from self._change(value, sharding, array)

    def _change(self, value: Value, sharding: Sharding, array: Value) -> Iterator[Exchange]:
        """Yields the exchange by which `array` comes from another array of the same value."""
        sources = {a: s for s, a in self._division.arrays[value].items() if s != sharding}
        step, nodes = array, []
        while step not in sources:
            producer = self._producers.get(step)
            if producer is None and value in self._division.graph.constants:
                self._check_blocks(value, sharding, step)
                return
            operand = producer.inputs[0] if producer is not None and producer.inputs else None
            if producer is None or operand is None:
                raise InternalError(
                    "an array does not come from its value", where=value.name, why=str(sharding)
                )
            nodes.append(producer)
            step = operand
        exchanges = [node for node in nodes if is_exchange(node)]
        source = sources[step]
        due = _due(value, source, sharding, self._division.ranks)
        have = [(item.kind, item.bytes) for item in map(exchange_of, exchanges)]
        if have != [(item.kind, item.bytes) for item in due] or any(
            isinstance(source, Partial) and node.attrs.reduction != source.reduction
            for node in exchanges
        ):
            raise InternalError(
                "a change of sharding has another exchange",
                where=value.name,
                why=f"{source} becomes {sharding} by {have or 'nothing'}",
            )
        yield from due

    def _check_blocks(self, value: Value, sharding: Sharding, array: Value) -> None:
        """Compares each rank's array of a constant with its part of the whole constant."""
        store, local = self._division.graph.store, self._division.local
        whole = store.get(self._division.graph.constants[value])
        parts = local.store.arrays(local.constants[array])
        for rank in range(self._division.ranks):
            part = parts[rank % len(parts)]
            pairs = _blocks(whole, part, sharding, rank, self._division.ranks)
            if not all(np.array_equal(a, b) for a, b in pairs):
                what = f"rank {rank} has another part of a constant"
                raise InternalError(what, where=value.name, why=str(sharding))


def _blocks(
    whole: Array, part: Array, sharding: Sharding, rank: int, ranks: int
) -> Iterator[tuple[Array, Array]]:
    """Yields pairs of a block of `whole` and the block of `part` that has to be equal."""
    if isinstance(sharding, Partial):
        yield (whole if rank == 0 else np.zeros_like(whole)), part
        return
    assert isinstance(sharding, Split)
    axis, groups = sharding.axis, sharding.groups
    size, place = whole.shape[axis] // groups, rank // sharding.copies
    block = sharding.block or size * sharding.copies // ranks
    before = (slice(None),) * axis
    for group in range(groups):
        first, end = place * block, min((place + 1) * block, size)
        count, start = max(0, end - first), group * block
        elements = slice(group * size + first, group * size + first + count)
        yield whole[(*before, elements)], part[(*before, slice(start, start + count))]
        padding = part[(*before, slice(start + count, start + block))]
        yield np.zeros_like(padding), padding


def _block_shape(type: TensorType, sharding: Sharding, ranks: int) -> tuple[object, ...] | None:
    """Returns the shape of a rank's array; None where the ranks have no equal blocks."""
    if not isinstance(sharding, Split):
        return type.shape
    if sharding.axis >= type.rank or not has_equal_blocks(type, sharding, ranks):
        return None
    shape = list(type.shape)
    shape[sharding.axis] = _held(shape[sharding.axis], sharding, ranks)
    return tuple(shape)


def _held(size: Index, split: Split, ranks: int) -> Index:
    """Returns how many elements a rank has along an axis of `size` elements."""
    if split.block:
        return const(split.block * split.groups)
    return size // (ranks // split.copies)


def _bytes(type: TensorType, ranks: int, *shardings: Sharding, covered: Sharding = WHOLE) -> int:
    """Returns the bytes of a rank's array of a value that is split by `shardings`; the blocks of
    `covered` and their padding are all there."""
    shape = list(type.shape)
    for split in shardings:
        if isinstance(split, Split):
            shape[split.axis] = _held(shape[split.axis], split, ranks)
    if isinstance(covered, Split):
        shape[covered.axis] = _held(shape[covered.axis], covered, ranks) * ranks
    return type_bytes(replace(type, shape=tuple(shape)))


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


def _reductions_in_nodes(choice: Mapping[Node, Strategy]) -> Iterator[Exchange]:
    """Yields the reductions inside of nodes, such as those of a softmax with divided keys."""
    for node, strategy in choice.items():
        expr = expr_of(node) if strategy.reduced else None
        if expr is not None:
            for number, monoids in strategy.reduced:
                kind = "all_reduce" if {*monoids} <= {*REDUCTIONS} else "all_gather"
                for type in expr.stages[number].types:
                    yield Exchange(kind, type_bytes(type), node.outputs[0].name)
