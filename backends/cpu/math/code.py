"""Building blocks of the vector math functions, and one shared copy of each function and width."""

from collections.abc import Callable, Sequence
from functools import wraps

from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.llvm.values import LlvmValue

MathFunction = Callable[..., LlvmValue]


def shared(body: MathFunction) -> MathFunction:
    """Returns `body` as a function of the LLVM module: one for each width, always inlined."""

    @wraps(body)
    def emit(*args: LlvmValue) -> LlvmValue:
        code, like = args[0].code, args[0].reg
        name = f"tcc.{body.__name__}.{like.width}.{like.elem}"
        code.module.add(name, lambda: _definition(name, body, args))
        call = ", ".join(str(arg.reg) for arg in args)
        text = f"call {like.type} @{name}({call})"
        return LlvmValue(code, code.emit(like.elem, like.width, text))

    return emit


def _definition(name: str, body: MathFunction, args: Sequence[LlvmValue]) -> str:
    inner = Code(args[0].code.module)
    params = [Reg(a.reg.elem, a.reg.width, f"%x{n}") for n, a in enumerate(args)]
    result = body(*(LlvmValue(inner, param) for param in params)).reg
    head = (
        f"define internal {result.type} @{name}({', '.join(map(str, params))}) alwaysinline #0 {{"
    )
    return "\n".join((head, "entry:", *inner.lines, f"  ret {result}", "}"))


def polynomial(x: LlvmValue, coefficients: Sequence[float]) -> LlvmValue:
    """Returns `c[0] + c[1] * x + ...` by Horner's rule."""
    value = x.constant(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value.fma(x, c)
    return value


def clamp(x: LlvmValue, low: float | None, high: float | None) -> LlvmValue:
    """Returns `x` clamped to the bounds (None: no bound); NaN stays NaN."""
    if low is not None:
        x = (x < low).select(low, x)
    return x if high is None else (x > high).select(high, x)


def lane_by_lane(symbol: str, args: Sequence[LlvmValue]) -> LlvmValue:
    """Calls the C library's function `symbol` for each lane."""
    code, regs = args[0].code, [arg.reg for arg in args]
    elem, width = regs[0].elem, regs[0].width
    if width > 1:  # unused lanes may be undefined, but arguments of functions must not be
        regs = [code.emit(reg.elem, width, f"freeze {reg}") for reg in regs]
    lanes = [
        code.call(symbol, elem, 1, *(code.extract(reg, n) for reg in regs)) for n in range(width)
    ]
    return LlvmValue(code, code.gather(lanes, width))
