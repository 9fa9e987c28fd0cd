"""Sizes of an exported program as `Index`: its symbols, and the arithmetic between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

from tcc.errors import UserError
from tcc.frontends.onnx_scope import LARGEST_SIZE, Session
from tcc.ir.index import Index, ceildiv, const, floordiv, maximum, minimum, mod


def _power(base: Index, exponent: Index) -> Index:
    if exponent.terms or not 0 <= exponent.const <= 8:
        raise ValueError("a size is raised to a power that is not known")
    return reduce(lambda a, b: a * b, [base] * exponent.const, const(1))


def _quotient(num: Index, den: Index) -> Index:
    """Floor division; torch's divisors of sizes are positive unless they are numbers."""
    if not den.terms and den.const < 0:
        return floordiv(-num, -den)
    return floordiv(num, den)


# The functions that torch's symbolic integers are made of, by their names in its expressions.
_FUNCTIONS: Mapping[str, Callable[..., Index]] = MappingProxyType(
    {
        "Add": lambda *terms: reduce(lambda a, b: a + b, terms),
        "Mul": lambda *factors: reduce(lambda a, b: a * b, factors),
        "Pow": _power,
        "PowByNatural": _power,
        "FloorDiv": _quotient,
        "CleanDiv": _quotient,
        "CeilDiv": ceildiv,
        "Mod": mod,
        "PythonMod": mod,
        "ModularIndexing": lambda base, by, size: mod(floordiv(base, by), size),
        "Max": lambda *values: reduce(maximum, values),
        "Min": lambda *values: reduce(minimum, values),
        "Identity": lambda value: value,
    }
)
_ROUNDED: Mapping[str, Callable[[Index, Index], Index]] = MappingProxyType(
    {"FloorToInt": _quotient, "floor": _quotient, "CeilToInt": ceildiv, "ceiling": ceildiv}
)


class Symbols:
    """The `Index` of each symbol of the program.

    `ranges` are the program's constraints: the least and largest value of a symbol, by its name.
    """

    def __init__(self, session: Session, ranges: Mapping[Any, Any]) -> None:
        self._session = session
        self._ranges = {str(symbol): (r.lower, r.upper) for symbol, r in ranges.items()}
        self._known: dict[str, Index] = {}

    def knows(self, expression: Any) -> bool:
        return str(expression) in self._known

    def define(self, expression: Any, index: Index) -> None:
        """The symbol `expression` is `index` from here on."""
        self._known[str(expression)] = index

    def fresh(self, expression: Any, hint: str) -> Index:
        """A new size for the symbol `expression`, in the range that the program gives it."""
        ends = self._ranges.get(str(expression), (None, None))
        lower, upper = (int(e) if getattr(e, "is_Integer", False) else None for e in ends)
        lo = max(lower or 0, 0)
        hi = LARGEST_SIZE if upper is None else min(upper, LARGEST_SIZE)
        made = self._session.fresh_symbol(hint, lo, hi)
        self.define(expression, made)
        return made

    def index(self, size: Any, where: str) -> Index:
        """An int or SymInt of the program as an `Index`.

        Raises `UserError` where it is no integer expression that tcc has.
        """
        if isinstance(size, int):
            return const(size)
        try:
            return self._read(size.node.expr)
        except ValueError as error:
            raise UserError(f"the size {size} is not supported", where=where, why=str(error)) from (
                error
            )

    def shape(self, sizes: Sequence[Any], where: str) -> tuple[Index, ...]:
        return tuple(self.index(size, where) for size in sizes)

    def read(self, expression: Any, where: str) -> Index:
        """An expression of torch's as an `Index`; raises `UserError` as `index` does."""
        try:
            return self._read(expression)
        except ValueError as error:
            raise UserError(
                f"the size {expression} is not supported", where=where, why=str(error)
            ) from error

    def _read(self, expression: Any) -> Index:
        if expression.is_Integer:
            return const(int(expression))
        if expression.is_Symbol:
            found = self._known.get(str(expression))
            if found is None:
                raise ValueError(f"nothing defines {expression}")
            return found
        kind = type(expression).__name__
        if kind in _ROUNDED:
            return self._rounded(_ROUNDED[kind], expression.args[0])
        function = _FUNCTIONS.get(kind)
        if function is None:
            raise ValueError(f"{kind} is no function of sizes")
        return function(*(self._read(argument) for argument in expression.args))

    def _rounded(self, divide: Callable[[Index, Index], Index], expression: Any) -> Index:
        """A quotient that is rounded to an integer."""
        if type(expression).__name__ == "IntTrueDiv":
            num, den = expression.args
            return divide(self._read(num), self._read(den))
        num, den = expression.as_numer_denom()
        return divide(self._read(num), self._read(den))
