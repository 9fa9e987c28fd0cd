"""Matrices of levels (small integers with a scale for each group of columns) as operands.

    sum(c) x[c] * (level[r, c] * scale[r, c / 32] + offset[r, c / 32])
      =  matmul_levels(x, level, scale)[r] + sum(g) (sum of x in group g) * offset[r, g]

An offset holds a minimum and a zero point.  It is multiplied by a sum of x once for a group, so the
levels are multiplied as they are stored.  Levels of 4 bits share bytes.
"""

from collections.abc import Sequence

import numpy as np
from tcc.frontends.emit import constant, stack
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.weights.checkpoint import Levels
from tcc.frozen import entity
from tcc.ir.op import Array
from tcc.ir.types import F32, I4, I8, I32, U4
from tcc.ops.algebra.levels import nibbles


@entity
class _Signed:
    """Levels as i8, `[rows, columns]`; a `bits` of 4 says that they are from -8 to 7.

    A value is `level * scale + offset`. `scales`, in f16 or f32, and `offsets`, in f32, have an
    element for each `group` columns. None stands for offsets of 0.
    """

    levels: Array
    bits: int
    scales: Array
    offsets: Array | None
    group: int

    def stored(self) -> Array:
        """Returns the levels as they lie in memory, two to a byte if they have 4 bits."""
        return nibbles(self.levels, 1) if self.bits == 4 else self.levels


def _signed(matrix: Levels) -> _Signed:
    levels, bits, zero = matrix.levels, 8, matrix.zero
    if matrix.high is not None:
        levels = (levels | matrix.high << 4).view(np.int8)
    elif matrix.dtype is U4:
        levels, bits, zero = levels.view(np.int8) - np.int8(8), 4, zero - 8
    elif matrix.dtype is not I8:
        raise Refusal(f"levels of type {matrix.dtype} are not supported")
    scales, offsets = _times_units(matrix.scales, matrix.units), None
    if zero or matrix.minimums is not None:
        offsets = scales.astype(np.float32) * -zero
    if matrix.minimums is not None:
        offsets = offsets + _times_units(matrix.minimums, matrix.minimum_units)
    return _Signed(levels, bits, scales, offsets, matrix.group)


def _times_units(factors: Array, units: Array | None) -> Array:
    """Multiplies neighbouring factors of a row by their unit, which is exact in f32."""
    if units is None:
        return factors
    repeats = factors.shape[1] // units.shape[1]
    return factors.astype(np.float32) * np.repeat(units.astype(np.float32), repeats, axis=1)


def matmul_rows(x: Operand, matrix: Levels) -> Operand:
    """Multiplies f32 `x` `[n, columns]` with the rows of a matrix; returns f32 `[n, rows]`."""
    signed = _signed(matrix)
    levels, scales = (np.ascontiguousarray(part.T) for part in (signed.stored(), signed.scales))
    y = x.matmul_levels(constant(levels), constant(scales), bits=signed.bits, block=signed.group)
    if signed.offsets is None:
        return y
    sums = x.reshape((x.shape[0], len(scales), signed.group)).sum(2)
    return y + sums @ constant(np.ascontiguousarray(signed.offsets.T))


def gathered_rows(matrix: Levels, index: Operand) -> Operand:
    """Returns the rows of a matrix that `index` `[n]` selects, as f32 `[n, columns]`."""
    signed = _signed(matrix)
    if signed.bits == 4:
        # Unsigned halves of a byte are remainder and quotient; each is a signed level plus 8.
        halves = constant(signed.stored().view(np.uint8) ^ np.uint8(0x88))
        halves = halves.gather(index, axis=0).cast(I32)
        high = halves / 16
        levels = stack([halves - high * 16, high], 2) - 8
    else:
        levels = constant(signed.levels).gather(index, axis=0)
    rows, groups = index.shape[0], signed.scales.shape[1]
    values = levels.reshape((rows, groups, signed.group)).cast(F32)
    values = values * constant(signed.scales).gather(index, axis=0).cast(F32).unsqueeze(2)
    if signed.offsets is not None:
        values = values + constant(signed.offsets).gather(index, axis=0).unsqueeze(2)
    return values.reshape((rows, groups * signed.group))


def stacked_matrices(matrix: Levels, shape: Sequence[int]) -> Operand:
    """Returns a matrix of levels as f32 matrices of `shape`, `[count, rows, columns]`."""
    signed = _signed(matrix)
    groups = (*shape[:2], shape[2] // signed.group)
    scales = constant(signed.scales.astype(np.float32).reshape(groups))
    levels = constant(signed.levels.reshape(shape), I4 if signed.bits == 4 else I8)
    matrices = levels.dequantize_linear(scales, axis=2, block_size=signed.group)
    if signed.offsets is None:
        return matrices
    offsets = constant(signed.offsets.reshape(groups)).unsqueeze(3)
    return matrices + offsets.expand((*groups, signed.group)).reshape(shape)
