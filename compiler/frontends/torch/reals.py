"""Real numbers that a program computes from sizes: scalars of the graph, and sizes rounded from
them."""

from functools import partial, reduce
from typing import Any

from tcc.errors import UserError
from tcc.frontends.emit import Emitter, emit, filled, size_scalar
from tcc.frontends.operand import Operand
from tcc.frontends.place import PLACE
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Formula
from tcc.frontends.torch.symbols import Symbols, is_integral
from tcc.ir.index import Index
from tcc.ir.types import F64, I64

_BINARY = {"Add": "add", "Mul": "mul", "IntTrueDiv": "div", "FloatTrueDiv": "div"}
_POWERS = ("Pow", "FloatPow", "PowByNatural")
_ROOT = "OpaqueUnaryFn_sqrt"


def real_size(scope: Scope, symbols: Symbols, expression: Any) -> Operand:
    """Returns the value of a symbolic real number as an f64 scalar.

    Raises `UserError` for functions that tcc does not have.
    """
    with _Reals(scope, symbols, PLACE.get()).writing() as reals:
        return reals.read(expression)


def late_size(scope: Scope, symbols: Symbols, formula: Formula) -> Index:
    """Returns a size that is rounded from a real number.

    Each run computes the number in f64, as torch does.
    """
    with _Reals(scope, symbols, str(formula)[:200]).writing() as reals:
        number = reals.read(formula.args[0])
        reals.names = ("rounded",)
        if formula.head != "TruncToInt":  # for TruncToInt, the cast below is enough
            number = number.emit("ceil" if formula.head[0] in "Cc" else "floor")
        return number.cast(I64).as_size("a size")


class _Reals(Emitter):
    """Emits the arithmetic of a real number."""

    def __init__(self, scope: Scope, symbols: Symbols, where: str) -> None:
        super().__init__(scope, where)
        self.symbols = symbols

    def read(self, term: Any) -> Operand:
        if isinstance(term, int | float):
            return filled(float(term), F64)
        kind = term.head
        if kind == "Rational":
            return filled(term.args[0] / term.args[1], F64)
        if kind == "ToFloat" or is_integral(term):
            return size_scalar(self.symbols.index(term.args[0] if kind == "ToFloat" else term), F64)
        if kind in _BINARY:
            return reduce(partial(emit, _BINARY[kind]), map(self.read, term.args))
        if kind in _POWERS:
            return emit("pow", *map(self.read, term.args))
        if kind == _ROOT:
            return self.read(term.args[0]).sqrt()
        raise UserError(f"the number {term} is not supported", why=f"it needs {kind}")
