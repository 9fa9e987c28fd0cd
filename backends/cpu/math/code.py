"""Building blocks of the vector math functions, and one shared copy of each function and width."""

from collections.abc import Callable, Sequence

from tcc.backends.cpu.llvm.text import Code, Reg, number

MathFunction = Callable[..., Reg]


def shared(body: MathFunction) -> MathFunction:
    """Returns `body` as a function of the LLVM module: one for each width, always inlined."""

    def emit(code: Code, *args: Reg) -> Reg:
        like = args[0]
        name = f"tcc.{body.__name__}.{like.width}.{like.elem}"
        code.module.add(name, lambda: _definition(code, name, body, args))
        call = ", ".join(map(str, args))
        return code.emit(like.elem, like.width, f"call {like.type} @{name}({call})")

    emit.__name__, emit.__doc__ = body.__name__, body.__doc__
    return emit


def _definition(code: Code, name: str, body: MathFunction, args: Sequence[Reg]) -> str:
    inner = Code(code.module)
    params = [Reg(a.elem, a.width, f"%x{n}") for n, a in enumerate(args)]
    result = body(inner, *params)
    head = (
        f"define internal {result.type} @{name}({', '.join(map(str, params))}) alwaysinline #0 {{"
    )
    return "\n".join((head, "entry:", *inner.lines, f"  ret {result}", "}"))


def polynomial(code: Code, x: Reg, coefficients: Sequence[float]) -> Reg:
    """Returns `c[0] + c[1] * x + ...` by Horner's rule."""
    value = number(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = code.fma(value, x, c)
    return value


def clamp(code: Code, x: Reg, low: float | None, high: float | None) -> Reg:
    """Returns `x` clamped to the bounds (None: no bound); NaN stays NaN."""
    for predicate, bound in (("fcmp olt", low), ("fcmp ogt", high)):
        if bound is not None:
            x = code.select(code.compare(predicate, x, bound), bound, x)
    return x


def magnitude(code: Code, x: Reg) -> Reg:
    return code.intrinsic("fabs", x)


def lane_by_lane(code: Code, symbol: str, args: Sequence[Reg]) -> Reg:
    """Calls the C library's function `symbol` for each lane."""
    width = args[0].width
    if width > 1:  # unused lanes may be undefined, but arguments of functions must not be
        args = [code.emit(arg.elem, width, f"freeze {arg}") for arg in args]
    lanes = [
        code.call(symbol, args[0].elem, 1, *(code.extract(arg, n) for arg in args))
        for n in range(width)
    ]
    return code.gather(lanes, width)
