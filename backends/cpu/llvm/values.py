"""Values with operators, so that formulas of LLVM instructions read like formulas.

    (x * y < 1.0).select(x, 0.0)        fmul ; fcmp olt ; select

An operator appends one instruction to the code of its first value. A number beside a value becomes
a constant of the value's type. Integers are signed in `<`, `<=`, `>`, `>=` and `>>`. The opcodes of
unsigned integers are spelled: `a.op("lshr", b)`, `a.compare("icmp ult", b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tcc.backends.cpu.llvm.text import Code, Operand, Reg, number
from tcc.frozen import frozen
from tcc.target import Profile

# The other operand of an instruction.
Term: TypeAlias = "LlvmValue | Operand"


def _operator(
    opcode: str, float_opcode: str = "", *, swapped: bool = False
) -> Callable[[LlvmValue, Term], LlvmValue]:
    """Returns the method of a binary operator; `swapped`: the value is the second operand."""

    def emit(value: LlvmValue, other: Term) -> LlvmValue:
        operands = (_plain(other), value.reg) if swapped else (value.reg, _plain(other))
        name = float_opcode if value.is_float else opcode
        return LlvmValue(value.code, value.code.op(name, *operands))

    return emit


def _comparison(predicate: str, float_predicate: str) -> Callable[[LlvmValue, Term], LlvmValue]:
    """Returns the method of a comparison, whose result is an i1 for each lane."""
    return lambda value, other: value.compare(
        f"fcmp {float_predicate}" if value.is_float else f"icmp {predicate}", other
    )


@frozen
class LlvmValue:
    """A register or constant, and the code to which its operators append instructions."""

    code: Code
    reg: Reg

    __add__ = _operator("add", "fadd")
    __sub__ = _operator("sub", "fsub")
    __rsub__ = _operator("sub", "fsub", swapped=True)
    __mul__ = _operator("mul", "fmul")
    __truediv__ = _operator("sdiv", "fdiv")
    __rtruediv__ = _operator("sdiv", "fdiv", swapped=True)
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("ashr")
    __lt__ = _comparison("slt", "olt")
    __le__ = _comparison("sle", "ole")
    __gt__ = _comparison("sgt", "ogt")
    __ge__ = _comparison("sge", "oge")
    eq = _comparison("eq", "oeq")
    ne = _comparison("ne", "une")

    @property
    def is_float(self) -> bool:
        return self.reg.elem in ("float", "double")

    @property
    def bits(self) -> int:
        """Returns the bits of an integer element."""
        return int(self.reg.elem[1:])

    @property
    def profile(self) -> Profile:
        """Returns the processor for which the code is."""
        return self.code.module.profile

    def __neg__(self) -> LlvmValue:
        """Returns the negated float."""
        reg = self.reg
        return LlvmValue(self.code, self.code.emit(reg.elem, reg.width, f"fneg {reg}"))

    def __abs__(self) -> LlvmValue:
        """Returns the magnitude of a float."""
        return self.intrinsic("fabs")

    def constant(self, value: float) -> LlvmValue:
        """Returns a constant of this value's type."""
        return LlvmValue(self.code, number(self.reg, value))

    def op(self, opcode: str, other: Term) -> LlvmValue:
        """Returns the result of a binary instruction."""
        return LlvmValue(self.code, self.code.op(opcode, self.reg, _plain(other)))

    def compare(self, predicate: str, other: Term) -> LlvmValue:
        """Returns an i1 for each lane; `predicate` includes the opcode, as in "icmp ult"."""
        return LlvmValue(self.code, self.code.compare(predicate, self.reg, _plain(other)))

    def select(self, yes: Term, no: Term) -> LlvmValue:
        """Returns `yes` where this condition holds, and `no` elsewhere; one of them is a value."""
        return LlvmValue(self.code, self.code.select(self.reg, _plain(yes), _plain(no)))

    def convert(self, opcode: str, elem: str) -> LlvmValue:
        """Returns the value converted to elements of type `elem`."""
        return LlvmValue(self.code, self.code.convert(opcode, self.reg, elem))

    def bitcast(self, elem: str) -> LlvmValue:
        """Returns the same bits as elements of type `elem`, which has the same size."""
        return self.convert("bitcast", elem)

    def to_integer(self, elem: str, opcode: str = "fptosi") -> LlvmValue:
        """Returns a float truncated to an integer; a fixed arbitrary value if it does not fit.

        The saturating intrinsics have no vector form on x86, so callers that need saturation add
        selects.
        """
        raw = self.convert(opcode, elem).reg
        return LlvmValue(self.code, self.code.emit(elem, raw.width, f"freeze {raw}"))

    def intrinsic(self, name: str, *operands: Term) -> LlvmValue:
        """Returns the result of the intrinsic `llvm.NAME`, which has this value's type."""
        return LlvmValue(self.code, self.code.intrinsic(name, self.reg, *map(_plain, operands)))

    def call(self, name: str, *operands: Reg) -> LlvmValue:
        """Returns the result of an external function, which has this value's type."""
        reg = self.reg
        return LlvmValue(self.code, self.code.call(name, reg.elem, reg.width, reg, *operands))

    def copysign(self, sign: Term) -> LlvmValue:
        """Returns the value with the sign of `sign`."""
        return self.intrinsic("copysign", sign)

    def fma(self, factor: Term, term: Term) -> LlvmValue:
        """Returns value * factor + term, rounded once (`Code.fma`)."""
        return LlvmValue(self.code, self.code.fma(self.reg, _plain(factor), _plain(term)))


def _plain(term: Term) -> Operand:
    return term.reg if isinstance(term, LlvmValue) else term
