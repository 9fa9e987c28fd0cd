"""Graph: SSA nodes over tensors.  Models are imported into this form, and passes rewrite it.

    graph  = inputs, nodes in topological order, outputs, constants, aliases
    node   = op, attributes, inputs (None where optional and absent), outputs, location

Everything is frozen; a pass builds a new graph with a `GraphBuilder`.  Values are compared by
identity.  Nodes contain no arrays: a constant value has a handle in `constants`, a content hash.
The graph's `ConstantStore` has under this hash one array, or an array for each rank.  Bodies of If,
Loop and Scan are graphs in the node's attributes; they may read values of enclosing graphs
(`captures`).
`aliases` are must-aliases (output, input): the output is the input updated in place.
"""

from __future__ import annotations

import hashlib
import operator
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat, starmap
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from tcc.errors import InternalError, UserError
from tcc.frozen import entity, field_names, frozen
from tcc.ir.expr import Expr, substitute_sizes
from tcc.ir.index import Index, Indices, Substitution, const, substitute
from tcc.ir.narrow import bf16_bits, bf16_values, packed_size, rounded
from tcc.ir.op import Array, NoAttrs, OpSpec, result_types
from tcc.ir.types import BF16, DType, TensorType, dtype_of
from tcc.known import all_known

T = TypeVar("T")


@entity
class Value:
    """A tensor of a graph.

    `name` comes from the source model and is unique in the graph and its bodies.
    """

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Indices:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    def __repr__(self) -> str:
        return f"%{self.name} : {self.type!r}"


Values: TypeAlias = tuple[Value, ...]


def types_of(values: Iterable[Value | None]) -> tuple[TensorType | None, ...]:
    """Returns the types of operands, None for an absent one."""
    return tuple(None if v is None else v.type for v in values)


@entity
class Node:
    """An application of an op.

    `inputs` has None for an absent optional operand.  `loc` names the source model's node, for
    messages and traces.
    """

    op: OpSpec
    attrs: Any
    inputs: tuple[Value | None, ...]
    outputs: Values
    loc: str


@frozen
class Handle:
    """The SHA-256 of a constant: of its type and bytes, or of the form from which it is derived."""

    digest: str


def _content(data: Array) -> bytes | memoryview:
    """Returns bytes that identify the elements of `data`.

    Two arrays of one type and shape with equal bytes are equal.
    """
    if data.dtype != object:
        return data.reshape(-1).view(np.uint8).data
    texts = [str(text).encode("utf-8", "surrogateescape") for text in data.reshape(-1)]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


@entity
class _Derived:
    """An array that `make` computes of the arrays `operands`, while nothing holds it."""

    make: Callable[..., Any]
    operands: tuple[Stored, ...]


Stored: TypeAlias = Array | _Derived
# The arrays of all stores by hash: programs for several sizes read the same weights.
_STORED: WeakValueDictionary[str, Stored] = WeakValueDictionary()
# The derived arrays that something holds.
_MADE: WeakValueDictionary[_Derived, Array] = WeakValueDictionary()
# What functions returned for arrays, by the function, the handles and further arguments.
_FACTS: dict[tuple[Hashable, ...], Any] = {}


def _made(stored: Stored) -> Array:
    """Returns the array of an entry, computed if it is derived and nothing holds it."""
    if not isinstance(stored, _Derived):
        return stored
    array = _MADE.get(stored)
    if array is None:
        _MADE[stored] = array = _fixed(stored.make(*map(_made, stored.operands)))
    return array


def _fixed(array: Array) -> Array:
    """Returns a contiguous read-only view or copy of `array`."""
    data = np.ascontiguousarray(array).reshape(array.shape)
    data.flags.writeable = False
    return data


def _keyed(array: Array, dtype: DType | None) -> tuple[str, Stored]:
    """Returns the content hash of `array`, and what a store holds of it.

    Elements of bf16 are held as their bits, which take half of the memory.
    """
    name = (dtype or dtype_of(array)).name
    data = _fixed(bf16_bits(array) if dtype is BF16 else array)
    digest = hashlib.sha256(f"{name}{data.shape}".encode())
    digest.update(_content(data))
    return digest.hexdigest(), _Derived(bf16_values, (data,)) if dtype is BF16 else data


def _form_key(form: str, keys: Sequence[str]) -> str:
    """Returns the hash of what `form` makes of the entries with `keys`."""
    return hashlib.sha256(f"{form} {' '.join(keys)}".encode()).hexdigest()


