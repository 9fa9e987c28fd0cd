"""Cumulative sums and products along one axis.

The expression combines x[i - k] over all k from 0 to n - 1 for the result at i. Reads before the
first element give the monoid's identity. The work is quadratic in the size n of the axis, so a C
function computes long axes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import as_int
from tcc.ir.op import (
    Array,
    OpSpec,
    Tolerance,
    Trait,
)
from tcc.ir.types import I32, I64, U32, U64, TensorType
from tcc.ops.formula import wide
from tcc.ops.reference import in_f32
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import FLOATS, check_axis, check_dtype, replaced

_DTYPES = (I32, I64, U32, U64, *FLOATS)


@frozen
class CumSumAttrs:
    """The attributes of a cumulative sum or product along `axis`.

    `exclusive` leaves out the element itself. `reverse` accumulates from the last element back.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False


def _infer(attrs: CumSumAttrs, x: TensorType) -> TensorType:
    check_dtype(x.dtype, _DTYPES)
    check_axis(attrs.axis, x.rank)
    return x


def _expr(monoid: str, identity: int) -> Function:
    def expr(b: ExprBuilder, attrs: CumSumAttrs, x: TensorType) -> StageRef:
        at = b.point(x)
        (k,) = b.iters(x.shape[attrs.axis])
        back = k + 1 if attrs.exclusive else k
        here = at[attrs.axis]
        where = replaced(at, attrs.axis, here + back if attrs.reverse else here - back)
        return b.stage(at, wide(b.read(0, *where, fill=identity)), over=(k,), monoid=monoid)

    return expr


# Up to this many elements along the axis, the expression is faster, because it fuses with
# neighbouring ops.
_SHORT = 32


def _is_long(attrs: CumSumAttrs, x: TensorType) -> bool:
    """True if the C function computes this op instead of the expression.

    f16 and bf16 always use the expression, because it accumulates them in f32.
    """
    size = as_int(x.shape[attrs.axis])
    return x.dtype.bytes >= 4 and (size is None or size > _SHORT)


def _running(numpy: Callable[..., Any], identity: int, x: Array, attrs: CumSumAttrs) -> Array:
    along = np.flip(x, attrs.axis) if attrs.reverse else x
    result = np.asarray(numpy(along, axis=attrs.axis, dtype=x.dtype))
    if attrs.exclusive and x.shape[attrs.axis]:
        first = np.full_like(np.take(result, [0], attrs.axis), identity)
        result = np.concatenate([first, np.delete(result, -1, attrs.axis)], attrs.axis)
    return np.flip(result, attrs.axis) if attrs.reverse else result


def _row(name: str, monoid: str, identity: int, numpy: Callable[..., Any], doc: str) -> OpSpec:
    @in_f32
    def reference(attrs: CumSumAttrs, x: Array) -> Array:
        return _running(numpy, identity, x, attrs)

    return op_row(
        name, CumSumAttrs, _infer, reference, _DTYPES,
        doc, Tolerance.ACCUMULATE, _expr(monoid, identity), call="running", calls=_is_long,
        traits=Trait.REDUCTION,
    )  # fmt: skip


OPS = (
    _row("cum_sum", "sum", 0, np.cumsum, "The sum of all elements up to each element."),
    _row("cum_prod", "prod", 1, np.cumprod, "The product of all elements up to each element."),
)
