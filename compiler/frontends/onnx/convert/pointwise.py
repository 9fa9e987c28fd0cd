"""Converters of pointwise operators whose ONNX form varies with the opset."""

from tcc.frontends.emit import emit, family
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.operand import Operand, Refusal


def _clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Results:
    bounds = [bound and bound.reshape(()) for bound in (min, max)]
    return x if bounds == [None, None] else x.clip(*bounds)


@family
def _variadic(op: str, ctx: NodeContext) -> Results:
    operands = ctx.present()
    if not operands:
        raise Refusal("it has no inputs")
    return operands[0] if len(operands) == 1 else emit(op, *operands)


CONVERTERS: Converters = {
    "Clip": _clip,
    **{name: _variadic(name.lower()) for name in ("Max", "Min", "Sum", "Mean")},
}
