"""Sizes of the results of slices, and of the kernels of resizes."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

from tcc.frontends.operand import Operand
from tcc.ir.index import Index, as_int, ceildiv, const, maximum, minimum
from tcc.ir.index.compare import sign
from tcc.zipped import zip_equal

# The scale of each axis.  None stands for the size of the result divided by the size of the input.
Scales: TypeAlias = Sequence["float | None"]

_FAR = (1 << 31) - 1  # a slice with this end, or a larger end, goes to the end of the axis


def from_front(position: Index, dim: Index) -> Index:
    """Returns a position in an axis of `dim`, counted from the front.

    A position that is not known to be negative is unchanged.
    """
    return position + dim if sign(position) == -1 else position


def forward_range(start: Index, end: Index, step: int, dim: Index) -> tuple[Index, Index]:
    """Returns the first position and the length of the slice `start:end:step`, for a positive step.

    The axis has `dim` elements.
    """
    first = from_front(start, dim)
    to_end = (as_int(end) or 0) >= _FAR
    last = dim if to_end else minimum(from_front(end, dim), dim)
    # last - max(first, 0), written so that `first = dim - c` cancels.
    length = maximum(minimum(last - first, last), 0)
    return minimum(maximum(first, 0), dim), ceildiv(length, step)


def backward_range(start: Index, end: Index, step: int, dim: Index) -> tuple[Index, Index]:
    """Returns the first position and the length of the slice `start:end:step`, for a negative step.

    The axis has `dim` elements.
    """
    first = maximum(minimum(from_front(start, dim), dim - 1), 0)
    to_begin = (as_int(end) or 0) <= -_FAR
    last = const(-1) if to_begin else maximum(from_front(end, dim), -1)
    return first, minimum(ceildiv(maximum(first - last, 0), -step), ceildiv(dim, -step))


def widened_taps(x: Operand, sizes: Sequence[Index], scales: Scales, radius: int) -> Index:
    """Returns an upper bound of the elements that an antialiasing kernel reads along any axis.

    The kernel reads `radius` elements on each side. Along an axis that shrinks, the radius is
    divided by the scale; a scale of None stands for the ratio of the sizes.
    """
    halves = [const(radius)]
    for dim, size, scale in zip_equal(x.shape, sizes, scales):
        if scale is None:
            halves.append(ceildiv(dim * radius, maximum(size, 1)))
        else:
            halves.append(const(math.ceil(radius / min(scale, 1.0))))
    return 2 * reduce(maximum, halves)
