"""Attention of halves as one op.

ONNX's body rounds scores and shares to halves between its steps, which every fused kernel skips:
the op computes them in f32, and may become one kernel.  What it lacks is the body's.
"""

from math import sqrt

from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.functions import call, typed_body
from tcc.ir.index import as_int
from tcc.ir.types import BF16, F16


def _attention(ctx: NodeContext) -> Results:
    if _is_whole(ctx):
        width = as_int(ctx.input(0).shape[3])
        assert width is not None
        return ctx.emit(
            "attention",
            *ctx.inputs[:3],
            scale=ctx.real("scale", 1 / sqrt(width)),
            is_causal=ctx.flag("is_causal"),
            softcap=ctx.real("softcap"),
        )
    body = typed_body(ctx)
    if body is None:
        raise ctx.fail("it is not supported with these attributes or types")
    return call(ctx, body)


def _is_whole(ctx: NodeContext) -> bool:
    """Queries, keys and values of halves with their heads on an axis, and nothing else."""
    if any(o is not None for o in ctx.inputs[3:]) or any(ctx.wants(n) for n in range(1, 4)):
        return False
    for operand in ctx.present(3):
        if operand.rank != 4 or operand.dtype not in (BF16, F16):
            return False
        if as_int(operand.shape[1]) is None or not as_int(operand.shape[3]):
            return False
    return True


CONVERTERS: Converters = {"Attention": _attention}
