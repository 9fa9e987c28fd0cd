"""Integer functions that wrap and never trap.

`div` truncates. `mod` has the sign of the divisor, and `rem` the sign of the dividend. A divisor of
zero gives 0, and INT_MIN / -1 wraps. A shift by n bits gives the result of n shifts by one bit,
also if n is the width or more.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tcc.backends.cpu.llvm.text import Code, Reg, number

IntegerFunction = Callable[[Code, Reg, Reg, bool], Reg]


def divide(code: Code, a: Reg, b: Reg, signed: bool) -> Reg:
    """Returns the truncated quotient, or 0 for a divisor of zero."""
    by_zero = code.compare("icmp eq", b, 0)
    if not signed:
        safe = code.select(by_zero, 1, b)
        return code.select(by_zero, 0, code.op("udiv", a, safe))
    by_minus_one = code.compare("icmp eq", b, -1)
    safe = code.select(code.op("or", by_zero, by_minus_one), 1, b)
    quotient = code.op("sdiv", a, safe)
    negated = code.select(by_minus_one, code.op("sub", 0, a), quotient)
    return code.select(by_zero, 0, negated)


def remainder(code: Code, a: Reg, b: Reg, signed: bool) -> Reg:
    """Returns the remainder of truncated division, or 0 for a divisor of zero."""
    # The divisors 0 and -1 can trap, so they are replaced by 1. The result is then 0, which is
    # right for both.
    unsafe = code.compare("icmp eq", b, 0)
    if signed:
        unsafe = code.op("or", unsafe, code.compare("icmp eq", b, -1))
    safe = code.select(unsafe, 1, b)
    return code.op("srem" if signed else "urem", a, safe)


def modulo(code: Code, a: Reg, b: Reg, signed: bool) -> Reg:
    """Returns the remainder of floor division, or 0 for a divisor of zero."""
    leftover = remainder(code, a, b, signed)
    if not signed:
        return leftover
    differs = code.compare("icmp slt", code.op("xor", leftover, b), 0)
    inexact = code.compare("icmp ne", leftover, 0)
    return code.select(code.op("and", differs, inexact), code.op("add", leftover, b), leftover)


def power(code: Code, a: Reg, b: Reg, signed: bool) -> Reg:
    """Returns `a ** b`, computed by squaring and wrapped.

    For a negative exponent, the exact power is truncated to an integer.
    """
    name = f"tcc.ipow.{'s' if signed else 'u'}.{a.width}.{a.elem}"
    code.module.add(name, lambda: _power_function(code, name, a, signed))
    return code.emit(a.elem, a.width, f"call {a.type} @{name}({a}, {b})")


def _power_function(code: Code, name: str, like: Reg, signed: bool) -> str:
    body = Code(code.module)
    a, b = Reg(like.elem, like.width, "%a"), Reg(like.elem, like.width, "%b")
    one = number(a, 1)
    count = b
    if signed:
        negative = body.compare("icmp slt", b, 0)
        count = body.select(negative, body.op("sub", 0, b), b)
    body.jump("loop")
    body.place("loop")
    state = {n: Reg(like.elem, like.width, f"%{n}") for n in ("result", "square", "left")}
    body.lines += [
        f"  %result = phi {a.type} [ {one.text}, %entry ], [ %result.next, %loop ]",
        f"  %square = phi {a.type} [ %a, %entry ], [ %square.next, %loop ]",
        f"  %left = phi {a.type} [ {count.text}, %entry ], [ %left.next, %loop ]",
    ]
    odd = body.compare("icmp ne", body.op("and", state["left"], one), 0)
    next_result = body.op("mul", state["result"], state["square"])
    body.void(f"%result.next = select {odd}, {next_result}, {state['result']}")
    body.void(f"%square.next = mul {state['square']}, %square")
    body.void(f"%left.next = lshr {state['left']}, {one.text}")
    some_left = body.compare("icmp ne", Reg(a.elem, a.width, "%left.next"), 0)
    body.branch(body.any_lane(some_left), "loop", "done")
    body.place("done")
    result = Reg(a.elem, a.width, "%result.next")
    if signed:
        # For a negative exponent, the result is not 0 only if a is 1 or -1. Then a + 1, as an
        # unsigned number, is below 3, and a is not 0.
        is_one = body.compare("icmp ult", body.op("add", a, one), 3)
        is_one = body.op("and", is_one, body.compare("icmp ne", a, 0))
        is_whole = body.compare("icmp sge", b, 0)
        result = body.select(body.op("or", is_one, is_whole), result, 0)
    body.void(f"ret {result}")
    head = f"define internal {a.type} @{name}({a}, {b}) nounwind {{\nentry:\n"
    return head + "\n".join(body.lines) + "\n}"


def shift(code: Code, a: Reg, b: Reg, opcode: str) -> Reg:
    """Returns `a` shifted by the unsigned count `b`; `opcode` is shl, lshr or ashr."""
    in_range = code.compare("icmp ult", b, int(a.elem[1:]))
    if opcode == "ashr":
        return code.op("ashr", a, code.select(in_range, b, int(a.elem[1:]) - 1))
    shifted = code.op(opcode, a, code.select(in_range, b, 0))
    return code.select(in_range, shifted, 0)


def sign(code: Code, a: Reg, signed: bool) -> Reg:
    """Returns the sign of `a`: -1, 0 or 1."""
    is_nonzero = code.convert("zext", code.compare("icmp ne", a, 0), a.elem)
    if not signed:
        return is_nonzero
    return code.op("or", code.op("ashr", a, int(a.elem[1:]) - 1), is_nonzero)


def _plain(opcode: str) -> IntegerFunction:
    return lambda code, a, b, _: code.op(opcode, a, b)


def _extremum(which: str) -> IntegerFunction:
    def emit(code: Code, a: Reg, b: Reg, signed: bool) -> Reg:
        return code.intrinsic(f"{'s' if signed else 'u'}{which}", a, b)

    return emit


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
        "shift_left": lambda code, a, b, _: shift(code, a, b, "shl"),
        "shift_right": lambda code, a, b, signed: shift(code, a, b, "ashr" if signed else "lshr"),
    }
)
