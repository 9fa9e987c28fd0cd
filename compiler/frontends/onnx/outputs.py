"""The end of an import: outputs under the model's own names."""

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
    """The graph, its outputs renamed to the model's names.

    An output that is an input, a constant or an earlier output gets a copy of its own.
    """
    taken = {value for value in (o.made for o in _inputs(scope, proto)) if value is not None}
    outputs: list[Value] = []
    for declared in proto.output:
        check_name(declared.name)
        operand = _as_declared(scope, _output(scope, declared.name), declared)
        value = operand.value
        if value in taken or operand.array is not None:
            value = _copied(scope, value, declared.name)
        taken.add(value)
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
    """The sequence in an optional, where the model calls its output a sequence."""
    kind, where = operand.dtype, f"output {declared.name[:200]}"
    wanted = declared.type.WhichOneof("value")
    inside = isinstance(kind, ListType) and kind.optional and isinstance(kind.item, ListType)
    if wanted != "sequence_type" or not inside:
        return operand
    assert isinstance(kind, ListType)
    attrs = OPS["list_at"].attrs(TensorType(kind.item, ()))
    return scope.emit("list_at", [operand], attrs, loc=where, names=(declared.name,))[0]


def _inputs(scope: Scope, proto: onnx.GraphProto) -> list[Operand]:
    found = (scope.find(value.name) for value in proto.input)
    return [operand for operand in found if operand is not None]


def _output(scope: Scope, name: str) -> Operand:
    try:
        found = scope.find(name)
    except KeyError:
        found = None
    if found is None:
        raise UserError(f"nothing defines the output '{name[:200]}'", where="the model's outputs")
    return found


def rename(graph: Graph, names: Mapping[Value, str]) -> Graph:
    """The graph with some values under other names; values that had those names step aside."""
    wanted = set(names.values())
    changed = {v: Value(name, v.type) for v, name in names.items() if v.name != name}
    everything = _values(graph)
    used = {value.name for value in everything} | wanted
    for value in everything:
        if value.name in wanted and value not in names and value not in graph.inputs:
            changed[value] = Value(_free_name(value.name, used), value.type)
    return substituted(graph, changed) if changed else graph


def _values(graph: Graph) -> list[Value]:
    found = [*graph.inputs, *graph.constants]
    for node in graph.nodes:
        found += node.outputs
        for body in bodies(node):
            found += _values(body)
    return found


def _free_name(name: str, used: set[str]) -> str:
    number = 1
    while f"{name}.{number}" in used:
        number += 1
    used.add(f"{name}.{number}")
    return f"{name}.{number}"
