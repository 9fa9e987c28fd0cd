"""Reductions along axes, and the positions of extrema.

A `_Reduction` describes an op: a function of each element, the monoid, and a function of the
accumulator. f16 and bf16 accumulate in f32.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, IndexLike
from tcc.ir.op import (
    Array,
    OnnxBinding,
    OpSpec,
    Tolerance,
    Trait,
)
from tcc.ir.types import (
    BOOL,
    F64,
    I8,
    I32,
    I64,
    U8,
    U32,
    U64,
    DType,
    TensorType,
    dtype_of,
    element_count,
)
from tcc.ops.formula import fn, wide
from tcc.ops.reference import identity_of, in_f32, truncated
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import (
    FLOATS,
    NUMERIC,
    Point,
    check_axis,
    check_dtype,
    reduced_shape,
)
from tcc.zipped import zip_equal


@frozen
class ReduceAttrs:
    """`axes` are distinct; if there are none, no axis is reduced.

    With `keepdims`, reduced axes stay in the result with extent 1.
    """

    axes: tuple[int, ...]
    keepdims: bool


@frozen
class ArgAttrs:
    """Among equal extrema along `axis` the first wins, or the last if `select_last`."""

    axis: int
    keepdims: bool
    select_last: bool = False


SUMMABLE = (I32, I64, U32, U64, *FLOATS)
ORDERED = (*SUMMABLE, I8, U8, BOOL)

Finish = Callable[[Scalar, Index], Scalar]


@frozen
class _Reduction:
    """The scalar functions of a reduction.

    `element` maps each element before `monoid` combines them. `finish` maps the accumulator and the
    number of combined elements to the result. With `real`, integer operands are computed in f64.
    """

    monoid: str
    element: Callable[[Scalar], Scalar] | None = None
    finish: Finish | None = None
    real: bool = False


def _axes_iters(
    b: ExprBuilder, shape: Sequence[Index], attrs: ReduceAttrs
) -> tuple[Point, Point, tuple[IndexLike, ...]]:
    """Returns (iterators of the result, iterators of the reduced axes, indices into the operand).

    `shape` is the operand's shape.
    """
    axes = attrs.axes
    at = b.iters(*reduced_shape(tuple(shape), axes, attrs.keepdims))
    over = b.iters(*(shape[n] for n in axes))
    result_axes = [n for n in range(len(shape)) if attrs.keepdims or n not in axes]
    place = dict(zip_equal((*result_axes, *axes), (*at, *over)))
    return at, over, tuple(place[n] for n in range(len(shape)))


def _reduce_expr(rule: _Reduction) -> Function:
    def expr(b: ExprBuilder, attrs: ReduceAttrs, x: TensorType) -> StageRef:
        at, over, where = _axes_iters(b, x.shape, attrs)
        element = wide(b.read(0, *where))
        if rule.element is not None:
            element = rule.element(element)
        accumulator = b.stage(at, element, over=over, monoid=rule.monoid)
        if rule.finish is None and element.dtype is x.dtype:
            return accumulator
        at = b.iters(*reduced_shape(x.shape, attrs.axes, attrs.keepdims))
        value: Scalar = b.read(accumulator, *at)
        if rule.real and x.dtype.is_integer:
            value = cast(value, F64)
        if rule.finish is not None:
            value = rule.finish(value, element_count(tuple(x.shape[n] for n in attrs.axes)))
        return b.stage(at, cast(value, x.dtype))

    return expr


def _mean_finish(accumulator: Scalar, count: Index) -> Scalar:
    return accumulator / index_value(count, accumulator.dtype)


def _reduce(
    name: str,
    rule: _Reduction,
    numpy: Callable[..., Any],
    doc: str,
    *,
    dtypes: Sequence[DType] = SUMMABLE,
) -> OpSpec:
    """Returns the op-table row of one reduction; `numpy(x, axes, keepdims)` is its reference."""

    def infer(attrs: ReduceAttrs, x: TensorType) -> TensorType:
        check_dtype(x.dtype, dtypes)
        return TensorType(x.dtype, reduced_shape(x.shape, attrs.axes, attrs.keepdims))

    @in_f32
    def reference(attrs: ReduceAttrs, x: Array) -> Array:
        result = np.asarray(numpy(x, attrs.axes, attrs.keepdims))
        if x.dtype.kind in "iu" and result.dtype.kind == "f":
            return truncated(result, dtype_of(x))
        return result.astype(x.dtype)

    return op_row(
        name, ReduceAttrs, infer, reference, dtypes, doc,
        Tolerance.EXACT if rule.monoid in ("max", "min") else Tolerance.ACCUMULATE,
        _reduce_expr(rule), traits=Trait.REDUCTION,
    )  # fmt: skip


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    sums = _sum(x, axes, keepdims)
    count = prod(x.shape[n] for n in axes)
    if x.dtype.kind in "iu":
        quotients = [abs(int(v)) // max(count, 1) * (1 if v > 0 else -1) for v in sums.ravel()]
        return np.array(quotients, x.dtype).reshape(sums.shape)
    return sums / np.asarray(count, x.dtype)


def _extremum(monoid: str) -> Callable[..., Any]:
    function: Callable[..., Any] = np.max if monoid == "max" else np.min

    def numpy(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
        initial = identity_of(monoid, dtype_of(x))
        return function(x, axis=axes, keepdims=keepdims, initial=initial)

    return numpy


# ---- positions ----------------------------------------------------------------------------------


def _arg_infer(attrs: ArgAttrs, x: TensorType) -> TensorType:
    check_dtype(x.dtype, NUMERIC)
    check_axis(attrs.axis, x.rank)
    return TensorType(I64, reduced_shape(x.shape, (attrs.axis,), attrs.keepdims))


def _arg_expr(monoid: str) -> Function:
    def expr(b: ExprBuilder, attrs: ArgAttrs, x: TensorType) -> StageRef:
        axes = ReduceAttrs((attrs.axis,), attrs.keepdims)
        at, (k,), where = _axes_iters(b, x.shape, axes)
        last = x.shape[attrs.axis] - 1
        place = index_value(last - k if attrs.select_last else k, I64)
        extremum = b.stage(at, b.read(0, *where), place, over=(k,), monoid=monoid)
        position = StageRef(extremum.stage, 1)
        if not attrs.select_last:
            return position
        at = b.iters(*reduced_shape(x.shape, axes.axes, axes.keepdims))
        return b.stage(at, index_value(last, I64) - b.read(position, *at))

    return expr


def _arg_reference(numpy: Callable[..., Any]) -> Function:
    def reference(attrs: ArgAttrs, x: Array) -> Array:
        if attrs.select_last:
            x = np.flip(x, attrs.axis)
        place = numpy(x, axis=attrs.axis, keepdims=attrs.keepdims)
        if attrs.select_last:
            place = x.shape[attrs.axis] - 1 - place
        return np.asarray(place).astype(np.int64)

    return reference


def _arg(name: str, monoid: str, numpy: Callable[..., Any], onnx: str, doc: str) -> OpSpec:
    return op_row(
        name, ArgAttrs, _arg_infer, _arg_reference(numpy), NUMERIC, doc,
        expr=_arg_expr(monoid), traits=Trait.REDUCTION,
        onnx=OnnxBinding(onnx, attrs=(("select_last_index", "select_last"),)),
    )  # fmt: skip


def _square(x: Scalar) -> Scalar:
    return x * x


OPS = (
    _reduce("reduce_sum", _Reduction("sum"), _sum, "The sum."),
    _reduce("reduce_mean", _Reduction("sum", finish=_mean_finish), _mean, "The arithmetic mean."),
    _reduce(
        "reduce_max", _Reduction("max"), _extremum("max"),
        "The largest element; NaN if an element is NaN.",
        dtypes=ORDERED,
    ),
    _reduce(
        "reduce_min", _Reduction("min"), _extremum("min"),
        "The least element; NaN if an element is NaN.",
        dtypes=ORDERED,
    ),
    _reduce(
        "reduce_prod", _Reduction("prod"),
        lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype),
        "The product.",
    ),
    _reduce(
        "reduce_l1", _Reduction("sum", element=lambda x: abs(x)),
        lambda x, axes, keepdims: _sum(np.abs(x), axes, keepdims),
        "The sum of absolute values.",
    ),
    _reduce(
        "reduce_l2",
        _Reduction("sum", element=_square, finish=lambda s, _: fn("sqrt", s), real=True),
        lambda x, axes, keepdims: np.sqrt(_sum(x * x, axes, keepdims)),
        "The square root of the sum of squares.",
    ),
    _reduce(
        "reduce_sum_square", _Reduction("sum", element=_square),
        lambda x, axes, keepdims: _sum(x * x, axes, keepdims),
        "The sum of squares.",
    ),
    _reduce(
        "reduce_log_sum", _Reduction("sum", finish=lambda s, _: fn("log", s), real=True),
        lambda x, axes, keepdims: np.log(_sum(x, axes, keepdims)),
        "The logarithm of the sum.",
    ),
    _arg("arg_max", "argmax", np.argmax, "ArgMax", "The position of the largest element."),
    _arg("arg_min", "argmin", np.argmin, "ArgMin", "The position of the least element."),
)  # fmt: skip
