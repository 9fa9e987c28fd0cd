"""Real numbers that a program computes from sizes, as scalars of the graph, and sizes that round
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tcc.errors import UserError
from tcc.frontends.emitting import Emitter
from tcc.frontends.onnx_scope import Operand, Scope
from tcc.frontends.torch_calls import Formula
from tcc.frontends.torch_symbols import Symbols, is_integral
from tcc.ir.index import Index
from tcc.ir.types import F64, I64
from tcc.ops import OPS

_BINARY = {"Add": "add", "Mul": "mul", "IntTrueDiv": "div", "FloatTrueDiv": "div"}
_POWERS = ("Pow", "FloatPow", "PowByNatural")
_ROOT = "OpaqueUnaryFn_sqrt"


def real_size(scope: Scope, symbols: Symbols, expression: Any, where: str) -> Operand:
    """The value of a symbolic real number as an f64 scalar.

    Raises `UserError` where it is made of functions that tcc does not have.
    """

    def emit(op: str, *operands: Operand, **attrs: Any) -> Operand:
        row = OPS[op]
        return scope.emit(op, operands, row.attrs(**attrs), loc=where)[0]

    def read(term: Any) -> Operand:
        return _read(scope, symbols, term, where, emit, read)

    return read(expression)


def late_size(scope: Scope, symbols: Symbols, formula: Formula) -> Index:
    """A size that rounds a real number, which each run computes in f64, as torch does."""
    ctx = Emitter()
    ctx.scope, ctx.loc, ctx.operation, ctx.names = scope, str(formula)[:200], formula.head, ("rounded",)
    number = real_size(scope, symbols, formula.args[0], ctx.loc)
    if formula.head != "TruncToInt":  # as casts do
        number = ctx.emit("ceil" if formula.head[0] in "Cc" else "floor", number)
    return ctx.size(ctx.cast(number, I64), "a size")


def _read(
    scope: Scope,
    symbols: Symbols,
    term: Formula | int | float,
    where: str,
    emit: Callable[..., Operand],
    read: Callable[[Any], Operand],
) -> Operand:
    if isinstance(term, int | float):
        return scope.constant(float(term), F64)
    kind = term.head
    if kind == "Rational":
        return scope.constant(term.args[0] / term.args[1], F64)
    if kind == "ToFloat" or is_integral(term):
        inner = term.args[0] if kind == "ToFloat" else term
        return scope.sizes([symbols.index(inner, where)], F64, scalar=True)
    if kind in _BINARY:
        op = _BINARY[kind]
        return reduce(lambda a, b: emit(op, a, b), map(read, term.args))
    if kind in _POWERS:
        base, exponent = term.args
        return emit("pow", read(base), read(exponent))
    if kind == _ROOT:
        return emit("sqrt", read(term.args[0]))
    raise UserError(f"the number {term} is not supported", where=where, why=f"it needs {kind}")
