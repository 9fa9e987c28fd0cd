"""Writing expressions: scalar formulas with plain numbers, and pointwise expressions.

f16 and bf16 operands are widened to f32 when read and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import (
    Const,
    Scalar,
    Source,
    StageRef,
    apply,
    cast,
    index_value,
    literal,
)
from tcc.ir.index import Index, IndexLike, const
from tcc.ir.op import Types
from tcc.ir.types import BF16, F16, F32, I64, DType, TensorType
from tcc.ops.shapes import Point, broadcast_types

Term = Scalar | bool | int | float
Body = Callable[..., Scalar]


def fn(function: str, *args: Term) -> Scalar:
    """`function(args)`; plain numbers take the element type of the first other argument."""
    dtype = next(a.dtype for a in reversed(args) if not isinstance(a, bool | int | float))
    return apply(function, *(_lift(a, dtype) for a in args))


def _lift(term: Term, dtype: DType) -> Scalar:
    return literal(term, dtype) if isinstance(term, bool | int | float) else term


def choose(condition: Scalar, yes: Term, no: Term) -> Scalar:
    """`yes` where `condition`, else `no`; at least one of the two is not a plain number."""
    dtype = next(a.dtype for a in (yes, no) if not isinstance(a, bool | int | float))
    return apply("select", condition, _lift(yes, dtype), _lift(no, dtype))


def chosen(which: Index, values: Sequence[Scalar]) -> Scalar:
    """`values[which]`."""
    found = values[-1]
    for number in reversed(range(len(values) - 1)):
        found = choose(fn("eq", index_value(which, I64), number), values[number], found)
    return found


def widened(dtype: DType) -> DType:
    """The type to compute in: f32 for f16 and bf16, else the type itself."""
    return F32 if dtype in (F16, BF16) else dtype


def wide(scalar: Scalar) -> Scalar:
    """`scalar` in the type to compute in."""
    return cast(scalar, widened(scalar.dtype))


def number(value: float, dtype: DType) -> Const:
    """A literal of the type to compute in."""
    return literal(value, widened(dtype))


def aligned(shape: Sequence[Index], at: Sequence[Index]) -> tuple[IndexLike, ...]:
    """Where a tensor of `shape` that broadcasts is read at the point `at` of the result."""
    tail = at[len(at) - len(shape) :]
    return tuple(0 if dim is const(1) else i for dim, i in zip(shape, tail, strict=True))


def read_aligned(b: ExprBuilder, source: Source, type: TensorType, at: Sequence[Index]) -> Scalar:
    """The element of `source` (of type `type`) that belongs to the point `at`, not widened."""
    return b.read(source, *aligned(type.shape, at))


def pointwise(types: Types, body: Body, result: DType) -> Expr:
    """One stage over the broadcast shape.

    `body` gets a widened scalar for each operand (None for an absent one); what it returns is
    rounded to `result`.
    """
    b = ExprBuilder(*types)
    at = b.iters(*broadcast_types(types))
    operands = [None if t is None else wide(read_aligned(b, n, t, at)) for n, t in enumerate(types)]
    return b.finish(at, cast(body(*operands), result))


def total(
    b: ExprBuilder,
    shape: Sequence[Index],
    axes: Sequence[int],
    monoid: str,
    *element: Callable[[Point], Scalar],
) -> StageRef:
    """A stage over the axes of `shape` that are not in `axes`, combining along those that are.

    `element(at)` is what is combined at the point `at` of the whole shape.
    """
    at = b.iters(*shape)
    kept, over = outside(at, axes), tuple(at[n] for n in axes)
    body = (e(at) for e in element)
    return b.stage(kept, *body, over=over, monoid=monoid if over else None)


def outside(at: Sequence[Index], axes: Sequence[int]) -> Point:
    """The part of a point that lies outside `axes`: where to read what `total` made."""
    return tuple(i for n, i in enumerate(at) if n not in axes)
