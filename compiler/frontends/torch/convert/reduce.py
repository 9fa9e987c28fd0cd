"""Converters of reductions and of what runs along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter, Results
from tcc.frontends.torch.convert.create import counted
from tcc.ir.index import Index, const
from tcc.ir.types import BOOL, I64, U8, DType, element_count


def _keepdim(ctx: CallContext) -> bool:
    return bool(ctx.arguments.get("keepdim", False))


def _axes(ctx: CallContext, rank: int) -> tuple[int, ...]:
    """The axes of `dim`: one, several, or all where the call gives none."""
    return ctx.axes_of("dim", rank) if "dim" in ctx.arguments else tuple(range(rank))


def _over(ctx: CallContext, op: str, x: Operand, axes: Sequence[int], keepdim: bool) -> Operand:
    return ctx.emit(op, x, axes=tuple(axes), keepdims=keepdim) if axes else x


def _reduction(op: str) -> Converter:
    """Sum, product, mean: in the element type of the result."""

    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self", ctx.result_dtype())
        return _over(ctx, op, x, _axes(ctx, x.rank), _keepdim(ctx))

    return convert


def _narrow(ctx: CallContext, x: Operand) -> DType:
    """A type in which extrema of `x` may be taken."""
    return x.dtype if x.dtype.is_float or x.dtype in (BOOL, U8) or x.dtype.bits >= 32 else I64


def _extremum(op: str) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self")
        wide = ctx.cast(x, _narrow(ctx, x))
        found = _over(ctx, op, wide, _axes(ctx, x.rank), _keepdim(ctx))
        return ctx.cast(found, x.dtype)

    return convert


def _extremum_at(reduce: str, arg: str) -> Converter:
    """The extremum along one axis, and where it is."""

    def convert(ctx: CallContext) -> Sequence[Operand]:
        x = ctx.operand("self")
        if not x.rank:
            return x, ctx.filled(0, I64)
        axis, keepdim = ctx.axis_of("dim", x.rank), _keepdim(ctx)
        wide = ctx.cast(x, _narrow(ctx, x))
        found = ctx.cast(ctx.emit(reduce, wide, axes=(axis,), keepdims=keepdim), x.dtype)
        whole = ctx.cast(x, U8) if x.dtype is BOOL else x
        return found, ctx.emit(arg, whole, axis=axis, keepdims=keepdim, select_last=False)

    return convert


def _arg(op: str) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self")
        if x.dtype is BOOL:
            x = ctx.cast(x, U8)
        if not x.rank:
            return ctx.filled(0, I64)
        if ctx.has("dim"):
            axis, keepdim = ctx.axis_of("dim", x.rank), _keepdim(ctx)
            return ctx.emit(op, x, axis=axis, keepdims=keepdim, select_last=False)
        flat = ctx.reshape(x, (element_count(x.shape),))
        place = ctx.emit(op, flat, axis=0, keepdims=False, select_last=False)
        return ctx.reshape(place, ctx.result_shape())

    return convert


def _truth(op: str) -> Converter:
    """any, all."""

    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self", BOOL)
        axes = () if ctx.arguments.get("dim") == [] else _axes(ctx, x.rank)  # none, not all
        found = _over(ctx, op, x, axes, _keepdim(ctx))
        return ctx.cast(found, ctx.result_dtype())

    return convert


# ---- moments -------------------------------------------------------------------------------------


def _count(ctx: CallContext, x: Operand, axes: Sequence[int]) -> Operand:
    """How many elements are combined, in the type of `x`."""
    total: Index = math.prod((x.shape[n] for n in axes), start=const(1))
    return ctx.cast(ctx.size_scalar(total), x.dtype)


def _variance(ctx: CallContext) -> tuple[Operand, Operand]:
    """The variance and the mean, in f32 or wider."""
    x = ctx.widened(ctx.operand("self"))
    axes, keepdim = _axes(ctx, x.rank), _keepdim(ctx)
    correction = _correction(ctx)
    mean = _over(ctx, "reduce_mean", x, axes, True)
    gap = x - mean
    total = _over(ctx, "reduce_sum", gap * gap, axes, keepdim)
    left = _count(ctx, x, axes) - correction
    left = ctx.emit("max", left, 0)
    return total / left, mean if keepdim else ctx.squeeze(mean, axes)


def _correction(ctx: CallContext) -> float:
    if "unbiased" in ctx.arguments:
        return float(ctx.flag("unbiased"))
    return ctx.real("correction") if ctx.has("correction") else 1.0


def _var(ctx: CallContext) -> Operand:
    return ctx.cast(_variance(ctx)[0], ctx.result_dtype())


def _var_mean(ctx: CallContext) -> Results:
    return ctx.typed(*_variance(ctx))


def _log_sum_exp(ctx: CallContext) -> Operand:
    x = ctx.operand("self", ctx.result_dtype())
    axes = _axes(ctx, x.rank)
    return _over(ctx, "reduce_log_sum_exp", x, axes, _keepdim(ctx)) if axes else x


def _norm(order: str) -> Converter:
    """The p-norm over axes."""

    def convert(ctx: CallContext) -> Operand:
        dtype = ctx.result_dtype()
        x = ctx.operand("self", dtype)
        p = ctx.real(order) if ctx.has(order) else 2.0
        axes, keepdim = _axes(ctx, x.rank), _keepdim(ctx)
        size = abs(x)
        if math.isinf(p):
            return _over(ctx, "reduce_max" if p > 0 else "reduce_min", size, axes, keepdim)
        if p == 0:
            apart = ctx.cast(~x.equals(0), dtype)
            return _over(ctx, "reduce_sum", apart, axes, keepdim)
        if p in (1, 2):
            return _over(ctx, f"reduce_l{int(p)}", x, axes, keepdim) if axes else size
        size = ctx.widened(size)
        power = ctx.emit("pow", size, ctx.scalar(p, size))
        total = _over(ctx, "reduce_sum", power, axes, keepdim)
        return ctx.cast(ctx.emit("pow", total, ctx.scalar(1 / p, size)), dtype)

    return convert


# ---- running results -----------------------------------------------------------------------------


def _running(op: str) -> Converter:
    def convert(ctx: CallContext) -> Operand:
        x = ctx.operand("self", ctx.result_dtype())
        if not x.rank:
            return x
        axis = ctx.axis_of("dim", x.rank)
        return ctx.emit(op, x, axis=axis, exclusive=False, reverse=False)

    return convert


def _lower_triangle(ctx: CallContext, dim: Index) -> Operand:
    """[i, j]: whether j is at most i."""
    rows = ctx.reshape(counted(ctx, dim), (dim, 1))
    return ctx.reshape(counted(ctx, dim), (1, dim)) <= rows


def _seen(ctx: CallContext, x: Operand, axis: int, fill: float) -> Operand:
    """`x` with the axis last and before it, for each element, the elements up to it."""
    order = (*(n for n in range(x.rank) if n != axis), axis)
    last = ctx.transpose(x, order)
    dim = x.shape[axis]
    wide = ctx.expand(ctx.unsqueeze(last, x.rank - 1), (*last.shape[:-1], dim, dim))
    return ctx.where(_lower_triangle(ctx, dim), wide, fill)


def _back(ctx: CallContext, x: Operand, axis: int) -> Operand:
    """The last axis at `axis` again."""
    order = list(range(x.rank - 1))
    order.insert(axis, x.rank - 1)
    return ctx.transpose(x, order)


def _running_log_sum(ctx: CallContext) -> Operand:
    x = ctx.operand("self", ctx.result_dtype())
    if not x.rank:
        return x
    axis = ctx.axis_of("dim", x.rank)
    seen = _seen(ctx, x, axis, -math.inf)
    found = ctx.reduce("log_sum_exp", seen, x.rank)
    return _back(ctx, found, axis)


def extreme(dtype: DType, below: bool) -> float:
    """What no element is below, or above."""
    if dtype.is_float:
        return -math.inf if below else math.inf
    info = np.iinfo(dtype.carrier)
    return int(info.min if below else info.max)


def _running_extremum(reduce: str, arg: str) -> Converter:
    def convert(ctx: CallContext) -> Sequence[Operand]:
        x = ctx.operand("self")
        if not x.rank:
            return x, ctx.filled(0, I64)
        dtype, axis = x.dtype, ctx.axis_of("dim", x.rank)
        x = ctx.cast(x, dtype if dtype.is_float else I64)
        seen = _seen(ctx, x, axis, extreme(x.dtype, below=reduce == "reduce_max"))
        found = ctx.emit(reduce, seen, axes=(x.rank,), keepdims=False)
        at = ctx.emit(arg, seen, axis=x.rank, keepdims=False, select_last=True)
        return ctx.cast(_back(ctx, found, axis), dtype), _back(ctx, at, axis)

    return convert


CONVERTERS: dict[str, Converter] = {
    "sum": _reduction("reduce_sum"),
    "mean": _reduction("reduce_mean"),
    "prod": _reduction("reduce_prod"),
    "amax": _extremum("reduce_max"),
    "amin": _extremum("reduce_min"),
    "max.default": _extremum("reduce_max"),
    "min.default": _extremum("reduce_min"),
    "max.dim": _extremum_at("reduce_max", "arg_max"),
    "min.dim": _extremum_at("reduce_min", "arg_min"),
    "argmax": _arg("arg_max"),
    "argmin": _arg("arg_min"),
    "any": _truth("reduce_max"),
    "all": _truth("reduce_min"),
    "var": _var,
    "var_mean": _var_mean,
    "logsumexp": _log_sum_exp,
    "linalg_vector_norm": _norm("ord"),
    "cumsum": _running("cum_sum"),
    "cumprod": _running("cum_prod"),
    "logcumsumexp": _running_log_sum,
    "cummax": _running_extremum("reduce_max", "arg_max"),
    "cummin": _running_extremum("reduce_min", "arg_min"),
}
