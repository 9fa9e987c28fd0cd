"""The least and the largest element that an integer value can have, as far as the graph tells.

%i = clip(%k, 0, 511) ; %e = expand(%i)      ->      %e lies within 0 and 511, whatever %k is
"""

from collections.abc import Sequence
from typing import TypeAlias

from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.types import integer_limits

Bounds: TypeAlias = tuple[int, int]

# Ops whose results hold elements of their first operand, or of several, and no others.
_COPIES = frozenset(
    "reshape transpose expand slice tile split identity depth_to_space space_to_depth "
    "reverse_sequence gather gather_elements gather_nd".split()
)
_CHOICES = frozenset({"where", "concat"})
_KNOWN = _COPIES | _CHOICES | {"min", "max", "clip", "cast", "sub"}
_DEPTH = 64  # nodes on the way from a value to a constant


def integer_bounds(
    b: GraphBuilder, value: Value, found: dict[Value, Bounds], depth: int = _DEPTH
) -> Bounds:
    """The least and the largest element of `value`, of an integer type or bool; the limits of its
    type where the graph tells no more.  `found` keeps results between calls."""
    if value not in found:
        found[value] = _bounds(b, value, found, depth)
    return found[value]


def _bounds(b: GraphBuilder, value: Value, found: dict[Value, Bounds], depth: int) -> Bounds:
    limits = integer_limits(value.type.dtype)
    array, made = b.array(value), b.producer(value)
    if array is not None and array.size:
        return int(array.min()), int(array.max())
    if made is None or made.op.name not in _KNOWN or depth == 0:
        return limits
    given = [
        integer_bounds(b, v, found, depth - 1) if v and v.type.dtype.is_integer else None
        for v in made.inputs
    ]
    low, high = _result(made.op.name, given, limits)
    return (low, high) if limits[0] <= low and high <= limits[1] else limits


def _result(op: str, given: Sequence[Bounds | None], limits: Bounds) -> Bounds:
    """Bounds of an op's results; those of operands are None where these are absent or no
    integers."""
    known = [limits if bounds is None else bounds for bounds in given]
    lows, highs = zip(*known, strict=True)
    match op:
        case "min":
            return min(lows), min(highs)
        case "max":
            return max(lows), max(highs)
        case "sub":
            return lows[0] - highs[1], highs[0] - lows[1]
        case "where" | "concat":
            first = op == "where"  # behind the condition
            return min(lows[first:]), max(highs[first:])
        case "clip":
            least, most = (*given[1:], None, None)[:2]
            lowest, largest = least or limits[:1] * 2, most or limits[1:] * 2
            low, high = map(max, known[0], lowest)
            return min(low, largest[0]), min(high, largest[1])
        case _:
            return known[0]
