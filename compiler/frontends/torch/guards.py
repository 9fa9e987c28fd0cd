"""Guards of an exported program: conditions that torch assumed for sizes during tracing, such as
`(L['x'].size()[0] % 2) == 0`.  A program is wrong where a guard does not hold.

Guards are text in Python's syntax; nothing of it is evaluated.
"""

import ast
import re
from typing import Any

from tcc.errors import UserError
from tcc.frontends.place import placed
from tcc.frontends.scope import Scope
from tcc.frontends.torch.calls import Fixed, Formula, Tensor, TorchProgram
from tcc.frontends.torch.checks import require_formula
from tcc.frontends.torch.formulas import parsed
from tcc.frontends.torch.symbols import Symbols

_LAYOUT = ("stride", "storage_offset", "is_contiguous")
_LARGEST = 1 << 62
# Torch's names of Python's operators, by their names in `ast`.
_COMPARISONS, _ARITHMETIC = (
    dict(pair.split(":") for pair in pairs.split())
    for pairs in (
        "Eq:Equality NotEq:Unequality LtE:LessThan Lt:StrictLessThan GtE:GreaterThan "
        "Gt:StrictGreaterThan",
        "Add:Add Mult:Mul FloorDiv:FloorDiv Mod:PythonMod Div:IntTrueDiv Pow:Pow",
    )
)
_FUNCTIONS = {
    "math.trunc": "TruncToInt",
    "math.floor": "FloorToInt",
    "math.ceil": "CeilToInt",
    "torch.sym_float": "ToFloat",
    "max": "Max",
    "min": "Min",
}


def require_guards(scope: Scope, symbols: Symbols, program: TorchProgram) -> None:
    """Adds checks of the guards to every run, unless they are proved.

    Raises `UserError` where a guard never holds, or cannot be read.
    """
    for text in program.guards:
        with placed(f"guard {text[:200]}"):
            try:
                formula = _Reader(program).condition(parsed(text))
            except (ValueError, RecursionError) as error:
                raise UserError(
                    "a condition on the sizes of the program is not supported",
                    why=error,
                    hint="export it with these sizes fixed",
                ) from error
            if formula is not True:
                require_formula(scope, symbols, formula)


class _Reader:
    """Reads the guards of a program as formulas of its symbols."""

    def __init__(self, program: TorchProgram) -> None:
        self._known = dict(program.block.inputs)
        self._owned = program.owned

    def condition(self, node: ast.expr) -> Any:
        """Returns the formula of a comparison of sizes.

        Returns True for a comparison of other things if it holds. Returns True also for a condition
        on an input's memory layout, because the compiled program's inputs are dense.
        """
        if any(isinstance(n, ast.Attribute) and n.attr in _LAYOUT for n in ast.walk(node)):
            return True
        if isinstance(node, ast.BoolOp):
            connective = "Or" if isinstance(node.op, ast.Or) else "And"
            return Formula(connective, tuple(map(self.condition, node.values)))
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            raise ValueError("it is no comparison")
        first, second = self._term(node.left), self._term(node.comparators[0])
        head = _COMPARISONS.get(type(node.ops[0]).__name__)
        if head is None:
            raise ValueError("it is no comparison of sizes")
        if head == "Equality" and first == second:
            return True
        return Formula(head, (first, second))

    def _term(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as value) if type(value) is int and value < _LARGEST:
                return value
            case ast.Constant(value=float() as real):
                return real
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return Formula("Mul", (-1, self._term(inner)))
            case ast.BinOp(op=ast.Sub()):
                negated = Formula("Mul", (-1, self._term(node.right)))
                return Formula("Add", (self._term(node.left), negated))
            case ast.BinOp() if (operator := type(node.op).__name__) in _ARITHMETIC:
                terms = self._term(node.left), self._term(node.right)
                return Formula(_ARITHMETIC[operator], terms)
            case ast.Call(args=operands) if (name := ast.unparse(node.func)) in _FUNCTIONS:
                return Formula(_FUNCTIONS[name], tuple(map(self._term, operands)))
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


def _input_name(source: ast.expr) -> str:
    """Returns torch's name of the input at a path: `x_0` for `L['x'][0]`."""
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
