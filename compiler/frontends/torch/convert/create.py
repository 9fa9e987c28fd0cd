"""Converters of operators that make tensors from sizes and numbers."""

from __future__ import annotations

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.ir.index import Index, as_int
from tcc.ir.types import F64, I64


def _filled(ctx: CallContext) -> Operand:
    """The result's shape, full of a number; what is undefined is zero."""
    dtype = ctx.result_dtype()
    name = next((n for n in ("fill_value", "value") if n in ctx.arguments), None)
    one = ctx.filled(0, dtype) if name is None else ctx.operand(name, dtype)
    return ctx.expand(ctx.reshape(one, ()), ctx.result_shape())


def _arange(ctx: CallContext) -> Operand:
    dtype = ctx.result_dtype()
    start = ctx.operand("start", dtype) if ctx.has("start") else ctx.filled(0, dtype)
    step = ctx.operand("step", dtype) if ctx.has("step") else ctx.filled(1, dtype)
    if dtype.is_float:
        return _real_range(ctx)
    (size,) = ctx.result_shape()
    # The row's limit only says how long it is; the size says that too.
    return ctx.emit("range", start, ctx.operand("end", dtype), step, size=size)


def _real_range(ctx: CallContext) -> Operand:
    """start + n * step, computed in f64 as torch does."""
    (size,) = ctx.result_shape()
    start = ctx.operand("start", F64) if ctx.has("start") else ctx.filled(0, F64)
    step = ctx.operand("step", F64) if ctx.has("step") else ctx.filled(1, F64)
    places = ctx.cast(counted(ctx, size), F64)
    total = places * step + start
    return ctx.cast(total, ctx.result_dtype())


_LONGEST = 1 << 24  # of a constant


def counted(ctx: CallContext, size: Index) -> Operand:
    """0, 1, ... below `size`, as i64."""
    known = as_int(size)
    if known is not None and known <= _LONGEST:
        return ctx.constant(np.arange(known))
    ends = (ctx.filled(0, I64), ctx.size_scalar(size), ctx.filled(1, I64))
    return ctx.emit("range", *ends, size=size)


def _scalar_tensor(ctx: CallContext) -> Operand:
    return ctx.operand("s", ctx.result_dtype())


def _blackman_window(ctx: CallContext) -> Operand:
    (size,) = ctx.result_shape()
    periodic = ctx.arguments.get("periodic", True)
    return ctx.emit("blackman_window", size=size, periodic=periodic, to=ctx.result_dtype())


_EMPTY = ("empty", "empty_strided", "empty_permuted")

CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys((*_EMPTY, "full", "full_like", "fill"), _filled),
    "arange": _arange,
    "scalar_tensor": _scalar_tensor,
    "blackman_window": _blackman_window,
}
