"""Nodes of ONNX: their domains and bodies, and ONNX's own descriptions of operators, by opset."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import onnx
from onnx import NodeProto


def domain_of(item: Any) -> str:
    """Returns the domain of a node, a function or an opset; "" for each name of ONNX's own."""
    return "" if item.domain == "ai.onnx" else str(item.domain)


def bodies(node: NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs among the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def walk(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yields nodes and the nodes of their bodies."""
    pending: list[Iterator[NodeProto]] = [iter(nodes)]
    while pending:
        for node in pending.pop():
            yield node
            pending.extend(iter(body.node) for body in bodies(node))


def schema_of(node: NodeProto, version: int) -> onnx.defs.OpSchema | None:
    """Returns ONNX's description of the node's operator at an opset version, None if there is
    none."""
    return _schema(node.op_type, version, domain_of(node))


@cache
def _schema(op: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    if not onnx.defs.has(op, domain):
        return None
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
