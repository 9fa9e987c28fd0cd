"""Checks of an import: results against what torch knows of them, and the program's own asserts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tcc.errors import InternalError, UserError
from tcc.frontends.onnx_scope import Operand, Scope
from tcc.frontends.torch_complex import Complex
from tcc.frontends.torch_context import call_location
from tcc.frontends.torch_symbols import Symbols
from tcc.frontends.torch_tensors import element_type
from tcc.ir.index import Index, as_int, bounds, minimum
from tcc.ops import OPS


def check_results(symbols: Symbols, node: Any, result: Any) -> None:
    """Compares results with what torch says of them, and learns the sizes that data decide.

    Raises InternalError where element types, ranks or known sizes differ.
    """
    known = node.meta.get("val")
    pairs: Sequence[tuple[Any, Any]] = (
        list(zip(known, result, strict=False))
        if isinstance(known, list | tuple)
        else [(known, result)]
    )
    for expected, found in pairs:
        if isinstance(found, Complex):
            _check_tensor(symbols, node, expected.real, found.real)
            _check_tensor(symbols, node, expected.real, found.imag)
        elif isinstance(expected, torch.Tensor) and isinstance(found, Operand):
            _check_tensor(symbols, node, expected, found)
        elif (
            isinstance(expected, torch.SymInt)
            and isinstance(found, Index)
            and not symbols.knows(expected.node.expr)
        ):
            symbols.define(expected.node.expr, found)


def _check_tensor(symbols: Symbols, node: Any, expected: Any, found: Operand) -> None:
    where = call_location(node)
    right = len(expected.shape) == found.rank
    right = right and element_type(expected.dtype, where) is found.dtype
    if right:
        for size, dim in zip(expected.shape, found.shape, strict=True):
            right = right and _agrees(symbols, size, dim)
    if not right:
        raise InternalError(
            f"{node.target} was imported as {found.type!r}, torch says "
            f"{expected.dtype}{list(expected.shape)}",
            where=where,
        )


def _agrees(symbols: Symbols, size: Any, dim: Index) -> bool:
    if isinstance(size, int):
        known = as_int(dim)
        return known is None or known == size
    expression = size.node.expr
    if expression.is_Symbol and not symbols.knows(expression):
        symbols.define(expression, dim)
    return True


def require_condition(scope: Scope, symbols: Symbols, node: Any) -> None:
    """A condition on sizes that the program asserts: every run checks what is not known to hold."""
    where = call_location(node)
    given = node.args[0]
    known = given.meta["val"] if isinstance(given, torch.fx.Node) else given
    if isinstance(known, bool):
        if not known:
            raise UserError("the program asserts what never holds", where=where)
        return
    expression = known.node.expr
    if expression.is_Boolean and expression in (True, False):
        return
    kind, sides = type(expression).__name__, expression.args
    if kind not in _CONDITIONS or len(sides) != 2:
        raise UserError(f"the condition {expression} is not supported", where=where)
    left, right = (symbols.read(side, where) for side in sides)
    low, high, gap = _CONDITIONS[kind](left, right)
    if gap is None:
        _demand(scope, low, high, str(expression), where)
    else:
        least = bounds(high - low - gap)[0]
        if least is None or least < 0:
            _demand(scope, minimum(low + gap, high), low + gap, str(expression), where)


def _demand(scope: Scope, left: Index, right: Index, reason: str, where: str) -> None:
    if left is right:
        return
    attrs = OPS["require"].attrs(left, right, f"the program asserts {reason}")
    scope.builder.add(OPS["require"], (), attrs, loc=where)


# Each condition as `low + gap <= high`; without a gap, as an equality.
_CONDITIONS: dict[str, Any] = {
    "Equality": lambda a, b: (a, b, None),
    "LessThan": lambda a, b: (a, b, 0),
    "StrictLessThan": lambda a, b: (a, b, 1),
    "GreaterThan": lambda a, b: (b, a, 0),
    "StrictGreaterThan": lambda a, b: (b, a, 1),
}
