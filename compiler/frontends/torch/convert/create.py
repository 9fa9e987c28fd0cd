"""Converters of operators that make tensors from sizes and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.ir.index import Index, as_int
from tcc.ir.types import F64, I64


def _filled_with(value: Any) -> Converter:
    """The result's shape, full of a number; `value` None is that of `fill_value`."""

    def convert(ctx: CallContext) -> Operand:
        dtype = ctx.result_dtype()
        if value is None:
            name = "fill_value" if "fill_value" in ctx.arguments else "value"
            one = ctx.reshape(ctx.operand(name, dtype), ())
        else:
            one = ctx.filled(value, dtype)
        return ctx.expand(one, ctx.result_shape())

    return convert


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
    total = ctx.emit("add", ctx.emit("mul", places, step), start)
    return ctx.cast(total, ctx.result_dtype())


def counted(ctx: CallContext, size: Index) -> Operand:
    """0, 1, ... below `size`, as i64."""
    known = as_int(size)
    if known is not None:
        return ctx.constant(np.arange(known))
    ends = (ctx.filled(0, I64), ctx.size_scalar(size), ctx.filled(1, I64))
    return ctx.emit("range", *ends, size=size)


def _linspace(ctx: CallContext) -> Operand:
    return ctx.cast(_between(ctx), ctx.result_dtype())


def _between(ctx: CallContext) -> Operand:
    """From both ends towards the middle, as torch does, so that the ends are exact."""
    (size,) = ctx.result_shape()
    start, end = ctx.operand("start", F64), ctx.operand("end", F64)
    places, steps = counted(ctx, size), as_int(size)
    if steps is None:
        raise ctx.fail("an open number of steps is not supported")
    if steps == 1:
        return ctx.reshape(start, (1,))
    gap = ctx.emit("sub", end, start)
    step = ctx.emit("div", gap, ctx.filled(max(steps - 1, 1), F64))
    wide = ctx.cast(places, F64)
    up = ctx.emit("add", start, ctx.emit("mul", step, wide))
    left = ctx.cast(ctx.emit("sub", ctx.filled(steps - 1, I64), places), F64)
    down = ctx.emit("sub", end, ctx.emit("mul", step, left))
    is_low = ctx.emit("less", places, ctx.filled(steps // 2, I64))
    return ctx.where(is_low, up, down)


def _logspace(ctx: CallContext) -> Operand:
    found = ctx.emit("pow", ctx.filled(ctx.real("base"), F64), _between(ctx))
    return ctx.cast(found, ctx.result_dtype())


def _eye(ctx: CallContext) -> Operand:
    rows, columns = ctx.result_shape()
    left = ctx.reshape(counted(ctx, rows), (rows, 1))
    right = ctx.reshape(counted(ctx, columns), (1, columns))
    return ctx.cast(ctx.emit("equal", left, right), ctx.result_dtype())


def _scalar_tensor(ctx: CallContext) -> Operand:
    return ctx.operand("s", ctx.result_dtype())


def _indices_of(upper: bool) -> Converter:
    """The places of a triangle's elements."""

    def convert(ctx: CallContext) -> Operand:
        rows, columns = ctx.integer("row"), ctx.integer("col")
        offset = ctx.integer("offset")
        find = np.triu_indices if upper else np.tril_indices
        found = np.stack(find(rows, offset, columns)).astype(np.int64)
        return ctx.cast(ctx.constant(found), ctx.result_dtype())

    return convert


def _window(op: str) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        (size,) = ctx.result_shape()
        periodic = ctx.flag("periodic") if "periodic" in ctx.arguments else True
        return ctx.emit(op, size=size, periodic=periodic, to=ctx.result_dtype())

    return convert


_EMPTY = (
    "empty",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
)

CONVERTERS: dict[str, Converter] = {
    **{name: _filled_with(0) for name in (*_EMPTY, "zeros", "zeros_like", "new_zeros")},
    **{name: _filled_with(1) for name in ("ones", "ones_like", "new_ones")},
    **{name: _filled_with(None) for name in ("full", "full_like", "new_full", "fill")},
    "arange": _arange,
    "linspace": _linspace,
    "logspace": _logspace,
    "eye": _eye,
    "scalar_tensor": _scalar_tensor,
    "tril_indices": _indices_of(False),
    "triu_indices": _indices_of(True),
    "hann_window": _window("hann_window"),
    "blackman_window": _window("blackman_window"),
}