class ConstantStore:
    """A store of read-only arrays by content hash; all stores share one array of equal contents.

    A constant whose array differs by rank has one array per rank under one handle.

    The store also records from which constants of the source model an array was computed
    (`sources`).
    """

    def __init__(self) -> None:
        # The entry of each rank, or the one entry that all ranks have, by hash.
        self._entries: dict[str, tuple[Stored, ...]] = {}
        self._sources: dict[str, tuple[str, ...]] = {}

    def put(self, array: Array, dtype: DType | None = None, sources: Sequence[str] = ()) -> Handle:
        """Stores a contiguous read-only view or copy of `array` and returns its handle.

        `dtype` is the element type, or None for the type of `array.dtype`. `sources` names the
        constants of the source model from which the array was computed.
        """
        return self.put_per_rank([array], dtype, sources)

    def put_per_rank(
        self, arrays: Sequence[Array], dtype: DType | None = None, sources: Sequence[str] = ()
    ) -> Handle:
        """Stores the array of each rank, in order of rank, and returns one handle for all.

        If all arrays are equal, the result is the handle of an ordinary constant, as from `put`.
        Raises `InternalError` where there are no arrays, or their shapes or types differ.
        """
        if len({(array.shape, array.dtype) for array in arrays}) != 1:
            forms = [f"{array.dtype}{list(array.shape)}" for array in arrays]
            raise InternalError(
                "the ranks' arrays of a constant have different types",
                why=", ".join(forms) or "there is no array",
            )
        pairs = [_keyed(array, dtype) for array in arrays]
        keys, parts = [key for key, _ in pairs], tuple(starmap(_STORED.setdefault, pairs))
        if len({*keys}) == 1:
            key, parts = keys[0], parts[:1]
        else:
            key = _form_key("ranks", keys)
        self._entries.setdefault(key, parts)
        self._add_sources(key, sources)
        return Handle(key)

    def derive(self, make: Callable[..., Any], form: str, operands: Sequence[Handle]) -> Handle:
        """Stores the array that `make` returns for the arrays of `operands`; returns its handle.

        Nothing is computed before the array is read, and all stores of the process compute it once
        while it is in use. `form` names what `make` computes; equal forms of equal operands have
        one handle. The sources are those of the operands.
        """
        entries = [self._entries[h.digest] for h in operands]
        key = _form_key(form, [h.digest for h in operands])
        self._entries[key] = tuple(
            _STORED.setdefault(f"{key} {rank}", _Derived(make, rank_operands))
            for rank, rank_operands in enumerate(_by_rank(entries))
        )
        self._add_sources(key, [s for h in operands for s in self.sources(h)])
        return Handle(key)

    def fact(self, function: Callable[..., T], handles: Sequence[Handle], *args: Hashable) -> T:
        """Returns `function` of the arrays of constants, each a tuple as from `arrays`, and `args`.

        All stores of the process call it once.
        """
        key = function, *handles, *args
        if key not in _FACTS:
            _FACTS[key] = function(*map(self.arrays, handles), *args)
        result: T = _FACTS[key]
        return result

    def get(self, handle: Handle) -> Array:
        """Returns an array that all ranks have.

        Raises `InternalError` where it differs by rank, and `KeyError` for an unknown handle.
        """
        array = self.common(handle)
        if array is None:
            raise InternalError(f"constant @{handle.digest[:16]} has another array on each rank")
        return array

    def common(self, handle: Handle) -> Array | None:
        """Returns an array that all ranks have; None where it differs by rank."""
        return self.arrays(handle)[0] if self.ranks(handle) == 1 else None

    def arrays(self, handle: Handle) -> tuple[Array, ...]:
        """Returns the array of each rank, or the one array that all ranks have."""
        return tuple(map(_made, self._entries[handle.digest]))

    def ranks(self, handle: Handle) -> int:
        """Returns the number of ranks whose arrays differ; 1 where all ranks have one array."""
        return len(self._entries[handle.digest])

    def on_rank(self, handle: Handle, rank: int) -> Array:
        """Returns the array of a rank; raises `InternalError` where the constant has none for
        it."""
        count = self.ranks(handle)
        if count > 1 and not 0 <= rank < count:
            raise InternalError(f"a constant for {count} ranks has no array for rank {rank}")
        return _made(self._entries[handle.digest][rank % count])

    def adopt(self, handle: Handle, other: ConstantStore) -> None:
        """Adds the arrays with `handle` in the store `other`, and their sources, without a copy."""
        self._entries.setdefault(handle.digest, other._entries[handle.digest])
        self._add_sources(handle.digest, other.sources(handle))

    def sources(self, handle: Handle) -> tuple[str, ...]:
        """Returns the names of the model's constants from which an array was computed, if known."""
        return self._sources.get(handle.digest, ())

    def _add_sources(self, key: str, sources: Sequence[str]) -> None:
        if sources:
            self._sources[key] = tuple(dict.fromkeys((*self._sources.get(key, ()), *sources)))

    def handles(self) -> Iterator[Handle]:
        """Yields the handles of arrays that all ranks share, then the handles of arrays per rank.

        Handles of a kind have the order in which their arrays were put.
        """
        return map(Handle, sorted(self._entries, key=lambda key: len(self._entries[key]) > 1))


