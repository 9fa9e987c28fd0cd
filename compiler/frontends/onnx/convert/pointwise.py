"""Converters of pointwise operators whose ONNX form varies with the opset."""

from __future__ import annotations

from tcc.frontends.onnx.context import Converter, NodeContext, Results


def _clip(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    if ctx.opset >= 11:
        low, high = ctx.optional(1), ctx.optional(2)
    else:
        low = ctx.filled(ctx.real("min"), x.dtype) if ctx.has("min") else None
        high = ctx.filled(ctx.real("max"), x.dtype) if ctx.has("max") else None
    bounds = [None if o is None else ctx.reshape(o, ()) for o in (low, high)]
    if bounds == [None, None]:
        return [x]
    return [ctx.emit("clip", x, *bounds)]


def _variadic(op: str) -> Converter:
    def convert(ctx: NodeContext) -> Results:
        operands = ctx.present()
        if not operands:
            raise ctx.fail("it has no inputs")
        return [operands[0] if len(operands) == 1 else ctx.emit(op, *operands)]

    return convert


CONVERTERS: dict[str, Converter] = {
    "Clip": _clip,
    **{name: _variadic(name.lower()) for name in ("Max", "Min", "Sum", "Mean")},
}
