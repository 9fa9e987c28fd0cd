"""Sizes of an exported program as `Index`: its symbols, and arithmetic with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import reduce
from math import isfinite, prod
from typing import Any

from tcc.errors import UserError
from tcc.frontends.operand import LARGEST_SIZE
from tcc.frontends.scope import ImportSession
from tcc.frontends.torch.calls import Formula, Number, Size
from tcc.frozen import entity
from tcc.ir.index import Index, bounds, ceildiv, const, floordiv, maximum, minimum, mod
from tcc.zipped import zip_equal


def _power(base: Index, exponent: Index) -> Index:
    if exponent.terms or not 0 <= exponent.const <= 8:
        raise ValueError("a size is raised to a power that is not known")
    return prod([base] * exponent.const, start=const(1))


def _quotient(num: Index, den: Index) -> Index:
    """Returns the quotient, rounded down; torch's divisors of sizes are positive unless they are
    numbers."""
    if not den.terms and den.const < 0:
        return floordiv(-num, -den)
    return floordiv(num, den)


def _remainder(num: Index, den: Index) -> Index:
    if not den.terms and not den.const:
        raise ValueError("a size is divided by zero")
    return mod(num, den)


def _folded(function: Callable[[Index, Index], Index]) -> Callable[..., Index]:
    return lambda *values: reduce(function, values)


# The functions in torch's symbolic integers, by their names in its expressions.
_FUNCTIONS: Mapping[str, Callable[..., Index]] = {
    "Add": _folded(operator.add),
    "Mul": _folded(operator.mul),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _quotient,
    "CleanDiv": _quotient,
    "CeilDiv": ceildiv,
    "Mod": _remainder,
    "PythonMod": _remainder,
    "ModularIndexing": lambda base, by, size: _remainder(floordiv(base, by), size),
    "Max": _folded(maximum),
    "Min": _folded(minimum),
    "Identity": lambda value: value,
}


def _truncated(num: Index, den: Index) -> Index:
    lowest = bounds(num)[0]
    if lowest is None or lowest < 0:
        raise ValueError("a size that may be negative is rounded towards zero")
    return _quotient(num, den)


_ROUNDED: Mapping[str, Callable[[Index, Index], Index]] = {
    "FloorToInt": _quotient,
    "floor": _quotient,
    "TruncToInt": _truncated,
    "CeilToInt": ceildiv,
    "ceiling": ceildiv,
}
# The limit of a fraction's denominator and of its value, so that products with sizes are exact.
_FINEST = 1 << 10


class _LongError(ValueError):
    """A number is a fraction of large integers, so its products with sizes are inexact."""


@entity
class Symbols:
    """The `Index` of each symbol of the program.

    `ranges` maps a symbol's name to its smallest and largest value in the program's constraints.
    `late` returns a size that fractions of sizes cannot express: each run rounds it from a real
    number. `examples` are the values of symbols in the example inputs, where known.
    """

    _session: ImportSession
    _ranges: Mapping[str, tuple[int | None, int | None]]
    _late: Callable[[Symbols, Formula], Index]
    _examples: Mapping[str, int]
    _known: dict[str, Index] = field(default_factory=dict)

    def knows(self, symbol: str) -> bool:
        return symbol in self._known

    def define(self, symbol: str, index: Index) -> None:
        """Defines the symbol as `index`."""
        self._known[symbol] = index

    def learn(self, size: Any, index: Index) -> None:
        """Defines `size` as `index` if it is a symbol that is not defined yet."""
        if isinstance(size, Formula) and size.is_symbol and not self.knows(str(size)):
            self.define(str(size), index)

    def fresh(self, symbol: str, hint: str) -> Index:
        """Returns a new size for the symbol, in the program's range.

        The value in the example inputs is its typical value. torch traces as if symbolic sizes were
        at least 2, and writes 2 as their lower bound, but runs the program with 1 as well.
        """
        lower, upper = self._ranges.get(symbol, (None, None))
        lo = 1 if lower == 2 else max(lower or 0, 0)
        hi = LARGEST_SIZE if upper is None else min(upper, LARGEST_SIZE)
        hi, example = max(lo, hi), self._examples.get(symbol)
        typical = None if example is None or not lo <= example <= hi else example
        index = self._session.fresh_symbol(hint, lo, hi, typical)
        self.define(symbol, index)
        return index

    def index(self, size: Size | Number) -> Index:
        """Returns a size of the program as an `Index`.

        Raises `UserError` where it is no integer expression that tcc has.
        """
        formula = size.value if isinstance(size, Number) else size
        try:
            return self._read(formula)
        except (ValueError, ArithmeticError) as error:
            what = f"the size {str(formula)[:200]} is not supported"
            raise UserError(what, why=error) from error

    def shape(self, sizes: Sequence[Size]) -> tuple[Index, ...]:
        return tuple(map(self.index, sizes))

    def _read(self, formula: Any) -> Index:
        if isinstance(formula, int):
            return const(formula)
        if not isinstance(formula, Formula):
            raise ValueError(f"{formula!r} is no integer")
        if formula.is_symbol:
            index = self._known.get(str(formula))
            if index is None:
                raise ValueError(f"nothing defines {formula}")
            return index
        if formula.head in _ROUNDED:
            return self._rounded(formula)
        function = _FUNCTIONS.get(formula.head)
        if function is None:
            raise ValueError(f"{formula.head} is no function of sizes")
        return function(*map(self._read, formula.args))

    def _rounded(self, formula: Formula) -> Index:
        try:
            return _ROUNDED[formula.head](*self._ratio(formula.args[0]))
        except _LongError:
            if not self.knows(str(formula)):
                self.define(str(formula), self._late(self, formula))
            return self._known[str(formula)]

    def _ratio(self, formula: Any) -> tuple[Index, Index]:
        """Returns a fraction of sizes as numerator and denominator."""
        if isinstance(formula, float):
            short = abs(formula) <= _FINEST
            top, bottom = formula.as_integer_ratio() if short else (0, 0)
            if not short or bottom > _FINEST:
                kind = _LongError if isfinite(formula) else ValueError
                raise kind(f"{formula} is no short fraction")
            return const(top), const(bottom)
        if not isinstance(formula, Formula):
            return self._read(formula), const(1)
        args = formula.args
        match formula.head:
            case "ToFloat":
                return self._read(args[0]), const(1)
            case "Rational" | "IntTrueDiv":
                return self._read(args[0]), self._read(args[1])
            case "Pow" if isinstance(args[1], int) and args[1] < 0:
                num, den = self._ratio(Formula("Pow", (args[0], -args[1])))
                return den, num
            case "Mul":
                nums, dens = zip_equal(*map(self._ratio, args))
                return prod(nums, start=const(1)), prod(dens, start=const(1))
            case "Add":
                return reduce(_sum, map(self._ratio, args))
        return self._read(formula), const(1)


def _sum(a: tuple[Index, Index], b: tuple[Index, Index]) -> tuple[Index, Index]:
    if a[1] is b[1]:
        return a[0] + b[0], a[1]
    return a[0] * b[1] + b[0] * a[1], a[1] * b[1]


def is_integral(formula: Any) -> bool:
    """True if an expression consists of integers only."""
    if not isinstance(formula, Formula):
        return isinstance(formula, int)
    if formula.is_symbol:
        return not str(formula).startswith(("zf", "zuf"))
    if formula.head in _ROUNDED:
        return True
    return formula.head in _FUNCTIONS and all(map(is_integral, formula.args))
