"""Exported program to graph: the order of the import.

The program is made functional and decomposed first: what the table of converters has stays one
call, everything else becomes calls of core ATen operators.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tcc.errors import InternalError
from tcc.frontends.onnx_scope import Operand, Scope, Session
from tcc.frontends.onnx_tensors import TensorReader
from tcc.frontends.torch_checks import check_results, require_condition
from tcc.frontends.torch_complex import ComplexContext, complex_converter_of, has_complex
from tcc.frontends.torch_context import CallContext, call_location, call_of, is_effect
from tcc.frontends.torch_converters import converter_of
from tcc.frontends.torch_outputs import finish_program
from tcc.frontends.torch_program import decomposed, define_inputs
from tcc.frontends.torch_reals import real_size
from tcc.frontends.torch_support import REGIONS, check_calls, is_arithmetic, is_ignored
from tcc.frontends.torch_symbols import Symbols
from tcc.ir.graph import Graph, GraphBuilder


def import_program(program: Any, shapes: Mapping[str, Sequence[int | str]] | None = None) -> Graph:
    """A `torch.export.ExportedProgram` as a graph.  `shapes` fixes sizes that the program leaves
    open, by input name.

    Weights are views of the program's tensors.  Raises `UserError` where the program needs what
    tcc does not have; unsupported operators are named all together.
    """
    ready = decomposed(program)
    check_calls(ready)
    session = Session(TensorReader(Path()), {}, _no_nodes)
    scope = Scope(session, GraphBuilder("model"), {})
    symbols = Symbols(session, ready.range_constraints)
    values = define_inputs(scope, symbols, ready, shapes or {})
    inputs = [value for value in values.values() if isinstance(value, Operand)]
    results = _run(scope, symbols, ready.graph, values)
    kinds = (spec.kind.name for spec in ready.graph_signature.output_specs)
    shown = [result for result, kind in zip(results, kinds, strict=True) if kind != "TOKEN"]
    return finish_program(scope, ready, shown, inputs)


def _no_nodes(scope: Scope, nodes: Iterable[Any]) -> None:
    raise InternalError("an exported program has no ONNX nodes")


def _run(scope: Scope, symbols: Symbols, graph: Any, values: dict[Any, Any]) -> list[Any]:
    """Imports the calls of a graph whose placeholders have values; returns what it returns."""
    for node in graph.nodes:
        if node.op == "call_function":
            values[node] = _call(scope, symbols, node, values)
        elif node.op == "output":
            returned = node.args[0]
            listed = returned if isinstance(returned, list | tuple) else [returned]
            return [values[n] if isinstance(n, torch.fx.Node) else n for n in listed]
    raise InternalError("the exported graph returns nothing")


def _call(scope: Scope, symbols: Symbols, node: Any, values: Mapping[Any, Any]) -> Any:
    """What a call gives: an operand, a size, a tuple of these, or None."""
    target, known = node.target, node.meta.get("val")
    if target is operator.getitem:
        return values[node.args[0]][node.args[1]]
    if target is torch.ops.aten._assert_scalar.default:
        return require_condition(scope, symbols, node)
    if is_ignored(target):
        return None
    if is_effect(node):
        return (None, *_converted(node, scope, symbols, values))
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _region(scope, symbols, node, values)
    if isinstance(known, torch.SymFloat):
        return real_size(scope, symbols, known.node.expr, call_location(node))
    if isinstance(known, torch.SymBool):
        return known
    if is_arithmetic(target):
        return symbols.index(known, call_location(node))
    result = _converted(node, scope, symbols, values)
    check_results(symbols, node, result)
    return result


def _converted(node: Any, scope: Scope, symbols: Symbols, values: Mapping[Any, Any]) -> Any:
    target, _ = call_of(node)
    if has_complex(node):
        of_complex = complex_converter_of(target)
        if of_complex is not None:
            return of_complex(ComplexContext(node, scope, values, symbols))
    else:
        converter = converter_of(target)
        if converter is not None:
            return converter(CallContext(node, scope, values, symbols))
    raise InternalError(f"{target} passed the check of support", where=call_location(node))


def _region(scope: Scope, symbols: Symbols, node: Any, values: Mapping[Any, Any]) -> Any:
    """The calls of a region that sets a mode which inference does not see."""
    number = REGIONS[node.target.name()]
    body = getattr(node.graph.owning_module, node.args[number].target)
    given = node.args[number + 1 :]
    inner = {
        placeholder: values[value] if isinstance(value, torch.fx.Node) else value
        for placeholder, value in zip(body.graph.find_nodes(op="placeholder"), given, strict=True)
    }
    return _run(scope, symbols, body.graph, inner)
