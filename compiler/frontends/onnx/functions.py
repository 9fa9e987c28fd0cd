"""Inlines functions: the model's, and the bodies that ONNX defines for operators.

Recursive calls are refused; the importer limits nesting and the number of nodes.
"""

from collections.abc import Iterable
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto
from tcc.errors import UserError
from tcc.frontends.onnx.context import NodeContext
from tcc.frontends.onnx.reader import check_opsets
from tcc.frontends.onnx.schema import domain_of, schema_of
from tcc.frontends.onnx.scope import OnnxScope
from tcc.frontends.onnx.types import type_proto
from tcc.frontends.operand import Operand, Operands, Refusal
from tcc.frontends.place import placed
from tcc.ir.index import as_int

FunctionKey = tuple[str, str, str]


def function_key(node: NodeProto | FunctionProto) -> FunctionKey:
    """Returns domain, name and overload: the key by which nodes call a function."""
    name = node.op_type if isinstance(node, NodeProto) else node.name
    return domain_of(node), name, node.overload


def index_functions(functions: Iterable[FunctionProto]) -> dict[FunctionKey, FunctionProto]:
    """Returns the model's functions by key; raises `UserError` for two with the same key."""
    table: dict[FunctionKey, FunctionProto] = {}
    for function in functions:
        key = function_key(function)
        if key in table:
            raise UserError(f"the function '{function.name}' is defined twice")
        table[key] = function
    return table


def schema_body(node: NodeProto, version: int) -> FunctionProto | None:
    """Returns the body that ONNX defines for the operator if it does not depend on types, else
    None.

    A body imports its own opset. So the first body also serves earlier opsets in which the operator
    has the same definition.
    """
    schema: Any = schema_of(node, version)  # Any: onnx's type stubs lack `has_function`
    if schema is None or not schema.has_function:
        return None
    versions = schema.function_opset_versions
    since = max((v for v in versions if v <= version), default=min(versions))
    body = FunctionProto()
    body.ParseFromString(schema.get_function_with_opset_version(since))
    return body


def has_typed_body(node: NodeProto, version: int) -> bool:
    """True if ONNX defines a body for the operator that depends on the operands' types."""
    schema: Any = schema_of(node, version)
    return schema is not None and bool(schema.has_context_dependent_function)


def typed_body(ctx: NodeContext) -> FunctionProto | None:
    """Returns the body that ONNX defines for this node and its operands' types, else None."""
    schema: Any = schema_of(ctx.node, ctx.opset)
    if schema is None or not schema.has_context_dependent_function:
        return None
    since = [v for v in schema.context_dependent_function_opset_versions if v <= ctx.opset]
    if not since:
        return None
    types = [_type_proto(operand).SerializeToString() for operand in ctx.inputs]
    raw = schema.get_context_dependent_function_with_opset_version(
        max(since), ctx.node.SerializeToString(), types
    )
    return FunctionProto.FromString(raw) if raw else None


def _type_proto(operand: Operand | None) -> TypeProto:
    if operand is None:
        return TypeProto()
    return type_proto(operand.dtype, tuple(as_int(dim) for dim in operand.shape))


def call(ctx: NodeContext, function: FunctionProto) -> Operands:
    """Inlines the function's nodes, with the node's operands and attributes as its arguments."""
    key = function_key(function)
    calls = ctx.session.calls
    if key in calls:
        raise Refusal(f"the function '{function.name}' calls itself")
    if len(ctx.inputs) > len(function.input) or len(ctx.node.output) > len(function.output):
        raise Refusal(f"the function '{function.name}' has fewer inputs or outputs")
    with placed(function.name):
        opsets = {**ctx.scope.opsets, **check_opsets(function.opset_import)}
    scope = OnnxScope(
        ctx.session, ctx.scope.builder, path=f"{ctx.loc}/", enclosing=ctx.scope, opsets=opsets
    )
    scope.joins, scope.bound = ctx.scope.joins, ctx.scope.bound
    for number, name in enumerate(function.input):
        scope.define(name, ctx.optional(number))
    attributes = {**ctx.defaults, **{p.name: p for p in function.attribute_proto}}
    attributes.update((a.name, a) for a in ctx.node.attribute)
    ctx.session.calls = (*calls, key)
    scope.pending.extend(_bound(node, attributes) for node in function.node)
    scope.ends = dict.fromkeys(function.output)
    ctx.session.run_nodes(scope)
    ctx.session.calls = calls
    return [
        _result(scope, name) if ctx.wants(number) else None
        for number, name in enumerate(function.output)
    ]


def _result(scope: OnnxScope, name: str) -> Operand | None:
    try:
        return scope.find(name)
    except KeyError:
        raise Refusal(f"the function does not define its output '{name[:200]}'") from None


def _bound(node: NodeProto, attributes: dict[str, AttributeProto]) -> NodeProto:
    """Returns a copy of a function's node with attribute values in place of references."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _bind_attributes(copy, attributes)
    return copy


def _bind_attributes(node: NodeProto, attributes: dict[str, AttributeProto]) -> None:
    bound = []
    for attribute in node.attribute:
        source = attribute
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue  # the call lacks the attribute, so the node's default holds
            source = attributes[attribute.ref_attr_name]
        value = AttributeProto()
        value.CopyFrom(source)
        value.name = attribute.name
        for graph in (value.g, *value.graphs) if source is attribute else ():
            for inner in graph.node:
                _bind_attributes(inner, attributes)
        bound.append(value)
    del node.attribute[:]
    node.attribute.extend(bound)
