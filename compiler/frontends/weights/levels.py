"""Matrices of levels (small integers with a scale for each group of columns) as operands.

    sum(c) x[c] * (level[r, c] * scale[r, c / 32] + offset[r, c / 32])
      =  matmul_levels(x, level, scale)[r] + sum(g) (sum of x in group g) * offset[r, g]

An offset holds a minimum and a zero point.  It is multiplied by a sum of x once for a group, so the
levels are multiplied as they are stored.  Levels of 4 bits share bytes, and so do the lower 4 bits
and the upper bits of levels of 5 and 6 bits.
"""

from collections.abc import Sequence

import numpy as np
from tcc.frontends.emit import constant
from tcc.frontends.operand import Operand
from tcc.frontends.weights.checkpoint import Levels
from tcc.frozen import entity
from tcc.ir.op import Array
from tcc.ir.types import I4, I8
from tcc.ops.algebra.levels import nibbles, packed_codes


@entity
class _Signed:
    """Signed levels, `[rows, columns]`; one has `bits` bits.

    A value is `level * scale + offset`. `scales`, in f16 or f32, and `offsets`, in f32, have an
    element for each `group` columns. None stands for offsets of 0.
    """

    levels: Array
    bits: int
    scales: Array
    offsets: Array | None
    group: int

    def operands(self) -> tuple[Operand, Operand, Operand | None]:
        """Returns levels, scales and upper bits of levels as `matmul_levels` reads them.

        Equal matrices have equal constants, so a table that is read twice is stored once.
        """
        low, high = self.levels, None
        if self.bits < 8:
            low = nibbles(low, 1)
        if self.bits in (5, 6):
            high = _turned(packed_codes(self.levels >> 4, 1, self.bits - 4))
        return _turned(low), _turned(self.scales), high


def _turned(matrix: Array) -> Operand:
    return constant(np.ascontiguousarray(matrix.T))


def _signed(matrix: Levels) -> _Signed:
    """Returns signed levels, which take the place of the levels of `matrix`."""
    levels, bits, zero = matrix.levels, 8, matrix.zero
    if matrix.dtype is not I8:
        bits = 4 + matrix.high_bits
        if matrix.high is not None:
            levels = levels | matrix.high << 4
        middle = 1 << bits - 1
        levels, zero = levels.view(np.int8), zero - middle
        levels -= np.int8(middle)  # in place: a table of tokens has many levels
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
    levels, scales, high = signed.operands()
    form = {"bits": signed.bits, "block": signed.group}
    y = x.emit("matmul_levels", levels, scales, *([] if high is None else [None, high]), **form)
    if signed.offsets is None:
        return y
    groups = signed.offsets.shape[1]
    return y + x.reshape((x.shape[0], groups, signed.group)).sum(2) @ _turned(signed.offsets)


def gathered_rows(matrix: Levels, index: Operand) -> Operand:
    """Returns the rows of a matrix that `index` `[n]` selects, as f32 `[n, columns]`."""
    signed = _signed(matrix)
    levels, *more = signed.operands()
    values = levels.gather_levels(index, *more, bits=signed.bits, block=signed.group)
    if signed.offsets is None:
        return values
    columns = signed.levels.shape[1]
    offsets = _turned(signed.offsets).gather(index, axis=1).swap_axes(0, 1).unsqueeze(2)
    parts = values.reshape((index.shape[0], columns // signed.group, signed.group))
    return (parts + offsets).reshape((index.shape[0], columns))


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
