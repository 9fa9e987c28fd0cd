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

import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, TypeAlias

import numpy as np
from tcc.errors import InternalError, UserError
from tcc.frozen import entity, field_names
from tcc.ir.expr import Expr, substitute_sizes
from tcc.ir.graph.store import ConstantStore as ConstantStore
from tcc.ir.graph.store import Handle as Handle
from tcc.ir.graph.store import on_each_rank as on_each_rank
from tcc.ir.index import Index, Indices, Substitution, Var, const, free_vars, substitute
from tcc.ir.narrow import packed_size, rounded
from tcc.ir.op import Array, NoAttrs, OpSpec, result_types
from tcc.ir.types import BF16, DType, TensorType, dtype_of


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

    @property
    def result(self) -> Value:
        """The first result; most ops have no other."""
        return self.outputs[0]


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

    def producers(self) -> dict[Value | None, Node]:
        """Returns the node that computes each value; none computes None, an absent operand."""
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
    return sum(packed_size(v.type.count or 0, v.dtype) for v in constants)


def walk_values(graph: Graph) -> Iterator[Value]:
    """Yields the inputs, constants and results of the graph and of all bodies in it."""
    for part in walk_graphs(graph):
        yield from (*part.inputs, *part.constants, *(v for n in part.nodes for v in n.outputs))


def symbols_in(values: Iterable[Value | None]) -> set[Var]:
    """Returns the size symbols in the shapes of values; an absent operand has none."""
    return set(free_vars(*(dim for v in values if v for dim in v.shape)))


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
        self._producers: ChainMap[Value | None, Node] = (
            parent._producers.new_child() if parent else ChainMap()
        )
        self._constants: ChainMap[Value | None, Handle] = (
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

    def producer(self, value: Value | None) -> Node | None:
        """Returns the node of this or an enclosing graph that computes `value`.

        Returns None for inputs and constants, and for an absent operand.
        """
        return self._producers.get(value)

    def array(self, value: Value | None) -> Array | None:
        """Returns the array of a constant of this or an enclosing graph, else None; None also where
        the array differs by rank."""
        handle = self.common(value)
        return None if handle is None else self.store.get(handle)

    def handle(self, value: Value | None) -> Handle | None:
        """Returns the handle of a constant of this or an enclosing graph; None for other values."""
        return self._constants.get(value)

    def common(self, value: Value | None) -> Handle | None:
        """Returns the handle of a constant whose array all ranks have; None for other values."""
        handle = self.handle(value)
        return None if handle is None or self.store.ranks(handle) > 1 else handle

    def arrays(self, value: Value | None) -> tuple[Array, ...] | None:
        """Returns the array of each rank, or the one that all ranks have, of a constant of this or
        an enclosing graph; None for other values."""
        handle = self.handle(value)
        return None if handle is None else self.store.arrays(handle)

    def sources(self, value: Value | None) -> tuple[str, ...]:
        """Returns the names of the source model's constants from which a constant was computed.

        The constant may belong to an enclosing graph.  The result is empty for other values.
        """
        handle = self.handle(value)
        return () if handle is None else self.store.sources(handle)

    def scaled_sources(self, value: Value | None) -> tuple[str, ...]:
        """Returns the sources of an array that is computed from a constant and other numbers."""
        sources = self.sources(value)
        return (*sources, "") if sources else ()

    def finish(
        self, outputs: Iterable[Value], aliases: tuple[tuple[Value, Value], ...] = ()
    ) -> Graph:
        """Returns the graph, without constants that nothing reads."""
        outs = tuple(outputs)
        used_values = {*outs, *(value for node in self._nodes for value in uses(node))}
        constants = {v: h for v, h in self._constants.maps[0].items() if v in used_values and v}
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
