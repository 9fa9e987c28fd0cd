"""The converter of Attention: one node of the op table, where its form is that row's."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from tcc.frontends.onnx_context import NodeContext
from tcc.frontends.onnx_functions import call, typed_body
from tcc.frontends.onnx_scope import Operand
from tcc.ir.index import as_int, const

_OPERANDS = 3


def _attention(ctx: NodeContext) -> Sequence[Operand | None]:
    """Masks (of which rows may hide all keys), caches, other layouts and scores as a result go as
    the operator's function says."""
    if not _is_whole(ctx):
        body = typed_body(ctx)
        if body is None:
            raise ctx.fail("this form of it is not supported")
        return call(ctx, body)
    q, k, v = (ctx.input(n) for n in range(3))
    depth = as_int(q.shape[-1]) or 1
    attrs = {
        "scale": ctx.real("scale", 1 / sqrt(depth)),
        "is_causal": ctx.flag("is_causal"),
        "softcap": ctx.real("softcap", 0.0),
        "offset": const(0),
    }
    return [ctx.emit("attention", q, k, v, **attrs)]


def _is_whole(ctx: NodeContext) -> bool:
    """Whether heads are an axis of their own, there is nothing but them and one result."""
    more = any(ctx.optional(n) is not None for n in range(_OPERANDS, len(ctx.node.input)))
    wanted = any(ctx.wants(n) for n in range(1, len(ctx.node.output)))
    heads = ctx.input(0).rank == 4 and as_int(ctx.input(0).shape[-1]) is not None
    return heads and not more and not wanted


CONVERTERS = {("", "Attention"): _attention}
