"""Finds bounds of the elements of integer tensors, if the graph proves any.

%i = clip(%k, 0, 511) ; %e = expand(%i)     ->     elements of %e are at least 0, at most 511
"""

from collections.abc import Sequence
from typing import TypeAlias

from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.types import integer_limits
from tcc.zipped import zip_equal

Bounds: TypeAlias = tuple[int, int]

# Ops whose results have only elements of their first operand.
_COPIES = frozenset(
    "reshape transpose expand slice tile split identity reverse_sequence "
    "gather gather_elements gather_nd".split()
)
# Ops whose results have only elements of their operands, apart from a condition.
_CHOICES = frozenset({"where", "concat"})
_KNOWN = _COPIES | _CHOICES | {"min", "max", "clip", "cast", "sub"}
_DEPTH = 64  # at most this many nodes are followed from a value to its bounds


def integer_bounds(
    b: GraphBuilder, value: Value, cache: dict[Value, Bounds], depth: int = _DEPTH
) -> Bounds:
    """Returns a lower and an upper bound of the elements of `value`, an integer or bool tensor.

    They are the limits of its type if the graph proves no tighter bounds.  `cache` keeps results
    between calls.
    """
    if value not in cache:
        cache[value] = _bounds(b, value, cache, depth)
    return cache[value]


def _bounds(b: GraphBuilder, value: Value, cache: dict[Value, Bounds], depth: int) -> Bounds:
    limits = integer_limits(value.dtype)
    array, producer = b.array(value), b.producer(value)
    if array is not None and array.size:
        return int(array.min()), int(array.max())
    if producer is None or producer.op.name not in _KNOWN or depth == 0:
        return limits
    operand_bounds = [
        integer_bounds(b, v, cache, depth - 1) if v and v.dtype.is_integer else None
        for v in producer.inputs
    ]
    low, high = _result(producer.op.name, operand_bounds, limits)
    return (low, high) if limits[0] <= low and high <= limits[1] else limits


def _result(op: str, operand_bounds: Sequence[Bounds | None], limits: Bounds) -> Bounds:
    """Returns the bounds of an op's results.

    `operand_bounds` has None for an operand that is absent or not of an integer type.  `limits` are
    the least and the largest number of the result's type.
    """
    ranges = [limits if bounds is None else bounds for bounds in operand_bounds]
    lows, highs = zip_equal(*ranges)
    match op:
        case "min":
            return min(lows), min(highs)
        case "max":
            return max(lows), max(highs)
        case "sub":
            return lows[0] - highs[1], highs[0] - lows[1]
        case "where" | "concat":
            first = op == "where"  # operand 0 of `where` is the condition
            return min(lows[first:]), max(highs[first:])
        case "clip":
            low_bounds, high_bounds = (*operand_bounds[1:], None, None)[:2]
            lowest, largest = low_bounds or limits[:1] * 2, high_bounds or limits[1:] * 2
            low, high = map(max, ranges[0], lowest)
            return min(low, largest[0]), min(high, largest[1])
        case _:
            return ranges[0]