def on_each_rank(
    operands: Sequence[Sequence[Array] | None], compute: Callable[[Sequence[Any]], T | None]
) -> tuple[T, ...] | None:
    """Returns the results of `compute` for the operands of each rank, or one result for all ranks.

    An operand is the array of each rank, one array that all ranks have, or None.  If `compute`
    returns None for one rank, the result is None: all ranks get the same program.
    """
    return all_known(map(compute, _by_rank(operands)))


def _by_rank(operands: Sequence[Sequence[T] | None]) -> Iterator[tuple[Any, ...]]:
    """Yields the operands of each rank, or those that all ranks have; see `on_each_rank`."""
    ranks = max((len(parts) for parts in operands if parts is not None), default=1)
    for rank in range(ranks):
        yield tuple(None if parts is None else parts[rank % len(parts)] for parts in operands)


@entity
class Graph:
    """A model, or a body of If, Loop or Scan; `verify_graph` verifies it."""

    name: str
    inputs: Values
    outputs: Values
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Handle]
    store: ConstantStore
    aliases: tuple[tuple[Value, Value], ...] = ()

    def constant(self, value: Value | None) -> Array | None:
        """Returns the array of a constant value of this graph, else None.

        None also for a constant whose array differs by rank: all ranks run one program, which
        follows from nothing that differs by rank.
        """
        handle = None if value is None else self.constants.get(value)
        return None if handle is None else self.store.common(handle)

    def producers(self) -> dict[Value, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    def values_read_outside(self) -> set[Value]:
        """Returns the values that are read outside of nodes: outputs, aliases, captures of
        bodies."""
        aliases = (v for pair in self.aliases for v in pair)
        return {*self.outputs, *aliases, *(v for node in self.nodes for v in captures(node))}

    def users(self) -> dict[Value, list[Node]]:
        """Returns the nodes that read each value, also through captures; graph outputs are not
        nodes."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(uses(node)):
                users.setdefault(value, []).append(node)
        return users


def bodies(node: Node) -> tuple[Graph, ...]:
    """Returns the graphs in a node's attributes, in field order."""
    return tuple(getattr(node.attrs, name) for name in body_fields(node.attrs))


_BODY_FIELDS: dict[type, tuple[str, ...]] = {}  # cached, because passes need it per node


def body_fields(attrs: object) -> tuple[str, ...]:
    """Returns the names of the attribute fields whose declared type is a graph."""
    kind = type(attrs)
    if kind not in _BODY_FIELDS:
        fields = getattr(kind, "__dataclass_fields__", {}).items()
        _BODY_FIELDS[kind] = tuple(n for n, field in fields if field.type in (Graph, "Graph"))
    return _BODY_FIELDS[kind]


def uses(node: Node) -> Values:
    """Returns the values that the node or its bodies read, with repetitions."""
    return (*(v for v in node.inputs if v), *captures(node))


def captures(node: Node) -> Values:
    """Returns the values of enclosing graphs that the node's bodies read, each once, in order."""
    free: dict[Value, None] = {}
    for body in bodies(node):
        bound = set(body.inputs) | set(body.constants)
        for inner in body.nodes:
            free |= dict.fromkeys(value for value in uses(inner) if value not in bound)
            bound.update(inner.outputs)
        free |= dict.fromkeys(value for value in body.outputs if value not in bound)
    return tuple(free)


def walk_nodes(graph: Graph) -> Iterator[Node]:
    """Yields every node of the graph and, after each node, the nodes of its bodies."""
    for node in graph.nodes:
        yield node
        for body in bodies(node):
            yield from walk_nodes(body)


def walk_graphs(graph: Graph) -> Iterator[Graph]:
    """Yields the graph, its bodies, and their bodies."""
    yield graph
    for node in walk_nodes(graph):
        yield from bodies(node)


def constant_bytes(graph: Graph) -> int:
    """Returns the bytes of all constants of a graph and its bodies."""
    constants = (v for part in walk_graphs(graph) for v in part.constants)
    sizes = ((v.type.count or 0, v.type.dtype) for v in constants)
    return sum(packed_size(*size) for size in sizes)


def walk_values(graph: Graph) -> Iterator[Value]:
    """Yields the inputs, constants and results of the graph and of all bodies in it."""
    for part in walk_graphs(graph):
        yield from (*part.inputs, *part.constants, *(v for n in part.nodes for v in n.outputs))


class GraphBuilder:
    """Builds a graph; every `add` runs the op's inference, so an ill-typed node cannot exist.

    `parent` is the builder of the enclosing graph; names are unique across both graphs.  A node
    that is added without a location gets `loc`.
    """

    def __init__(
        self, name: str, store: ConstantStore | None = None, parent: GraphBuilder | None = None
    ) -> None:
        self.name = name
        self.loc = ""
        self.store: ConstantStore = store or (parent.store if parent else ConstantStore())
        self._names: dict[str, int] = parent._names if parent else {}
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        # A lookup searches this graph first and then the enclosing graphs, from inside out.
        self._producers: ChainMap[Value, Node] = (
            parent._producers.new_child() if parent else ChainMap()
        )
        self._constants: ChainMap[Value, Handle] = (
            parent._constants.new_child() if parent else ChainMap()
        )
        self._by_handle: dict[Handle, Value] = {}

    def fresh(self, hint: str) -> str:
        """Returns an unused name; `hint` itself if it is free."""
        count = self._names.get(hint, -1) + 1
        self._names[hint] = count
        return hint if count == 0 else self.fresh(f"{hint}.{count}")

    def input(self, name: str, type: TensorType) -> Value:
        value = Value(self.fresh(name), type)
        self._inputs.append(value)
        return value

    def constant(
        self,
        array: Array,
        name: str = "const",
        dtype: DType | None = None,
        sources: Sequence[str] = (),
    ) -> Value:
        """Returns a constant with the contents of `array`; equal contents give the same value.

        `sources` names the constants of the source model from which the array was computed.
        """
        return self.constant_per_rank([np.asarray(array)], name, dtype, sources)

    def constant_per_rank(
        self,
        arrays: Sequence[Array],
        name: str = "const",
        dtype: DType | None = None,
        sources: Sequence[str] = (),
    ) -> Value:
        """Returns a constant value with one array per rank; see `ConstantStore.put_per_rank`."""
        handle = self.store.put_per_rank(arrays, dtype, sources)
        type = TensorType(dtype or dtype_of(arrays[0]), tuple(map(const, arrays[0].shape)))
        return self.constant_handle(handle, type, name)

    def constant_handle(self, handle: Handle, type: TensorType, name: str) -> Value:
        value = self._by_handle.get(handle)
        if value is None:
            value = Value(self.fresh(name), type)
            self._by_handle[handle] = value
            self._constants[value] = handle
        return value

    def add(
        self,
        op: OpSpec,
        inputs: Sequence[Value | None],
        attrs: Any = None,
        *,
        loc: str | None = None,
        names: Sequence[str] = (),
    ) -> Values:
        """Appends a node and returns its outputs.

        Raises `UserError` with `loc` where the op does not take these operands.
        """
        attrs = NoAttrs() if attrs is None else attrs
        loc = self.loc if loc is None else loc
        result = result_types(op, types_of(inputs), attrs, loc)
        hints = chain(names, repeat(op.name))
        outputs = tuple(Value(self.fresh(h), t) for h, t in zip(hints, result, strict=False))
        self.append(Node(op, attrs, tuple(inputs), outputs, loc))
        return outputs

    def add_first(
        self,
        op: OpSpec,
        inputs: Sequence[Value | None],
        forms: Sequence[Any],
        *,
        loc: str,
        names: Sequence[str],
    ) -> Values:
        """Appends a node with the first attributes among `forms` that the op takes.

        Returns the node's outputs.  Raises `UserError` if the op takes none of them.
        """
        for attrs in forms[:-1]:
            with suppress(UserError):
                return self.add(op, inputs, attrs, loc=loc, names=names)
        return self.add(op, inputs, forms[-1], loc=loc, names=names)

    def append(self, node: Node) -> None:
        """Appends a node whose outputs exist already, such as a node of another graph."""
        for value in node.outputs:
            self._names.setdefault(value.name, 0)
            self._producers[value] = node
        self._nodes.append(node)

    def producer(self, value: Value) -> Node | None:
        """Returns the node of this or an enclosing graph that computes `value`.

        Returns None for inputs and constants.
        """
        return self._producers.get(value)

    def array(self, value: Value) -> Array | None:
        """Returns the array of a constant of this or an enclosing graph, else None; None also where
        the array differs by rank."""
        handle = self.common(value)
        return None if handle is None else self.store.get(handle)

    def handle(self, value: Value | None) -> Handle | None:
        """Returns the handle of a constant of this or an enclosing graph; None for other values."""
        return None if value is None else self._constants.get(value)

    def common(self, value: Value | None) -> Handle | None:
        """Returns the handle of a constant whose array all ranks have; None for other values."""
        handle = self.handle(value)
        return None if handle is None or self.store.ranks(handle) > 1 else handle

    def arrays(self, value: Value | None) -> tuple[Array, ...] | None:
        """Returns the array of each rank, or the one that all ranks have, of a constant of this or
        an enclosing graph; None for other values."""
        handle = self.handle(value)
        return None if handle is None else self.store.arrays(handle)

    def sources(self, value: Value) -> tuple[str, ...]:
        """Returns the names of the source model's constants from which a constant was computed.

        The constant may belong to an enclosing graph.  The result is empty for other values.
        """
        handle = self.handle(value)
        return () if handle is None else self.store.sources(handle)

    def finish(
        self, outputs: Iterable[Value], aliases: tuple[tuple[Value, Value], ...] = ()
    ) -> Graph:
        """Returns the graph, without constants that nothing reads."""
        outs = tuple(outputs)
        used_values = {*outs, *(value for node in self._nodes for value in uses(node))}
        constants = {v: h for v, h in self._constants.maps[0].items() if v in used_values}
        return Graph(
            self.name, tuple(self._inputs), outs, tuple(self._nodes), constants, self.store, aliases
        )


def bind_attrs(attrs: Any, sizes: Substitution) -> Any:
    """Returns `attrs` with size symbols replaced in its fields, also within tuples.

    The symbols are replaced in indices, tensor types and expressions.
    """
    return _map_fields(attrs, lambda part: _bind(part, sizes))


def map_sizes(attrs: Any, change: Callable[[Index], Index]) -> Any:
    """Returns `attrs` with `change` applied to every `Index` in its fields, also within tuples.

    Returns `attrs` itself if nothing changes.
    """
    return _map_fields(attrs, lambda part: change(part) if isinstance(part, Index) else part)


def _map_fields(attrs: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `attrs` with `change` applied to every field, or to each item of a tuple.

    Tuples may be nested. Returns `attrs` itself if nothing changes.
    """
    pairs = ((name, getattr(attrs, name)) for name in field_names(attrs))
    changed = {n: new for n, old in pairs if (new := _mapped(old, change)) is not old}
    return replace(attrs, **changed) if changed else attrs


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(value, tuple):
        return change(value)
    parts = tuple(_mapped(part, change) for part in value)
    return value if all(map(operator.is_, parts, value)) else parts


def _bind(value: Any, sizes: Substitution) -> Any:
    match value:
        case Index():
            return substitute(value, sizes)
        case TensorType():
            return bind_attrs(value, sizes)
        case Expr():
            return substitute_sizes(value, sizes)
        case _:
            return value


def carrier(array: Any, dtype: DType) -> Array:
    """Returns `array` rounded to `dtype`, in the NumPy type that holds values of `dtype`.

    Only bf16 and narrow types are rounded. Raises InternalError if any other array does not have
    this NumPy type already.
    """
    data = np.asarray(array)
    if dtype.is_narrow:
        return rounded(data, dtype)
    if dtype is BF16:
        bits = np.array(data, np.float32).view(np.uint32)
        up = bits >> 16
        up &= 1
        up += bits
        up += 0x7FFF
        if np.isnan(data).any():
            # Set a high bit of the payload. Otherwise a NaN that has payload bits in the lower half
            # only would become an infinity.
            up = np.asarray(np.where(np.isnan(data), bits | 0x400000, up))
        up &= np.uint32(0xFFFF0000)
        return np.asarray(up).view(np.float32)
    if data.dtype != dtype.carrier:
        raise InternalError(f"array of {data.dtype} where {dtype.name} is due")
    return data


def rounded_number(value: float, dtype: DType) -> float:
    """Returns `value` rounded to a float type; infinite where it is too large for the type."""
    with np.errstate(all="ignore"):
        return float(carrier(np.asarray(value, dtype.carrier), dtype))
