"""Ends an import: gives the outputs the model's own names."""

from collections.abc import Mapping

import onnx
from tcc.errors import UserError
from tcc.frontends.onnx.inputs import check_name
from tcc.frontends.scope import Operand, Scope
from tcc.ir.graph import Graph, Value, bodies
from tcc.ir.graph.rewrite import substituted
from tcc.ir.lists import ListType
from tcc.ir.types import TensorType
from tcc.ops import OPS


def finish_graph(scope: Scope, proto: onnx.GraphProto) -> Graph:
    """Returns the graph with its outputs renamed to the model's names.

    An output that is an input, a constant or an earlier output becomes a copy.
    """
    named = {value for value in (o.graph_value for o in _inputs(scope, proto)) if value is not None}
    outputs: list[Value] = []
    for declared in proto.output:
        check_name(declared.name)
        operand = _as_declared(scope, _output(scope, declared.name), declared)
        value = operand.value
        if value in named or operand.array is not None:
            value = _copied(scope, value, declared.name)
        named.add(value)
        outputs.append(value)
    graph = scope.builder.finish(outputs)
    names = [declared.name for declared in proto.output]
    if len(set(names)) != len(names) or not names:
        raise UserError("the model's outputs are absent or not distinct", where=proto.name)
    return rename(graph, dict(zip(outputs, names, strict=True)))


def _copied(scope: Scope, value: Value, name: str) -> Value:
    listed = isinstance(value.type.dtype, ListType)
    row = OPS["list_expect" if listed else "identity"]
    attrs = row.attrs(value.type.dtype) if listed else row.attrs()
    (copy,) = scope.builder.add(row, [value], attrs, loc=f"output {name}", names=[name])
    return copy


def _as_declared(scope: Scope, operand: Operand, declared: onnx.ValueInfoProto) -> Operand:
    """Unwraps an optional of a sequence where the model declares its output as a sequence."""
    kind, where = operand.dtype, f"output {declared.name[:200]}"
    declared_kind = declared.type.WhichOneof("value")
    inside = isinstance(kind, ListType) and kind.optional and isinstance(kind.item, ListType)
    if declared_kind != "sequence_type" or not inside:
        return operand
    assert isinstance(kind, ListType)
    attrs = OPS["list_at"].attrs(TensorType(kind.item, ()))
    return scope.emit("list_at", [operand], attrs, loc=where, names=(declared.name,))[0]


def _inputs(scope: Scope, proto: onnx.GraphProto) -> list[Operand]:
    operands = (scope.find(value.name) for value in proto.input)
    return [operand for operand in operands if operand is not None]


def _output(scope: Scope, name: str) -> Operand:
    try:
        operand = scope.find(name)
    except KeyError:
        operand = None
    if operand is None:
        raise UserError(f"nothing defines the output '{name[:200]}'", where="the model's outputs")
    return operand


def rename(graph: Graph, names: Mapping[Value, str]) -> Graph:
    """Returns the graph with new names for some values; other values with these names are
    renamed."""
    new_names = set(names.values())
    changed = {v: Value(name, v.type) for v, name in names.items() if v.name != name}
    everything = _values(graph)
    taken_names = {value.name for value in everything} | new_names
    for value in everything:
        if value.name in new_names and value not in names and value not in graph.inputs:
            changed[value] = Value(_free_name(value.name, taken_names), value.type)
    return substituted(graph, changed) if changed else graph


def _values(graph: Graph) -> list[Value]:
    values = [*graph.inputs, *graph.constants]
    for node in graph.nodes:
        values += node.outputs
        for body in bodies(node):
            values += _values(body)
    return values


def _free_name(name: str, taken_names: set[str]) -> str:
    number = 1
    while f"{name}.{number}" in taken_names:
        number += 1
    taken_names.add(f"{name}.{number}")
    return f"{name}.{number}"
