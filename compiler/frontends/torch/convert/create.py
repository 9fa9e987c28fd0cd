"""Converters of operators that create tensors from sizes and numbers."""

import math

import numpy as np
from tcc.frontends.emit import constant, filled, size_scalar
from tcc.frontends.emit import counted as range_below
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import CallContext, Converters, ResultShape, ResultType, named
from tcc.ir.index import Index, as_int
from tcc.ir.types import F64


def _filled(ctx: CallContext, dtype: ResultType, shape: ResultShape) -> Operand:
    """Returns a tensor of the result's shape, filled with a number.

    Contents that torch leaves undefined are zero.
    """
    name = next((n for n in ("fill_value", "value") if n in ctx.arguments), None)
    one = filled(0, dtype) if name is None else ctx.operand(name, dtype)
    return one.reshape(()).expand(shape)


def _arange(ctx: CallContext, dtype: ResultType, shape: ResultShape) -> Operand:
    """Returns start + n * step; real numbers are computed in f64, as in torch."""
    wide = F64 if dtype.is_float else dtype
    (size,) = shape
    start, step = ctx.operand("start", wide, 0), ctx.operand("step", wide, 1)
    if dtype.is_float:
        return counted(size).cast(F64) * step + start
    # The op takes the length from `size` and has no other use for `end`.
    return start.range(ctx.operand("end", dtype), step, size=size)


_LONGEST = 1 << 24  # longer sequences are computed at run time, not stored


def counted(size: Index) -> Operand:
    """Returns 0, 1, ... below `size`, as i64."""
    number = as_int(size)
    if number is not None and number <= _LONGEST:
        return constant(np.arange(number))
    return range_below(size)


def grid(rows: Index, columns: Index) -> tuple[Operand, Operand]:
    """Returns the row numbers of a matrix as a column, and the column numbers as a row."""
    return counted(rows).reshape((rows, 1)), counted(columns).reshape((1, columns))


def _blackman_window(shape: ResultShape, periodic: bool = True) -> Operand:
    (size,) = shape
    period = size_scalar(size if periodic else size - 1, F64).maximum(1)
    angle = counted(size).cast(F64) / period * (2 * math.pi)
    return (angle * 2).cos() * 0.08 - angle.cos() * 0.5 + 0.42


_EMPTY = ("empty", "empty_strided", "empty_permuted")

CONVERTERS: Converters = {
    **named(_arange, _blackman_window),
    **dict.fromkeys((*_EMPTY, "full", "full_like", "fill"), _filled),
    "scalar_tensor": lambda ctx: ctx.operand("s"),
}
