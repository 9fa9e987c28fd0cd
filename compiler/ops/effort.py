"""Finds ops whose NumPy reference may need much more time and memory than their operands
suggest."""

from math import prod
from typing import Any

from tcc.frozen import field_names
from tcc.ir.expr import known_extent
from tcc.ir.index import Index, as_int
from tcc.ir.op import OpSpec, Trait, Types

# An op is laborious if a stage of its expression has more than `_POINTS` points, or if a number in
# its attributes exceeds `_REACH`.
_POINTS, _REACH = 1 << 26, 1 << 18
# The references of these ops are fast in spite of many points, because they call a BLAS library.
_BLAS = frozenset({"matmul", "gemm"})
# The references of ops with these traits take time proportional to their operands and results.
FAST = Trait.MOVEMENT | Trait.ELEMENTWISE


def is_laborious(op: OpSpec, types: Types, attrs: Any) -> bool:
    """True if the reference may take long although operands and results are small.

    Example: a pooling window of 2^30. Constant folding then leaves the op to the run.
    """
    if FAST & op.traits or op.name in _BLAS:
        return False
    if _largest(attrs) > _REACH:
        return True
    stages = () if op.expr is None else op.expr(types, attrs).stages
    sizes = [[known_extent(v) for v in s.loops] for s in stages]
    return any(prod(n or 0 for n in stage_sizes) > _POINTS for stage_sizes in sizes)


def _largest(item: Any) -> int:
    """Returns the largest magnitude among the numbers in attributes."""
    if isinstance(item, Index):
        return abs(as_int(item) or 0)
    if isinstance(item, int):
        return abs(item)
    if isinstance(item, tuple):
        return max(map(_largest, item), default=0)
    return max((_largest(getattr(item, name)) for name in field_names(item)), default=0)
