"""Ends an import: gives the outputs the model's own names."""

import onnx
from tcc.errors import UserError
from tcc.frontends.onnx.inputs import check_name
from tcc.frontends.onnx.scope import OnnxScope
from tcc.frontends.operand import Operand
from tcc.frontends.outputs import output_values, rename
from tcc.frontends.place import placed
from tcc.ir.graph import Graph
from tcc.ir.lists import ListType
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.zipped import zip_equal


def finish_graph(scope: OnnxScope, proto: onnx.GraphProto) -> Graph:
    """Returns the graph with its outputs renamed to the model's names."""
    results = (_result(scope, declared) for declared in proto.output)
    outputs = output_values(scope, _inputs(scope, proto), results)
    graph = scope.builder.finish(outputs)
    names = [declared.name for declared in proto.output]
    if len(set(names)) != len(names) or not names:
        raise UserError("the model's outputs are absent or not distinct", where=proto.name)
    return rename(graph, dict(zip_equal(outputs, names)))


def _result(scope: OnnxScope, declared: onnx.ValueInfoProto) -> tuple[str, Operand]:
    """Returns the name and the operand of a declared output.

    An optional of a sequence is unwrapped if the model declares its output as a sequence.
    """
    check_name(declared.name)
    operand = _output(scope, declared.name)
    kind = operand.dtype
    declared_kind = declared.type.WhichOneof("value")
    inside = isinstance(kind, ListType) and kind.optional and isinstance(kind.item, ListType)
    if declared_kind != "sequence_type" or not inside:
        return declared.name, operand
    assert isinstance(kind, ListType)
    attrs = OPS["list_at"].attrs(TensorType(kind.item, ()))
    with placed(f"output {declared.name[:200]}"):
        (entry,) = scope.emit("list_at", [operand], attrs, names=(declared.name,))
        return declared.name, entry


def _inputs(scope: OnnxScope, proto: onnx.GraphProto) -> list[Operand]:
    operands = (scope.find(value.name) for value in proto.input)
    return [operand for operand in operands if operand is not None]


def _output(scope: OnnxScope, name: str) -> Operand:
    operand = scope.result(name)
    if operand is None:
        raise UserError(f"nothing defines the output '{name[:200]}'", where="the model's outputs")
    return operand
