"""Imports an ONNX model as a graph; `_convert` chooses how to import each operator.

The first of these that applies is chosen: a call of one of the model's functions, a converter of
`CONVERTERS`, a row of the op table bound to the operator, the body that ONNX defines for the
operator.
"""

import time
from collections import deque

from tcc.budgets import BUDGETS, Budgets
from tcc.frontends.inputs import Shapes
from tcc.frontends.onnx.budget import check_expansion
from tcc.frontends.onnx.context import NodeContext
from tcc.frontends.onnx.convert.bodies import declared_ranks
from tcc.frontends.onnx.convert.legacy import legacy_converter
from tcc.frontends.onnx.converters import CONVERTERS
from tcc.frontends.onnx.functions import (
    call,
    function_key,
    index_functions,
    schema_body,
    typed_body,
)
from tcc.frontends.onnx.inputs import define_inputs
from tcc.frontends.onnx.outputs import finish_graph
from tcc.frontends.onnx.reader import SourceModel
from tcc.frontends.onnx.rows import bound_row, import_row
from tcc.frontends.onnx.scope import OnnxScope, OnnxSession
from tcc.frontends.onnx.support import check_support
from tcc.frontends.onnx.tensors import TensorReader
from tcc.frontends.operand import Operands, Refusal
from tcc.ir.graph import Graph, GraphBuilder


def import_model(
    model: SourceModel,
    shapes: Shapes | None = None,
    budgets: Budgets = BUDGETS,
) -> Graph:
    """Returns the model as a graph.  `shapes` gives inputs sizes or symbol names, by input name.

    Raises `UserError` where the model is malformed, over its budgets or has unsupported operators;
    operators are checked first, and one error names all unsupported ones.
    """
    functions = index_functions(model.proto.functions)
    check_support(model, functions, CONVERTERS)
    check_expansion(model.proto.graph.node, functions, budgets)
    session = OnnxSession(
        tensors=TensorReader(model.path),
        functions=functions,
        run_nodes=_run_nodes,
        budgets=budgets,
        producer=model.proto.producer_name,
    )
    builder = GraphBuilder(model.proto.graph.name or "model")
    scope = OnnxScope(session, builder, opsets=model.opsets)
    proto = model.proto.graph
    define_inputs(scope, proto, shapes or {})
    scope.define_initializers(proto, model.weights)
    scope.pending, scope.ends = deque(proto.node), declared_ranks(proto)
    _run_nodes(scope)
    return finish_graph(scope, proto)


def _run_nodes(scope: OnnxScope) -> None:
    session = scope.session
    session.depth += 1
    if session.depth > session.budgets.nesting:
        raise session.budgets.over("nesting", where=scope.path[-200:])
    while scope.pending:
        node = scope.pending.popleft()
        session.nodes += 1
        if session.nodes > session.budgets.nodes:
            raise session.budgets.over("nodes", where=scope.path[-200:])
        if time.monotonic() > session.until:
            raise session.budgets.over("import_seconds", where=scope.path[-200:])
        ctx = NodeContext(node, scope)
        with ctx.writing():
            results = _convert(ctx)
            for number, name in enumerate(node.output):
                if not name:
                    continue
                if number >= len(results) or results[number] is None:
                    raise Refusal(f"output {number} is not supported")
                scope.define(name, results[number])
    session.depth -= 1


def _convert(ctx: NodeContext) -> Operands:
    function = ctx.session.functions.get(function_key(ctx.node))
    if function is not None:
        return call(ctx, function)
    converter = legacy_converter(ctx) or CONVERTERS.get((ctx.domain, ctx.node.op_type))
    if converter is not None:
        return ctx.run(converter)
    row = bound_row(ctx.domain, ctx.node.op_type, ctx.opset)
    if row is not None:
        return import_row(ctx, row)
    body = schema_body(ctx.node, ctx.opset) or typed_body(ctx)
    if body is not None:
        return call(ctx, body)
    raise Refusal("it is not supported with these attributes or types")
