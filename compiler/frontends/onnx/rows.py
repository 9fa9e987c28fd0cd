"""Imports operators that are equal to a row of the op table, with the same inputs and attributes.

Attribute fields are filled by name (or the binding's map) and by their declared types.  ONNX's
defaults for the opset replace absent attributes.
"""

from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

from tcc.errors import UserError
from tcc.frontends.emit import checked_axes, checked_axis, emit_all
from tcc.frontends.onnx.context import READERS, NodeContext
from tcc.frontends.operand import Operand, Refusal, current
from tcc.ir.op import OpSpec
from tcc.ops import OPS

# Rows have the meaning of operators from this opset on; converters handle older meanings.
OLDEST_ROWS = 7
# An attribute of opsets 1 to 5 that names buffers which may be overwritten; it is ignored.
_HINT = "consumed_inputs"


@cache
def _rows() -> dict[str, OpSpec]:
    """Returns the rows by the name of their ONNX operator."""
    return {row.onnx.name: row for row in OPS.values() if row.onnx}


def bound_row(domain: str, op: str, version: int) -> OpSpec | None:
    """Returns the row that equals this operator at this opset version, else None."""
    row = None if domain else _rows().get(op)
    if row is None or row.onnx is None or row.onnx.since > max(version, OLDEST_ROWS):
        return None
    return row


def import_row(ctx: NodeContext, row: OpSpec) -> tuple[Operand, ...]:
    """Imports the node as one node of `row`; returns its results."""
    inputs = list(ctx.inputs)
    minimum, maximum = row.arity
    while len(inputs) > minimum and inputs[-1] is None:
        inputs.pop()
    if not minimum <= len(inputs) <= maximum:
        raise Refusal(f"it has {len(inputs)} inputs; {minimum} to {maximum} are due")
    row_names = {*_names(row).values(), _HINT}
    values = _row_attrs(ctx, row)
    unknown = [a.name for a in ctx.node.attribute if a.name not in row_names]
    if unknown:
        raise Refusal(f"attribute {unknown[0]} is not supported")
    results = ctx.emit_all(row.name, inputs, **values)
    if len(results) < len(ctx.node.output) and ctx.wants(len(results)):
        raise Refusal(f"output {len(results)} is not supported")
    return results


def emit_row(op: str, *operands: Operand | None, **attrs: Any) -> tuple[Operand, ...]:
    """Adds a node of `op` and returns its results.

    Attributes of the op that are not among `attrs` are those of the ONNX node under import.
    """
    return emit_all(op, operands, **_row_attrs(current(), OPS[op], **attrs))


def _names(row: OpSpec) -> dict[str, str]:
    """Returns ONNX's name of each attribute of a row."""
    renamed = {field: name for name, field in row.onnx.attrs} if row.onnx else {}
    return {field.name: renamed.get(field.name, field.name) for field in fields(row.attrs)}


def _row_attrs(ctx: NodeContext, row: OpSpec, **values: Any) -> dict[str, Any]:
    """Returns `values` with the row's other attributes, which the node has."""
    hints, names = get_type_hints(row.attrs), _names(row)
    for field in (f for f in fields(row.attrs) if f.name not in values):
        name = names[field.name]
        if ctx.has_value(name):
            values[field.name] = _decode(ctx, name, field.name, hints[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Refusal(f"attribute {name} is missing")
    return values


def _decode(ctx: NodeContext, name: str, field: str, hint: Any) -> Any:
    decode = READERS.get(hint)
    if decode is None:
        raise UserError(f"attribute {name} has no decoder for {hint}", where=ctx.loc)
    value = decode(ctx, name)
    if field == "axis":
        return checked_axis(value, ctx.input(0).rank)
    return tuple(sorted(checked_axes(value, ctx.input(0).rank))) if field == "axes" else value
