"""Exported programs: decomposed for the table of converters; their inputs and constants."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tcc.errors import UserError
from tcc.frontends.onnx_inputs import symbol_name
from tcc.frontends.onnx_scope import Scope
from tcc.frontends.torch_complex import complex_converter_of
from tcc.frontends.torch_converters import converter_of
from tcc.frontends.torch_symbols import Symbols
from tcc.frontends.torch_tensors import contents, element_type
from tcc.ir.index import as_int, const
from tcc.ir.types import TensorType
from torch._decomp import decomposition_table

Shapes = Mapping[str, Sequence[int | str]]


def exported(module: Any, inputs: Any, dynamic_shapes: Any) -> Any:
    """The module's exported program; raises `UserError` where torch cannot export it."""
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    given = tuple(positional) if isinstance(positional, list | tuple) else (positional,)
    try:
        return torch.export.export(
            module, given, dict(named), dynamic_shapes=dynamic_shapes, strict=False
        )
    except Exception as error:  # torch raises errors of many kinds here
        raise UserError(
            f"torch cannot export {type(module).__name__}", why=str(error)[:2000]
        ) from error


def read_archive(path: str, allow_pickle: bool) -> Any:
    """The program of a .pt2 archive, read by torch.

    Raises `UserError` unless `allow_pickle`: torch unpickles example inputs and evaluates text of
    the archive, either of which runs what its author wrote.
    """
    if not Path(path).is_file():
        raise UserError("there is no such model", where=path)
    if not allow_pickle:
        raise UserError(
            "reading a .pt2 archive runs code that it holds",
            where=path,
            why="torch unpickles parts of it",
            hint="give --allow-pickle if you trust the file, or compile the ExportedProgram from "
            "Python",
        )
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises errors of many kinds here
        raise UserError("torch cannot read the archive", where=path, why=str(error)[:500]) from (
            error
        )


def decomposed(program: Any) -> Any:
    """The program without views and updates in place, of operators that the table has where a
    decomposition leads there."""
    table = dict(torch.export.default_decompositions().items())
    for target, decompose in decomposition_table.items():
        table.setdefault(target, decompose)
    kept = {target: how for target, how in table.items() if not _has_converter(target)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its copies
            return program.run_decompositions(kept)
    except Exception as error:  # torch raises errors of many kinds here
        raise UserError("torch cannot decompose the program", why=str(error)[:2000]) from error


def _has_converter(target: Any) -> bool:
    return converter_of(target) is not None or complex_converter_of(target) is not None


def define_inputs(scope: Scope, symbols: Symbols, program: Any, shapes: Shapes) -> dict[Any, Any]:
    """What each placeholder stands for: an input of the graph, a constant, or a number."""
    _refuse_updates(program)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    placeholders = program.graph.find_nodes(op="placeholder")
    users = [n for n in placeholders if _is_tensor(n) and _kind(specs, n) == "USER_INPUT"]
    unknown = sorted(set(shapes) - {node.name for node in users})
    if unknown:
        raise UserError(
            f"the program has no input '{unknown[0]}'",
            why=f"its inputs are {', '.join(node.name for node in users) or 'none'}",
        )
    _define_symbols(symbols, users, shapes)
    values: dict[Any, Any] = {}
    for node in placeholders:
        where = f"input {node.name}"
        spec = specs[node.name]
        if node in users:
            fake = node.meta["val"]
            shape = symbols.shape(fake.shape, where)
            type = TensorType(element_type(fake.dtype, where), shape)
            values[node] = scope.wrap(scope.builder.input(node.name, type))
        elif spec.kind.name == "TOKEN":
            values[node] = None
        elif spec.kind.name == "USER_INPUT":
            values[node] = _number(node, spec)
        elif spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            array, dtype = contents(_tensor(program, spec), f"constant {spec.target}")
            values[node] = scope.constant(array, dtype, spec.target)
        else:
            raise UserError(f"inputs of kind {spec.kind.name} are not supported", where=where)
    _check_shapes(users, values, shapes)
    return values


def _kind(specs: Mapping[str, Any], node: Any) -> str:
    return str(specs[node.name].kind.name)


def _is_tensor(node: Any) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _number(node: Any, spec: Any) -> Any:
    """A number or None that the export fixed."""
    value = getattr(spec.arg, "value", node.meta.get("val"))
    if value is None or isinstance(value, int | float | str):
        return value
    raise UserError(
        f"the input {node.name} is no tensor, and not fixed either",
        why=f"it is {value!r}",
        hint="export it as a tensor, or as a fixed number",
    )


def _tensor(program: Any, spec: Any) -> Any:
    found = program.state_dict.get(spec.target)
    return program.constants[spec.target] if found is None else found


def _refuse_updates(program: Any) -> None:
    signature = program.graph_signature
    updated = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if updated:
        raise UserError(
            "the program updates tensors in place",
            why=", ".join(sorted(updated)[:8]),
            hint="call model.eval() before the export; return new state as an output "
            "(--state PAST=PRESENT updates it in place)",
        )


def _define_symbols(symbols: Symbols, users: Sequence[Any], shapes: Shapes) -> None:
    """A size for every symbol of the inputs; named after the first dimension that is it alone."""
    dims = [(n.name, axis, d) for n in users for axis, d in enumerate(n.meta["val"].shape)]
    opened = [(name, axis, d.node.expr) for name, axis, d in dims if isinstance(d, torch.SymInt)]
    for name, axis, expression in opened:
        if expression.is_Symbol and not symbols.knows(expression):
            given = shapes[name][axis] if len(shapes.get(name, ())) > axis else None
            if isinstance(given, int):
                symbols.define(expression, const(given))
            else:
                symbols.fresh(expression, symbol_name(f"{name}.{axis}"))
    for name, _, expression in opened:
        for symbol in sorted(expression.free_symbols, key=str):
            if not symbols.knows(symbol):
                symbols.fresh(symbol, symbol_name(f"{name}.{symbol}"))


def _check_shapes(users: Sequence[Any], values: Mapping[Any, Any], shapes: Shapes) -> None:
    for node in users:
        given = shapes.get(node.name)
        if given is None:
            continue
        found = values[node].shape
        if len(found) != len(given):
            raise UserError(
                f"the shape given for input '{node.name}' has the wrong rank",
                why=f"{len(given)} dimensions given, the program has {len(found)}",
            )
        for size, dim in zip(given, found, strict=True):
            if as_int(dim) != size:
                raise UserError(
                    f"the shape given for input '{node.name}' contradicts the program",
                    why=f"{size} given, the program has {dim.key}",
                )
