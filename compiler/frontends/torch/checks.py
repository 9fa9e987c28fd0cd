"""Checks of an import: results against what the program knows, and the program's own asserts."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tcc.errors import InternalError, UserError
from tcc.frontends.scope import Operand, Scope
from tcc.frontends.torch.calls import Call, Formula, Known, Number, Size, Tensor
from tcc.frontends.torch.convert.complex import Complex, real_part
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import element_type
from tcc.ir.index import Index, as_int, bounds, const, maximum, minimum


def check_results(symbols: Symbols, call: Call, result: Any) -> None:
    """Compares results with what the program says of them, and learns the sizes that data decide.

    Raises InternalError where element types, ranks or known sizes differ.
    """
    known = call.result
    pairs: Sequence[tuple[Known, Any]] = (
        list(zip(known, result, strict=False)) if isinstance(known, tuple) else [(known, result)]
    )
    for expected, found in pairs:
        if isinstance(expected, Tensor) and isinstance(found, Complex):
            for part in (found.real, found.imag):
                _check_tensor(symbols, call, real_part(expected), part)
        elif isinstance(expected, Tensor) and isinstance(found, Operand):
            _check_tensor(symbols, call, expected, found)
        elif isinstance(expected, Number) and isinstance(found, Index):
            symbols.learn(expected.value, found)


def _check_tensor(symbols: Symbols, call: Call, expected: Tensor, found: Operand) -> None:
    where = call.location
    alike = element_type(expected.dtype, where) is found.dtype and (
        len(expected.shape) == found.rank
    )
    pairs = zip(expected.shape, found.shape, strict=False)
    if not alike or not all(_agrees(symbols, *pair) for pair in pairs):
        raise InternalError(
            f"{call.target} was imported as {found.type!r}, torch says "
            f"{expected.dtype}[{', '.join(map(str, expected.shape))}]",
            where=where,
        )


def _agrees(symbols: Symbols, size: Size, dim: Index) -> bool:
    if isinstance(size, int):
        known = as_int(dim)
        return known is None or known == size
    symbols.learn(size, dim)
    return True


def require_condition(scope: Scope, symbols: Symbols, call: Call, given: Any) -> None:
    """A condition on sizes that the program asserts: every run checks what is not known to hold."""
    where = call.location
    condition = given.value if isinstance(given, Number) else given
    if isinstance(condition, bool | int):
        if not condition:
            raise UserError("the program asserts what never holds", where=where)
        return
    require_formula(scope, symbols, condition, where)


def require_formula(scope: Scope, symbols: Symbols, condition: Any, where: str) -> None:
    """A condition on sizes that must hold: every run checks what is not known to hold."""
    if isinstance(condition, Formula) and condition.head in _JOINED:
        _demand(scope, _excess(symbols, condition, where), const(0), str(condition), where)
        return
    low, high, gap = _compared(symbols, condition, where)
    if gap is None:
        _demand(scope, low, high, str(condition), where)
    else:
        least = bounds(high - low - gap)[0]
        if least is None or least < 0:
            _demand(scope, minimum(low + gap, high), low + gap, str(condition), where)


def _excess(symbols: Symbols, condition: Any, where: str) -> Index:
    """What is zero where a condition holds, and more elsewhere."""
    if condition is True:
        return const(0)
    if isinstance(condition, Formula) and condition.head in _JOINED:
        parts = [_excess(symbols, part, where) for part in condition.args]
        none = condition.head == "Or" and const(0) in parts
        return const(0) if none else reduce(_JOINED[condition.head], parts)
    low, high, gap = _compared(symbols, condition, where)
    return maximum(low - high, high - low) if gap is None else maximum(low + gap - high, 0)


def _compared(symbols: Symbols, condition: Any, where: str) -> tuple[Index, Index, int | None]:
    """A comparison as `low + gap <= high`; without a gap, as an equality."""
    if not isinstance(condition, Formula) or condition.head not in _CONDITIONS:
        raise UserError(f"the condition {str(condition)[:200]} is not supported", where=where)
    left, right = (symbols.index(side, where) for side in condition.args)
    return _CONDITIONS[condition.head](left, right)


def _demand(scope: Scope, left: Index, right: Index, reason: str, where: str) -> None:
    if left is right:
        return
    if not left.terms and not right.terms:
        raise UserError(f"the program asserts {reason}, which does not hold", where=where)
    scope.require(left, right, f"the program asserts {reason}", where)


_JOINED = {"And": maximum, "Or": minimum}
_CONDITIONS: dict[str, Callable[[Index, Index], tuple[Index, Index, int | None]]] = {
    "Equality": lambda a, b: (a, b, None),
    "Unequality": lambda a, b: (const(0), maximum(a - b, b - a), 1),
    "LessThan": lambda a, b: (a, b, 0),
    "StrictLessThan": lambda a, b: (a, b, 1),
    "GreaterThan": lambda a, b: (b, a, 0),
    "StrictGreaterThan": lambda a, b: (b, a, 1),
}
