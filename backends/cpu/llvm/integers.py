"""Integer functions that wrap and never trap.

`div` truncates. `mod` has the sign of the divisor, and `rem` the sign of the dividend. A divisor of
zero gives 0, and INT_MIN / -1 wraps. A shift by n bits gives the result of n shifts by one bit,
also if n is the width or more.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.llvm.values import LlvmValue

IntegerFunction = Callable[[LlvmValue, LlvmValue, bool], LlvmValue]


def divide(a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Returns the truncated quotient, or 0 for a divisor of zero."""
    by_zero = b.eq(0)
    if not signed:
        safe = by_zero.select(1, b)
        return by_zero.select(0, a.op("udiv", safe))
    by_minus_one = b.eq(-1)
    safe = (by_zero | by_minus_one).select(1, b)
    quotient = a.op("sdiv", safe)
    return by_zero.select(0, by_minus_one.select(0 - a, quotient))


def remainder(a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Returns the remainder of truncated division, or 0 for a divisor of zero."""
    # The divisors 0 and -1 can trap, so they are replaced by 1. The result is then 0, which is
    # right for both.
    unsafe = b.eq(0)
    if signed:
        unsafe = unsafe | b.eq(-1)
    return a.op("srem" if signed else "urem", unsafe.select(1, b))


def modulo(a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Returns the remainder of floor division, or 0 for a divisor of zero."""
    leftover = remainder(a, b, signed)
    if not signed:
        return leftover
    differs = (leftover ^ b) < 0
    inexact = leftover.ne(0)
    return (differs & inexact).select(leftover + b, leftover)


def power(a: LlvmValue, b: LlvmValue, signed: bool) -> LlvmValue:
    """Returns `a ** b`, computed by squaring and wrapped.

    For a negative exponent, the exact power is truncated to an integer.
    """
    code, like = a.code, a.reg
    name = f"tcc.ipow.{'s' if signed else 'u'}.{like.width}.{like.elem}"
    code.module.add(name, lambda: _power_function(code, name, like, signed))
    text = f"call {like.type} @{name}({like}, {b.reg})"
    return LlvmValue(code, code.emit(like.elem, like.width, text))


def _power_function(code: Code, name: str, like: Reg, signed: bool) -> str:
    body = Code(code.module)

    def named(name: str) -> LlvmValue:
        return LlvmValue(body, Reg(like.elem, like.width, f"%{name}"))

    a, b = named("a"), named("b")
    one = a.constant(1).reg
    count = (b < 0).select(0 - b, b) if signed else b
    body.jump("loop")
    body.place("loop")
    result, square, exponent = map(named, ("result", "square", "left"))
    body.lines += [
        f"  %result = phi {like.type} [ {one.text}, %entry ], [ %result.next, %loop ]",
        f"  %square = phi {like.type} [ %a, %entry ], [ %square.next, %loop ]",
        f"  %left = phi {like.type} [ {count.reg.text}, %entry ], [ %left.next, %loop ]",
    ]
    odd = (exponent & one).ne(0)
    next_result = result * square
    body.void(f"%result.next = select {odd.reg}, {next_result.reg}, {result.reg}")
    body.void(f"%square.next = mul {square.reg}, %square")
    body.void(f"%left.next = lshr {exponent.reg}, {one.text}")
    some_left = named("left.next").ne(0)
    body.branch(body.any_lane(some_left.reg), "loop", "done")
    body.place("done")
    result = named("result.next")
    if signed:
        # For a negative exponent, the result is not 0 only if a is 1 or -1. Then a + 1, as an
        # unsigned number, is below 3, and a is not 0.
        is_one = (a + one).compare("icmp ult", 3) & a.ne(0)
        result = (is_one | (b >= 0)).select(result, 0)
    body.void(f"ret {result.reg}")
    head = f"define internal {like.type} @{name}({a.reg}, {b.reg}) nounwind {{\nentry:\n"
    return head + "\n".join(body.lines) + "\n}"


def shift(a: LlvmValue, b: LlvmValue, opcode: str) -> LlvmValue:
    """Returns `a` shifted by the unsigned count `b`; `opcode` is shl, lshr or ashr."""
    in_range = b.compare("icmp ult", a.bits)
    if opcode == "ashr":
        return a >> in_range.select(b, a.bits - 1)
    shifted = a.op(opcode, in_range.select(b, 0))
    return in_range.select(shifted, 0)


def sign(a: LlvmValue, signed: bool) -> LlvmValue:
    """Returns the sign of `a`: -1, 0 or 1."""
    is_nonzero = a.ne(0).convert("zext", a.reg.elem)
    return (a >> (a.bits - 1)) | is_nonzero if signed else is_nonzero


def _plain(opcode: str) -> IntegerFunction:
    return lambda a, b, _: a.op(opcode, b)


def _extremum(which: str) -> IntegerFunction:
    return lambda a, b, signed: a.intrinsic(f"{'s' if signed else 'u'}{which}", b)


BINARY: Mapping[str, IntegerFunction] = MappingProxyType(
    {
        "add": _plain("add"),
        "sub": _plain("sub"),
        "mul": _plain("mul"),
        "bit_and": _plain("and"),
        "bit_or": _plain("or"),
        "bit_xor": _plain("xor"),
        "max": _extremum("max"),
        "min": _extremum("min"),
        "div": divide,
        "mod": modulo,
        "rem": remainder,
        "pow": power,
        "shift_left": lambda a, b, _: shift(a, b, "shl"),
        "shift_right": lambda a, b, signed: shift(a, b, "ashr" if signed else "lshr"),
    }
)
