"""Converts attention in f16 and bf16 to one op.

The body that ONNX defines rounds the scores and the softmax to the narrow type between its steps,
which no fused kernel does.  The op computes them in f32, and can become one kernel.  Other forms of
attention use ONNX's body.
"""

from math import sqrt

from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.functions import call, typed_body
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Refusal
from tcc.ir.index import as_int
from tcc.ir.types import BF16, F16


def _attention(ctx: NodeContext) -> Results:
    if _is_plain_half(ctx):
        width = as_int(ctx.input(0).shape[3])
        assert width is not None
        scale = ctx.real("scale", 1 / sqrt(width))
        return emit_row("attention", *ctx.inputs[:3], scale=scale)
    body = typed_body(ctx)
    if body is None:
        raise Refusal("it is not supported with these attributes or types")
    return call(ctx, body)


def _is_plain_half(ctx: NodeContext) -> bool:
    """True for queries, keys and values of f16 or bf16 with a head axis, without masks or
    caches."""
    if any(o is not None for o in ctx.inputs[3:]) or any(ctx.wants(n) for n in range(1, 4)):
        return False
    for operand in ctx.present(3):
        if operand.rank != 4 or operand.dtype not in (BF16, F16):
            return False
        if operand.extent(1) is None or not operand.extent(3):
            return False
    return True


CONVERTERS: Converters = {"Attention": _attention}
