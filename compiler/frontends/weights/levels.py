"""Matrices of levels (small integers with a scale for each group of columns) as operands.

Levels of 4 bits share bytes.  Unsigned levels are stored minus 8, because `matmul_levels` reads
signed levels, and the difference moves to the zero point.
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

    A value is `(level - zero) * scale + minimum`. `scales` and `minimums` have an element for each
    `group` columns, in f16 or f32; None stands for minimums of 0.
    """

    levels: Array
    bits: int
    zero: int
    scales: Array
    minimums: Array | None
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
    minimums = None
    if matrix.minimums is not None:
        minimums = _times_units(matrix.minimums, matrix.minimum_units)
    return _Signed(
        levels, bits, zero, _times_units(matrix.scales, matrix.units), minimums, matrix.group
    )


def _times_units(factors: Array, units: Array | None) -> Array:
    """Multiplies neighbouring factors of a row by their unit, which is exact in f32."""
    if units is None:
        return factors
    each = factors.shape[1] // units.shape[1]
    return factors.astype(np.float32) * np.repeat(units.astype(np.float32), each, axis=1)


def matmul_rows(x: Operand, matrix: Levels) -> Operand:
    """Multiplies f32 `x` `[.., columns]` with the rows of a matrix; returns f32 `[.., rows]`."""
    signed = _signed(matrix)
    levels, scales, zeros = signed.stored(), signed.scales, None
    if signed.minimums is not None:
        # Where a scale is 0, a value is its minimum: the zero point of a level 0 with the scale 1.
        is_flat = scales == 0
        scales = np.where(is_flat, scales.dtype.type(1), scales)
        bytes_of_group = levels.shape[1] // scales.shape[1]
        levels = np.where(np.repeat(is_flat, bytes_of_group, axis=1), np.int8(0), levels)
        with np.errstate(all="ignore"):
            quotients = signed.minimums.astype(np.float32) / scales.astype(np.float32)
        zeros = np.where(is_flat, 0, np.float32(signed.zero)) - quotients
    elif signed.zero:
        zeros = np.full(scales.shape, signed.zero, np.int8)
    parts = [levels, scales] if zeros is None else [levels, scales, zeros]
    operands = [constant(np.ascontiguousarray(part.T)) for part in parts]
    return x.matmul_levels(*operands, bits=signed.bits, block=signed.group)


def gathered_rows(matrix: Levels, index: Operand) -> Operand:
    """Returns the rows of a matrix that `index` `[n]` selects, as f32 `[n, columns]`."""
    signed = _signed(matrix)
    zero, groups = signed.zero, signed.scales.shape[1]
    if signed.bits == 4:
        # Unsigned halves of a byte are remainder and quotient; each is a signed level plus 8.
        halves = constant(signed.stored().view(np.uint8) ^ np.uint8(0x88))
        halves, zero = halves.gather(index, axis=0).cast(I32), zero + 8
        high = halves / 16
        numbers = stack([halves - high * 16, high], 2)
    else:
        numbers = constant(signed.levels).gather(index, axis=0)
    rows = numbers.reshape((index.shape[0], groups, signed.group)).cast(F32)
    rows = rows - float(zero) if zero else rows

    def factors(part: Array) -> Operand:
        return constant(part).gather(index, axis=0).cast(F32).unsqueeze(2)

    rows = rows * factors(signed.scales)
    if signed.minimums is not None:
        rows = rows + factors(signed.minimums)
    return rows.reshape((index.shape[0], groups * signed.group))


def stacked_matrices(matrix: Levels, shape: Sequence[int]) -> Operand:
    """Returns a matrix of levels as f32 matrices of `shape`, `[count, rows, columns]`."""
    signed = _signed(matrix)
    groups = (*shape[:2], shape[2] // signed.group)
    scales = signed.scales.astype(np.float32)
    levels = constant(signed.levels.reshape(shape), I4 if signed.bits == 4 else I8)
    matrices = levels.dequantize_linear(
        constant(scales.reshape(groups)), axis=2, block_size=signed.group
    )
    offsets = -signed.zero * scales
    if signed.minimums is not None:
        offsets = offsets + signed.minimums
    if not offsets.any():
        return matrices
    spread = constant(offsets.reshape(groups)).unsqueeze(3).expand((*groups, signed.group))
    return matrices + spread.reshape(shape)
