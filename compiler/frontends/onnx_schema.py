"""ONNX's own descriptions of its operators, by opset."""

from __future__ import annotations

import onnx
from onnx import NodeProto


def schema_of(node: NodeProto, version: int) -> onnx.defs.OpSchema | None:
    """ONNX's own description of the node's operator at an opset version, if it has one."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not onnx.defs.has(node.op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
