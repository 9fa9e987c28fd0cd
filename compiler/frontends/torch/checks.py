"""Checks during an import: results against the program's descriptions, and the program's
asserts."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from tcc.errors import InternalError, UserError
from tcc.frontends.operand import Operand
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Call, Formula, Known, Number, Size, Tensor
from tcc.frontends.torch.convert.complex import Complex, real_part
from tcc.frontends.torch.symbols import Symbols
from tcc.frontends.torch.tensors import element_type
from tcc.ir.index import Index, as_int, bounds, const, maximum, minimum


def check_results(symbols: Symbols, call: Call, result: Any) -> None:
    """Checks a call's results against their descriptions, and defines the data-dependent symbols.

    Raises InternalError where dtypes, ranks or known sizes differ.
    """
    described = call.result
    pairs: Sequence[tuple[Known, Any]] = (
        list(zip(described, result, strict=False))
        if isinstance(described, tuple)
        else [(described, result)]
    )
    for expected, actual in pairs:
        if isinstance(expected, Tensor) and isinstance(actual, Complex):
            for part in (actual.real, actual.imag):
                _check_tensor(symbols, call, real_part(expected), part)
        elif isinstance(expected, Tensor) and isinstance(actual, Operand):
            _check_tensor(symbols, call, expected, actual)
        elif isinstance(expected, Number) and isinstance(actual, Index):
            symbols.learn(expected.value, actual)


def _check_tensor(symbols: Symbols, call: Call, expected: Tensor, actual: Operand) -> None:
    same_kind = element_type(expected.dtype) is actual.dtype and (
        len(expected.shape) == actual.rank
    )
    pairs = zip(expected.shape, actual.shape, strict=False)
    if not same_kind or not all(_agrees(symbols, *pair) for pair in pairs):
        raise InternalError(
            f"{call.target} was imported as {actual.type!r}, torch says "
            f"{expected.dtype}[{', '.join(map(str, expected.shape))}]",
            where=call.location,
        )


def _agrees(symbols: Symbols, size: Size, dim: Index) -> bool:
    if isinstance(size, int):
        number = as_int(dim)
        return number is None or number == size
    symbols.learn(size, dim)
    return True


def require_condition(scope: Scope, symbols: Symbols, assertion: Any) -> None:
    """Adds a condition on sizes that the program asserts; every run checks it unless it is
    proved."""
    condition = assertion.value if isinstance(assertion, Number) else assertion
    if isinstance(condition, bool | int):
        if not condition:
            raise UserError("the program asserts what never holds")
        return
    require_formula(scope, symbols, condition)


def require_formula(scope: Scope, symbols: Symbols, condition: Any) -> None:
    """Adds a condition on sizes; every run checks it unless it is proved."""
    if isinstance(condition, Formula) and condition.head in _JOINED:
        _demand(scope, _excess(symbols, condition), const(0), str(condition))
        return
    low, high, gap = _compared(symbols, condition)
    if gap is None:
        _demand(scope, low, high, str(condition))
    else:
        lowest = bounds(high - low - gap)[0]
        if lowest is None or lowest < 0:
            _demand(scope, minimum(low + gap, high), low + gap, str(condition))


def _excess(symbols: Symbols, condition: Any) -> Index:
    """Returns a size that is zero where a condition holds, and positive elsewhere."""
    if condition is True:
        return const(0)
    if isinstance(condition, Formula) and condition.head in _JOINED:
        parts = [_excess(symbols, part) for part in condition.args]
        none = condition.head == "Or" and const(0) in parts
        return const(0) if none else reduce(_JOINED[condition.head], parts)
    low, high, gap = _compared(symbols, condition)
    return maximum(low - high, high - low) if gap is None else maximum(low + gap - high, 0)


def _compared(symbols: Symbols, condition: Any) -> tuple[Index, Index, int | None]:
    """Returns `low`, `high` and `gap` for the comparison `low + gap <= high`.

    For an equality `gap` is None.
    """
    if not isinstance(condition, Formula) or condition.head not in _CONDITIONS:
        raise UserError(f"the condition {str(condition)[:200]} is not supported")
    a, b = (symbols.index(side) for side in condition.args)
    return _CONDITIONS[condition.head](a, b)


def _demand(scope: Scope, a: Index, b: Index, reason: str) -> None:
    if a is b:
        return
    if not a.terms and not b.terms:
        raise UserError(f"the program asserts {reason}, which does not hold")
    scope.require(a, b, f"the program asserts {reason}")


_JOINED = {"And": maximum, "Or": minimum}
_CONDITIONS: dict[str, Callable[[Index, Index], tuple[Index, Index, int | None]]] = {
    "Equality": lambda a, b: (a, b, None),
    "Unequality": lambda a, b: (const(0), maximum(a - b, b - a), 1),
    "LessThan": lambda a, b: (a, b, 0),
    "StrictLessThan": lambda a, b: (a, b, 1),
    "GreaterThan": lambda a, b: (b, a, 0),
    "StrictGreaterThan": lambda a, b: (b, a, 1),
}
