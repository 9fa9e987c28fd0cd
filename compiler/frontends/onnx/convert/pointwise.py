"""Converters of pointwise operators whose ONNX form varies with the opset."""

from tcc.frontends.emit import emit, family
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.operand import Operand, Refusal


def _clip(ctx: NodeContext, x: Operand) -> Results:
    bounds = [
        x.like(ctx.real(name)) if ctx.has(name) else ctx.optional(number)
        for number, name in ((1, "min"), (2, "max"))
    ]
    bounds = [o and o.reshape(()) for o in bounds]
    if bounds == [None, None]:
        return x
    return x.clip(*bounds)


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
