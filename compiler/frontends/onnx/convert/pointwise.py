"""Converters of pointwise operators whose ONNX form varies with the opset."""

from math import inf

from tcc.frontends.emit import emit, family, full
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.types import BOOL


def _clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Results:
    bounds = [bound and bound.reshape(()) for bound in (min, max)]
    return x if bounds == [None, None] else x.clip(*bounds)


@family
def _variadic(op: str, ctx: NodeContext) -> Results:
    operands = ctx.present()
    if not operands:
        raise Refusal("it has no inputs")
    return operands[0] if len(operands) == 1 else emit(op, *operands)


def _is_inf(x: Operand, *, detect_negative: bool, detect_positive: bool) -> Results:
    """Converts IsInf; its attributes say which infinities count."""
    if detect_negative != detect_positive:
        return x.equals(inf if detect_positive else -inf)
    return x.is_inf() if detect_positive else full(False, BOOL, x.shape)


CONVERTERS: Converters = {
    "Clip": _clip,
    "IsInf": _is_inf,
    **{name: _variadic(name.lower()) for name in ("Max", "Min", "Sum", "Mean")},
}
