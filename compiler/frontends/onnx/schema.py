"""ONNX's own descriptions of its operators, by opset."""

from functools import cache

import onnx
from onnx import NodeProto


def schema_of(node: NodeProto, version: int) -> onnx.defs.OpSchema | None:
    """Returns ONNX's description of the node's operator at an opset version, None if there is
    none."""
    return _schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)


@cache
def _schema(op: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    if not onnx.defs.has(op, domain):
        return None
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
