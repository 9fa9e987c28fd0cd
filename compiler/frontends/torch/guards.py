"""Guards of an exported program: what torch found to hold for its sizes while it traced, such as
`(L['x'].size()[0] % 2) == 0`.  A program is wrong where they do not hold.

They are text, in Python's syntax; nothing of it is evaluated.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from tcc.errors import UserError
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Fixed, Formula, Program, Tensor
from tcc.frontends.torch.checks import require_formula
from tcc.frontends.torch.symbols import Symbols

_LAYOUT = ("stride", "storage_offset", "is_contiguous")
_LONGEST, _LARGEST = 1 << 14, 1 << 62
_COMPARISONS: dict[type, str] = {
    ast.Eq: "Equality", ast.NotEq: "Unequality", ast.LtE: "LessThan", ast.Lt: "StrictLessThan",
    ast.GtE: "GreaterThan", ast.Gt: "StrictGreaterThan",
}  # fmt: skip
_ARITHMETIC: dict[type, str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.FloorDiv: "FloorDiv", ast.Mod: "PythonMod",
    ast.Div: "IntTrueDiv", ast.Pow: "Pow",
}  # fmt: skip
_FUNCTIONS = {
    "math.trunc": "TruncToInt",
    "math.floor": "FloorToInt",
    "math.ceil": "CeilToInt",
    "torch.sym_float": "ToFloat",
    "max": "Max",
    "min": "Min",
}


def require_guards(scope: Scope, symbols: Symbols, program: Program) -> None:
    """Every run checks the guards that are not known to hold.

    Raises `UserError` where one never holds, or is not understood.
    """
    for text in program.guards:
        where = f"guard {text[:200]}"
        try:
            formula = _Reader(program).condition(_parsed(text))
        except (ValueError, RecursionError, MemoryError) as error:
            raise UserError(
                "a condition on the sizes of the program is not supported",
                where=where,
                why=str(error),
                hint="export it with the sizes that it is about fixed",
            ) from error
        if formula is not True:
            require_formula(scope, symbols, formula, where)


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError("it is no expression") from error


class _Reader:
    """Reads the guards of a program as formulas of its symbols."""

    def __init__(self, program: Program) -> None:
        self._known = dict(program.block.inputs)
        self._owned = program.owned

    def condition(self, node: ast.expr) -> Any:
        """The formula of a comparison; True where it compares no sizes and holds, or says only how
        an input lies in memory: in the compiled program all lie densely."""
        if any(isinstance(n, ast.Attribute) and n.attr in _LAYOUT for n in ast.walk(node)):
            return True
        if isinstance(node, ast.BoolOp):
            gap = self._gap(node)
            return True if gap == 0 else Formula("Equality", (gap, 0))
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            raise ValueError("it is no comparison")
        left, right = self._term(node.left), self._term(node.comparators[0])
        head = _COMPARISONS.get(type(node.ops[0]))
        if head is None:
            raise ValueError("it is no comparison of sizes")
        if head == "Equality" and left == right:
            return True
        return Formula(head, (left, right))

    def _gap(self, node: ast.expr) -> Any:
        """What is zero where a condition holds, and more elsewhere."""
        if isinstance(node, ast.BoolOp):
            gaps = [self._gap(value) for value in node.values]
            least = isinstance(node.op, ast.Or)
            if (0 in gaps) if least else not any(gaps):
                return 0
            return Formula("Min" if least else "Max", tuple(gaps))
        formula = self.condition(node)
        if formula is True:
            return 0
        left, right = formula.args
        above, below = _difference(left, right), _difference(right, left)
        match formula.head:
            case "Equality":
                return Formula("Max", (above, below))
            case "Unequality":
                return _difference(1, Formula("Min", (1, Formula("Max", (above, below)))))
            case "LessThan":
                return Formula("Max", (above, 0))
            case "StrictLessThan":
                return Formula("Max", (Formula("Add", (above, 1)), 0))
            case "GreaterThan":
                return Formula("Max", (below, 0))
            case _:
                return Formula("Max", (Formula("Add", (below, 1)), 0))

    def _term(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as value) if type(value) is int and value < _LARGEST:
                return value
            case ast.Constant(value=float() as real):
                return real
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return Formula("Mul", (-1, self._term(inner)))
            case ast.BinOp(op=ast.Sub()):
                return _difference(self._term(node.left), self._term(node.right))
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                terms = self._term(node.left), self._term(node.right)
                return Formula(_ARITHMETIC[type(node.op)], terms)
            case ast.Call(args=given) if (name := ast.unparse(node.func)) in _FUNCTIONS:
                return Formula(_FUNCTIONS[name], tuple(map(self._term, given)))
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[]),
                slice=ast.Constant(value=int() as axis),
            ):
                return self._size(source, axis)
        return self._fixed(node)

    def _size(self, source: ast.expr, axis: int) -> Any:
        tensor = self._known.get(_input_name(source))
        if not isinstance(tensor, Tensor) or not 0 <= axis < len(tensor.shape):
            raise ValueError(f"{ast.unparse(source)} is no input of it")
        return tensor.shape[axis]

    def _fixed(self, source: ast.expr) -> int:
        owner = self._owned.get(_input_name(source))
        if not isinstance(owner, Fixed) or not isinstance(owner.value, int):
            raise ValueError(f"{ast.unparse(source)[:80]} is no size")
        return owner.value


def _difference(left: Any, right: Any) -> Formula:
    return Formula("Add", (left, Formula("Mul", (-1, right))))


def _input_name(source: ast.expr) -> str:
    """The name that torch gives the input at a place: `L['x'][0]` is `x_0`."""
    steps: list[str] = []
    while not isinstance(source, ast.Name):
        match source:
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                steps.append(str(key))
            case ast.Attribute(value=inner, attr=key):
                steps.append(key)
            case _:
                raise ValueError(f"{ast.unparse(source)[:80]} is no size")
        source = inner
    return re.sub("[^a-zA-Z0-9]", "_", "_".join(reversed(steps)).lower())
