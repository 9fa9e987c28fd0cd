"""Converters of reductions, softmax and other operators along axes."""

from functools import partial

from tcc.frontends.emit import checked_axis, counted, family
from tcc.frontends.onnx.axes import around, is_late, named_axes, reduce_along, run_axes
from tcc.frontends.onnx.context import Axis, Converters, NodeContext, Results, static_ints
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.types import element_count

_REDUCTIONS = "sum mean max min prod l1 l2 sum_square log_sum log_sum_exp".split()


@family
def _reduction(
    op: str,
    x: Operand,
    axes: Operand | None = None,
    *,
    keepdims: bool,
    noop_with_empty_axes: bool,
) -> Results:
    if is_late(axes):
        return reduce_along(op, x, run_axes(axes, x.rank), keepdims)
    every = () if noop_with_empty_axes else range(x.rank)
    over = tuple(sorted(named_axes(axes, x.rank, every) or every))
    if not over and op in ("sum", "mean", "max", "min"):
        return x
    return x.reduce(op, over, keepdims=keepdims)


@family
def _softmax(op: str, ctx: NodeContext, x: Operand, *, axis: Axis) -> Results:
    return along_axis(op, x, axis, ctx.opset)


def along_axis(op: str, x: Operand, axis: int, opset: int) -> Operand:
    """Emits `op`, such as softmax, along `axis`.

    Before opset 13 the operators work on the rows of a matrix, to which they reshape x. Its columns
    are the elements of `axis` and all later axes.
    """
    make = _hardmax if op == "hardmax" else partial(Operand.emit, op=op)
    if opset >= 13 or axis == x.rank - 1:
        return make(x, axis=axis)
    rows, columns = element_count(x.shape[:axis]), element_count(x.shape[axis:])
    return make(x.reshape((rows, columns)), axis=1).reshape(x.shape)


def _hardmax(x: Operand, axis: int) -> Operand:
    """Returns 1 at the first largest element along `axis`, else 0."""
    place = x.arg_max(axis=axis, keepdims=True)
    along = counted(x.shape[axis]).trailing(x.rank - 1 - axis)
    return along.equals(place).cast(x.dtype)


def _top_k(
    x: Operand, k: Operand, *, axis: Axis, largest: bool = True, sorted: bool = True
) -> Results:
    return x.emit_all("top_k", axis=axis, k=k.as_size("k"), largest=largest, sorted=sorted)


@family
def _cumulative(op: str, x: Operand, axis_operand: Operand) -> Results:
    if axis_operand.type.static_shape not in ((), (1,)):
        raise Refusal(f"the axis is one number, not {axis_operand.type!r}")
    if axis_operand.array is None:
        (late,) = run_axes(axis_operand, x.rank)
        (sums,) = emit_row(op, around(x, late), axis=1)
        return sums.reshape(x.shape)
    (axis,) = static_ints(axis_operand, "the axis")
    return emit_row(op, x, axis=checked_axis(axis, x.rank))


CONVERTERS: Converters = {
    **{f"Reduce{op.title().replace('_', '')}": _reduction(op) for op in _REDUCTIONS},
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Hardmax": _softmax("hardmax"),
    "TopK": _top_k,
    "CumSum": _cumulative("cum_sum"),
    "CumProd": _cumulative("cum_prod"),
}
