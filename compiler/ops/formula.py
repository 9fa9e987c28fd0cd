"""Helpers to write expressions: scalar formulas with plain numbers, and expressions of one stage.

f16 and bf16 operands are widened to f32 when read, and the result is rounded once.
"""

from collections.abc import Callable, Sequence

from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import (
    Const,
    Scalar,
    Source,
    StageRef,
    Term,
    apply,
    cast,
    index_value,
    lifted,
    literal,
)
from tcc.ir.index import Index, IndexLike, const
from tcc.ir.types import BF16, F16, F32, I64, DType, TensorType
from tcc.ops.shapes import Point
from tcc.zipped import zip_equal


def fn(function: str, *args: Term) -> Scalar:
    """Returns the scalar `function(args)`.

    Numbers and indices among the arguments take the element type of the last scalar argument.
    """
    dtype = next(a.dtype for a in reversed(args) if not isinstance(a, Index | int | float))
    return apply(function, *(lifted(a, dtype) for a in args))


def choose(condition: Scalar, yes: Term, no: Term) -> Scalar:
    """Returns `yes` where `condition` holds, else `no`; at least one of them is not a plain
    number."""
    return fn("select", condition, yes, no)


def chosen(which: Index, values: Sequence[Scalar]) -> Scalar:
    """Returns `values[which]`, as a chain of selects."""
    value = values[-1]
    for number in reversed(range(len(values) - 1)):
        value = choose(fn("eq", index_value(which, I64), number), values[number], value)
    return value


def widened(dtype: DType) -> DType:
    """Returns the type in which values of `dtype` are computed: f32 for f16 and bf16, else
    `dtype`."""
    return F32 if dtype in (F16, BF16) else dtype


def wide(scalar: Scalar) -> Scalar:
    """Returns `scalar`, widened from f16 or bf16 to f32."""
    return cast(scalar, widened(scalar.dtype))


def number(value: float, dtype: DType) -> Const:
    """Returns `value` as a literal of the type in which values of `dtype` are computed."""
    return literal(value, widened(dtype))


def aligned(shape: Sequence[Index], at: Sequence[Index]) -> tuple[IndexLike, ...]:
    """Returns the indices of the element that broadcasting puts at a point of the result.

    `shape` is the shape of the tensor that broadcasts, and `at` the point.
    """
    tail = at[len(at) - len(shape) :]
    return tuple(0 if dim is const(1) else i for dim, i in zip_equal(shape, tail))


def read_aligned(b: ExprBuilder, source: Source, type: TensorType, at: Sequence[Index]) -> Scalar:
    """Returns the element of `source` that broadcasting puts at the point `at`; it is not
    widened."""
    return b.read(source, *aligned(type.shape, at))


def total(
    b: ExprBuilder,
    shape: Sequence[Index],
    axes: Sequence[int],
    monoid: str,
    *element: Callable[[Point], Scalar],
) -> StageRef:
    """Appends a stage that reduces `axes` of `shape` with `monoid`; its iterators are the other
    axes.

    `element(at)` is the element to reduce at the point `at` of the complete shape.
    """
    at = b.iters(*shape)
    result_axes, over = outside(at, axes), tuple(at[n] for n in axes)
    return b.stage(result_axes, *(e(at) for e in element), over=over, monoid=monoid)


def outside(at: Sequence[Index], axes: Sequence[int]) -> Point:
    """Returns the indices of the point `at` without the indices at the positions `axes`.

    They are the indices into a stage that `total` appends to reduce `axes`.
    """
    return tuple(i for n, i in enumerate(at) if n not in axes)
