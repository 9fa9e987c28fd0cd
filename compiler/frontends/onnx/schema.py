"""Nodes of ONNX: their domains and bodies, and ONNX's own descriptions of operators, by opset."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
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


def nodes_of(model: Path) -> list[NodeProto]:
    """Returns the nodes of the ONNX file, also those in bodies and functions."""
    proto = onnx.load(model, load_external_data=False)
    return [node for part in (proto.graph, *proto.functions) for node in walk(part.node)]


def loses_sums(model: Path) -> bool:
    """Returns True if several threads of ONNX Runtime may add to one element at the same time.

    They then lose some of the numbers.
    """
    nodes = (node for node in nodes_of(model) if node.op_type == "ScatterND")
    return any(a.name == "reduction" for node in nodes for a in node.attribute)


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
