"""Converters of contractions."""

from tcc.frontends.einsum import einsum
from tcc.frontends.onnx.context import Converters
from tcc.frontends.operand import Operand, Refusal


def gemm(
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool,
    transB: bool,
) -> Operand:
    """Returns `alpha * a @ b + beta * c`; the flags say which of `a` and `b` are transposed first.

    `c` broadcasts to the shape of the result and may not enlarge it.
    """
    lhs, rhs = a.ranked(2).swap_axes(0, int(transA)), b.ranked(2).swap_axes(0, int(transB))
    bias = c and _times(c, beta)
    if bias and alpha == 1:
        return lhs.gemm(rhs, bias)
    result = _times(lhs @ rhs, alpha)
    return result + bias.expand(result.shape) if bias else result


def _times(x: Operand, factor: float) -> Operand:
    if not (x.dtype.is_float or factor.is_integer()):
        raise Refusal(f"{x.type!r} is multiplied by {factor}, which is not whole")
    return x if factor == 1 else x * factor


CONVERTERS: Converters = {
    "Gemm": gemm,
    "Einsum": lambda ctx: einsum(ctx.text("equation"), ctx.present()),
}
