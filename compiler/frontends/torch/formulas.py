"""Reads sizes in archives of torch: text such as `Add(Symbol('s0', integer=True), Integer(1))`.

The notation is that of sympy's `srepr`, whose own reader evaluates it as Python.  Here Python only
parses it; nothing is looked up.
"""

import ast
import math
from typing import Any

from tcc.frontends.torch.calls import Formula

_LONGEST, _LARGEST, _DEEPEST = 1 << 16, 1 << 64, 64
_LITERALS = {"true": True, "false": False}


def parsed(text: str) -> ast.expr:
    """Parses a text as a Python expression; raises ValueError where it is none."""
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is no expression") from error


def read_formula(text: str) -> Any:
    """Returns the number or `Formula` of a text; raises ValueError where it is neither."""
    return _formula(parsed(text), 0)


def _formula(node: ast.expr, depth: int) -> Any:
    """Returns the number or formula of an expression; keywords, which are assumptions and
    precisions, are ignored."""
    if depth > _DEEPEST:
        raise ValueError("a size is nested too deeply")
    match node:
        case ast.Constant(value=int() as value) if value < _LARGEST:
            return value
        case ast.Constant(value=float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=name):
            return _LITERALS.get(name, Formula(name, ()))
        case ast.Call(func=ast.Name(id=head), args=arguments):
            return _simplified(head, [_formula(argument, depth + 1) for argument in arguments])
    raise ValueError(f"'{ast.unparse(node)[:80]}' is no size")


def _simplified(head: str, arguments: list[Any]) -> Any:
    match head, arguments:
        case "Integer", [int(value)]:
            return value
        case "Float", [str(text)]:
            return _real(text)
        case "Symbol", [str()]:
            return Formula(head, tuple(arguments))
        case (("Integer" | "Float" | "Symbol"), _):
            raise ValueError(f"a {head} without a value")
    if any(isinstance(a, str) for a in arguments):
        raise ValueError(f"{head} of a text")
    return Formula(head, tuple(arguments))


def _real(text: str) -> float:
    if len(text) > 400:
        raise ValueError("a number is too long")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no size")
    return number
