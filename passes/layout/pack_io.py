"""Packs elements of less than a byte, in inputs, outputs and large constants.

    %x : i4[n,6]   ->   %x : u8[(n*6 + 1)//2] ; %x.elements = reshape(unpack(%x)) : i4[n,6]

Everywhere else an element takes at least one byte.  Ordinary nodes unpack inputs and large
constants, and pack outputs.  They fuse like all nodes, and constants are stored packed in the
artifact.  Requires a graph that is ready to be partitioned.  Establishes that no input and no
output has elements of less than a byte.  The types that callers see are returned with the graph.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcc.errors import UserError
from tcc.ir.graph import Graph, Node, Value, walk_values
from tcc.ir.graph.rewrite import substituted
from tcc.ir.index import Index, ceildiv
from tcc.ir.narrow import encode, pack
from tcc.ir.op import Array
from tcc.ir.types import U8, DType, TensorType, element_count, tensor
from tcc.ops import OPS
from tcc.ops.algebra.movement import ReshapeAttrs
from tcc.ops.algebra.narrow import PackAttrs, UnpackAttrs

_LARGE = 64  # constants with fewer elements are not packed


def packed_io(graph: Graph) -> tuple[Graph, Mapping[str, TensorType]]:
    """Returns (graph, types): `graph` with packed inputs, outputs and constants.

    `types` has, by name, the types that callers see of the packed inputs and outputs.  If there is
    nothing to pack, the graph is unchanged.  Raises UserError for a state with elements of less
    than a byte.
    """
    outside = [v for v in dict.fromkeys((*graph.inputs, *graph.outputs)) if v.dtype.is_packed]
    constants = [
        v
        for v in graph.constants
        if v.dtype.is_packed and v not in outside
        if (v.type.count or 0) >= _LARGE
    ]
    if not outside and not constants:
        return graph, {}
    for output, state in graph.aliases:
        if output.dtype.is_packed:
            raise UserError(
                "a state of elements of less than a byte is not supported",
                where=state.name,
                why=f"its element type is {state.dtype.name}",
            )
    return _Surface(graph).packed(outside, constants)


class _Surface:
    """Packs the inputs, outputs and constants of a graph, by nodes before and after those of the
    graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names = {v.name for v in walk_values(graph)}
        self._before: list[Node] = []
        self._after: list[Node] = []

    def packed(
        self, outside: list[Value], constants: list[Value]
    ) -> tuple[Graph, Mapping[str, TensorType]]:
        """Returns the graph with `outside` and `constants` packed, and the types of `outside` by
        name.

        `outside` are inputs and outputs.
        """
        graph = self._graph
        elements = {v: Value(self._fresh(v.name), v.type) for v in (*outside, *constants)}
        inner = substituted(graph, elements)
        handles = {v: h for v, h in inner.constants.items() if v not in elements.values()}
        packed_operands = (*(v for v in graph.inputs if v in elements), *constants)
        unpacked = {v: self._unpacked(v, elements[v]) for v in packed_operands}
        for value in constants:
            handle, dtype = graph.constants[value], value.dtype
            make = partial(_packed_bytes, dtype=dtype)
            handles[unpacked[value]] = graph.store.derive(make, "packed", [handle])
        for value in (v for v in outside if v in graph.constants):  # a constant may be an output
            handles[elements[value]] = graph.constants[value]
        packed_outputs = {v: self._packed(v, elements[v]) for v in graph.outputs if v in elements}
        result = replace(
            inner,
            inputs=tuple(unpacked.get(v, v) for v in graph.inputs),
            outputs=tuple(packed_outputs.get(v, v) for v in graph.outputs),
            nodes=(*self._before, *inner.nodes, *self._after),
            constants=handles,
        )
        return result, {v.name: v.type for v in outside}

    def _unpacked(self, value: Value, elements: Value) -> Value:
        """Returns a value of packed bytes in place of `value`, and adds nodes that unpack it to
        `elements`."""
        data, flat = self._forms(value)
        unpack = UnpackAttrs(flat.dtype, *flat.shape)
        shaped = ReshapeAttrs(elements.shape)
        self._before += (
            Node(OPS["unpack"], unpack, (data,), (flat,), value.name),
            Node(OPS["reshape"], shaped, (flat,), (elements,), value.name),
        )
        return data

    def _packed(self, value: Value, elements: Value) -> Value:
        """Returns a value of packed bytes in place of the output `value`, and adds nodes that pack
        `elements`."""
        data, flat = self._forms(value)
        pack = PackAttrs(flat.dtype.bits)
        shaped = ReshapeAttrs(flat.shape)
        self._after += (
            Node(OPS["reshape"], shaped, (elements,), (flat,), value.name),
            Node(OPS["pack"], pack, (flat,), (data,), value.name),
        )
        return data

    def _forms(self, value: Value) -> tuple[Value, Value]:
        """Returns new values for the packed bytes [n] and the flat elements [n] of `value`."""
        count, dtype = element_count(value.shape), value.dtype
        data = Value(value.name, tensor(U8, ceildiv(count, 8 // dtype.bits)))
        return data, Value(self._fresh(value.name), tensor(dtype, count))

    def _fresh(self, stem: str) -> str:
        number = 0
        while (name := f"{stem}.elements{number or ''}") in self._names:
            number += 1
        self._names.add(name)
        return name


def _bytes(count: Index, bits: int) -> Index:
    share = 8 // bits
    return (count + share - 1) // share


def _packed_bytes(array: Array, dtype: DType) -> Array:
    return pack(encode(array, dtype), dtype)
