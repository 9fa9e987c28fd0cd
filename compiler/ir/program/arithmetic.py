"""Evaluates the integer instructions and checks of programs without a run."""

import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from tcc.errors import UserError
from tcc.ir.program import Instr, IntOp, Let, Register, Relation

MEANING: Mapping[IntOp | Relation, Callable[[int, int], int]] = MappingProxyType(
    {
        IntOp.ADD: operator.add,
        IntOp.SUB: operator.sub,
        IntOp.MUL: operator.mul,
        IntOp.FLOORDIV: operator.floordiv,
        IntOp.MOD: operator.mod,
        IntOp.MIN: min,
        IntOp.MAX: max,
        Relation.EQ: operator.eq,
        Relation.LE: operator.le,
        Relation.LT: operator.lt,
        Relation.DIVIDES: lambda a, b: a > 0 and b % a == 0,
    }
)

_LIMIT = 1 << 63  # registers hold values in [-_LIMIT, _LIMIT)


def require_register(value: int) -> None:
    """Raises UserError for a number that no register can hold."""
    if not -_LIMIT <= value < _LIMIT:
        raise UserError(
            "a size of the model is too large",
            why=f"it is computed with the number {value}",
            hint="check the sizes that the model computes",
        )


def let_value(
    let: Let, registers: Mapping[Register, int], dims: Mapping[tuple[int, int], int]
) -> int | None:
    """Returns the value that an instruction writes; None if it is unknown.

    `registers` has the known values of registers, `dims` the known sizes of inputs by (port, axis).
    """
    if let.op is IntOp.CONST:
        return let.a
    if let.op is IntOp.DIM:
        return dims.get((let.a, let.b))
    if let.op in (IntOp.RANK, IntOp.SEED, IntOp.CAPACITY):
        return None
    a, b = registers.get(let.a), registers.get(let.b)
    if a is None or b is None or (let.op in (IntOp.FLOORDIV, IntOp.MOD) and b <= 0):
        return None
    value = MEANING[let.op](a, b)
    return value if -_LIMIT <= value < _LIMIT else None  # on overflow the run fails


def let_values(body: Iterable[Instr], dims: Mapping[tuple[int, int], int]) -> dict[Register, int]:
    """Returns the values of registers, where they are known, after straight-line instructions.

    `dims` has the known sizes of inputs by (port, axis).
    """
    registers: dict[Register, int] = {}
    for instr in body:
        if isinstance(instr, Let):
            value = let_value(instr, registers, dims)
            registers.pop(instr.target, None)
            registers |= {} if value is None else {instr.target: value}
    return registers
