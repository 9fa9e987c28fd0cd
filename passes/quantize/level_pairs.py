"""Casts levels to bf16 where they are multiplied with bf16, so that they are multiplied in pairs.

    sum(k) f32(x[i, k]) * (f32(level[k, j]) * s[k // 32, j])        x in bf16
      ->  sum(k) f32(x[i, k]) * (f32(bf16(level[k, j])) * s[k // 32, j])

A level is an integer of at most eight bits, which bf16 represents exactly.  `level_read` reads
levels in the form in which `--weights` stores them.
"""

from dataclasses import replace
from math import inf

from tcc.ir.expr import Expr, Stage
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Const,
    Read,
    Scalar,
    apply,
    cast,
    children,
    read,
)
from tcc.ir.types import BF16, F32, I8, I32
from tcc.ops.formula import fn
from tcc.ops.shapes import replaced
from tcc.schedule.nest import multiplied, multiplied_parts


def is_level(scalar: Scalar) -> bool:
    """Returns True for an integer of at most eight bits that was cast to f32."""
    return isinstance(scalar, Cast) and scalar.dtype is F32 and _exact_bits(scalar.arg) <= 8


def _exact_bits(scalar: Scalar) -> float:
    """Returns how many bits an integer scalar has at most; infinity for a float."""
    if not scalar.dtype.is_integer:
        return inf
    # A shift of signed integers extends the sign, so its result fits a signed type of these bits.
    if isinstance(scalar, Apply) and scalar.function == "shift_right" and scalar.dtype is I32:
        count = scalar.args[1]
        return scalar.dtype.bits - (int(count.value) if isinstance(count, Const) else 0)
    return scalar.dtype.bits


def with_paired_levels(expr: Expr) -> Expr:
    """Returns `expr` with levels cast to bf16 where they are multiplied with bf16."""
    stages = tuple(map(_paired_levels, expr.stages))
    return expr if stages == expr.stages else canonical(replace(expr, stages=stages))


def _paired_levels(stage: Stage) -> Stage:
    factors = multiplied(stage)
    if factors is None:
        return stage
    if not any(isinstance(f, Cast) and f.arg.dtype is BF16 for f in (factors.a, factors.b)):
        return stage
    return replace(stage, body=(_with_bf16_levels(stage.body[0]),))


def _with_bf16_levels(scalar: Scalar) -> Scalar:
    if len(multiplied_parts(scalar)) > 1:
        return apply("mul", *map(_with_bf16_levels, children(scalar)))
    if not is_level(scalar):
        return scalar
    assert isinstance(scalar, Cast)
    # The cast to i8 changes no level. It shows that the cast to bf16 is exact.
    level = scalar.arg if scalar.arg.dtype.bits <= 8 else cast(scalar.arg, I8)
    return cast(cast(level, BF16), F32)


def level_read(node: Read, first: int, axis: int, bits: int) -> Scalar:
    """Returns the quantised level of the weight's element that `node` reads.

    `first` is the operand number of the levels.  If `bits` is 4, two neighbours along `axis` share
    a byte.
    """
    if bits == 8:
        return read(first, node.indices, I8)
    at = node.indices[axis]
    byte = cast(read(first, replaced(node.indices, axis, at // 2), I8), I32)
    # The shift to the left moves the selected half byte to the top; the shift back extends its
    # sign.
    return fn("shift_right", fn("shift_left", byte, 28 - 4 * (at % 2)), 28)
