"""Converters of reductions and of operators along an axis."""

import math
from collections.abc import Sequence

import numpy as np
from tcc.frontends.emit import checked_axes, family, p_norm, size_scalar, widened
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import (
    CallContext,
    Computed,
    Converter,
    Converters,
    Line,
    ResultType,
    named,
    numbers,
)
from tcc.frontends.torch.convert.create import grid
from tcc.ir.index import Index, const
from tcc.ir.types import BOOL, I64, U8, DType


def _axes(ctx: CallContext, rank: int) -> tuple[int, ...]:
    """Returns the axes that `dim` names, in ascending order; all axes if the call has no `dim`."""
    dims = ctx.integers("dim") if ctx.has("dim") else ()
    if not dims or not rank:
        return tuple(range(rank))
    return tuple(sorted(checked_axes(dims, rank)))


def _reduced(ctx: CallContext, op: str, x: Operand) -> Operand:
    """Reduces over the axes of the call."""
    axes = _axes(ctx, x.rank)
    return x.reduce(op, axes, keepdims=ctx.flag("keepdim")) if axes else x


def _reduction(op: str) -> Converter:
    """Returns a converter of a sum, product or mean in the dtype of the result."""

    return lambda ctx: _reduced(ctx, op, ctx.input())


def _narrow(x: Operand) -> Operand:
    """Returns `x` in a dtype for which the op table has minima and maxima."""
    supported = x.dtype.is_float or x.dtype in (BOOL, U8) or x.dtype.bits >= 32
    return x if supported else x.cast(I64)


def _extremum(op: str) -> Converter:
    return lambda ctx, x: _reduced(ctx, op, _narrow(x))


@family
def _extremum_at(op: str, keepdim: bool, line: Line) -> Sequence[Operand]:
    """Returns the extremum along one axis, and its position."""
    x, axis = line
    extremum = _narrow(x).reduce(op, axis, keepdims=keepdim)
    return extremum, numbers(x).emit(f"arg_{op}", axis=axis, keepdims=keepdim)


@family
def _arg(op: str, ctx: CallContext, line: Line, keepdim: bool) -> Operand:
    x, axis = line
    keepdim = keepdim and ctx.has("dim")
    return numbers(x).emit(op, axis=axis, keepdims=keepdim)


@family
def _truth(op: str, ctx: CallContext) -> Operand:
    """Returns `any` or `all`: an extremum of truth values."""
    x = ctx.operand("self", BOOL)
    # An empty list means no axis.
    return x if ctx.arguments.get("dim") == [] else _reduced(ctx, op, x)


# ---- moments -------------------------------------------------------------------------------------


def _variance(ctx: CallContext) -> tuple[Operand, Operand]:
    """Returns the variance and the mean, in f32 or wider."""
    x = widened(ctx.operand("self"))
    axes = _axes(ctx, x.rank)
    mean = x.mean(axes, keepdims=True) if axes else x
    gap = x - mean
    square_sum = _reduced(ctx, "sum", gap * gap)
    count: Index = math.prod((x.shape[n] for n in axes), start=const(1))
    correction = ctx.real("unbiased" if ctx.has("unbiased") else "correction", 1.0)
    divisor = size_scalar(count).cast(x.dtype) - correction
    return square_sum / divisor.maximum(0), mean


def _linalg_vector_norm(ctx: CallContext, x: Computed, keepdim: bool, ord: float = 2.0) -> Operand:
    return p_norm(x, ord, _axes(ctx, x.rank), keepdim)


# ---- along one axis ------------------------------------------------------------------------------


@family
def along_axis(op: str, ctx: CallContext, dtype: ResultType) -> Operand:
    """Adds the op along `dim`, with the dtype of the result."""
    x, axis = ctx.along(dtype)
    return x.emit(op, axis=axis)


def _prefixes(x: Operand, axis: int, fill: float) -> Operand:
    """Returns the prefixes of `x` along `axis`, as [other axes ..., n, k].

    Row n of the last two axes has the elements k of the axis for k <= n, and `fill` for k > n.
    """
    last = x.moved(axis, -1)
    dim = x.shape[axis]
    wide = last.unsqueeze(x.rank - 1).expand((*last.shape[:-1], dim, dim))
    row, column = grid(dim, dim)
    return (column <= row).select(wide, fill)


def _logcumsumexp(ctx: CallContext, dtype: ResultType) -> Operand:
    x, axis = ctx.along(dtype)
    return _prefixes(x, axis, -math.inf).reduce("log_sum_exp", x.rank).moved(x.rank - 1, axis)


def extreme(dtype: DType, below: bool) -> float:
    """Returns the smallest number of `dtype` if `below`, else the largest; infinite for floats."""
    if dtype.is_float:
        return -math.inf if below else math.inf
    info = np.iinfo(dtype.carrier)
    return int(info.min if below else info.max)


@family
def _running_extremum(op: str, line: Line) -> Sequence[Operand]:
    x, axis = line
    x = x.cast(x.dtype if x.dtype.is_float else I64)
    prefixes = _prefixes(x, axis, extreme(x.dtype, below=op == "max"))
    extremum = prefixes.reduce(op, x.rank)
    at = prefixes.emit(f"arg_{op}", axis=x.rank, keepdims=False, select_last=True)
    return tuple(result.moved(x.rank - 1, axis) for result in (extremum, at))


CONVERTERS: Converters = {
    **named(_linalg_vector_norm, _logcumsumexp),
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "prod": _reduction("prod"),
    "amax": _extremum("max"),
    "amin": _extremum("min"),
    "max.default": _extremum("max"),
    "min.default": _extremum("min"),
    "max.dim": _extremum_at("max"),
    "min.dim": _extremum_at("min"),
    "argmax": _arg("arg_max"),
    "argmin": _arg("arg_min"),
    "any": _truth("max"),
    "all": _truth("min"),
    "var": lambda ctx: _variance(ctx)[0],
    "var_mean": _variance,
    "logsumexp": _reduction("log_sum_exp"),
    "cumsum": along_axis("cum_sum"),
    "cumprod": along_axis("cum_prod"),
    "cummax": _running_extremum("max"),
    "cummin": _running_extremum("min"),
}
