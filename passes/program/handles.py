"""Replaces strings and lists by handles, 64-bit words that name them.

    %y = where(%c, %a, %b) : string[n]        %y = where(%c, %a, %b) : u64[n]
    %k = const : string[2]                    %k = string_decode(%bytes, %ends) : u64[2]

A run keeps strings and lists in a heap, and programs work with their handles.  Equal strings have
equal handles, and 0 is the empty string.  So plain kernels can move, select, pad or compare
strings.  Requires a graph that is ready to be partitioned.  Establishes that no value is a string
or a list.  The attributes of ops that read or write handles still name strings and lists.  Type
inference has no rules for handles, so this is the last pass over the graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tcc.errors import UserError
from tcc.frozen import field_names
from tcc.ir.graph import Graph, GraphBuilder, Handle, Node, Value, bodies, walk_values
from tcc.ir.graph.rewrite import map_bodies
from tcc.ir.lists import ListType
from tcc.ir.program import Port, Program
from tcc.ops import OPS
from tcc.ops.data.strings import StringDecodeAttrs, pack_strings
from tcc.passes.fuse.compose import stored_type
from tcc.zipped import zip_equal


def check_without_handles(graph: Graph, kind: str) -> None:
    """Raises UserError if the graph has strings or lists, which targets of this `kind` lack."""
    value = next(_handles(graph), None)
    if value is not None:
        what = "a sequence or an optional" if isinstance(value.dtype, ListType) else "strings"
        raise UserError(
            f"{kind} has no strings, sequences and optionals",
            where=f"%{value.name[:200]}",
            why=f"this value is {what} when the model runs ({value.type!r})",
            hint="compile for the CPU, or cut this part off the model",
        )


def _handles(graph: Graph) -> Iterator[Value]:
    """Yields the values of the graph and its bodies that are tensors of strings, or lists."""
    return (value for value in walk_values(graph) if value.dtype.is_handle)


def erase_handles(graph: Graph) -> Graph:
    """Returns `graph` with handles in place of strings and lists; `graph` itself if it has
    neither.
    """
    if next(_handles(graph), None) is None:
        return graph
    builder = GraphBuilder(graph.name, graph.store)
    for value in walk_values(graph):
        builder.fresh(value.name)
    eraser = _Eraser(builder)
    erased = eraser.graph(graph)
    decoding = builder.finish(eraser.decoded.values())
    return replace(
        erased,
        nodes=(*map(eraser.node, decoding.nodes), *erased.nodes),
        constants={**decoding.constants, **erased.constants},
    )


class _Eraser:
    """Rewrites a graph, and collects the nodes that turn constant strings into handles.

    `decoded` maps each constant of strings to the value of its handles.  The nodes that compute
    these values run once, before all other nodes of the graph.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._new: dict[Value, Value] = {}
        self.decoded: dict[Handle, Value] = {}

    def value(self, value: Value) -> Value:
        if not value.dtype.is_handle:
            return value
        return self._new.setdefault(value, Value(value.name, stored_type(value.type)))

    def graph(self, graph: Graph) -> Graph:
        for value, handle in graph.constants.items():
            if value.dtype.is_handle:
                self._new[value] = self.value(self._decoded(graph, value, handle))
        constants = {v: h for v, h in graph.constants.items() if not v.dtype.is_handle}
        return replace(
            graph,
            inputs=tuple(map(self.value, graph.inputs)),
            nodes=tuple(map(self.node, graph.nodes)),
            outputs=tuple(map(self.value, graph.outputs)),
            constants=constants,
            aliases=tuple((self.value(a), self.value(b)) for a, b in graph.aliases),
        )

    def node(self, node: Node) -> Node:
        return replace(
            node,
            attrs=_word_types(map_bodies(node.attrs, self.graph)) if bodies(node) else node.attrs,
            inputs=tuple(v and self.value(v) for v in node.inputs),
            outputs=tuple(map(self.value, node.outputs)),
        )

    def _decoded(self, graph: Graph, value: Value, handle: Handle) -> Value:
        if handle not in self.decoded:
            packed = pack_strings(graph.store.get(handle))
            operands = [self._builder.constant(a, f"{value.name}.text") for a in packed]
            attrs = StringDecodeAttrs(value.shape)
            (self.decoded[handle],) = self._builder.add(
                OPS["string_decode"], operands, attrs, names=(value.name,)
            )
        return self.decoded[handle]


def _word_types(attrs: Any) -> Any:
    """Returns the attributes of a control flow node, with the type of handles (64-bit words) in
    place of each type of strings and lists in the field `types`.
    """
    if "types" not in field_names(attrs):
        return attrs
    return replace(attrs, types=tuple(map(stored_type, attrs.types)))


def with_ports(program: Program, graph: Graph) -> Program:
    """Returns `program` with ports (inputs and outputs) that callers see as strings and lists where
    `graph` has strings and lists."""
    return replace(
        program,
        inputs=_described(program.inputs, graph.inputs),
        outputs=_described(program.outputs, graph.outputs),
    )


def _described(ports: Sequence[Port], values: Sequence[Value]) -> tuple[Port, ...]:
    described = []
    for port, value in zip_equal(ports, values):
        dtype = value.dtype
        text = dtype.name if isinstance(dtype, ListType) else port.text
        handle_port = replace(port, name=value.name, dtype=dtype, text=text)
        described.append(handle_port if dtype.is_handle else port)
    return tuple(described)
