"""Checks of operands and attributes, and scalars that compute data-dependent indices."""

from collections.abc import Sequence

from tcc.ir.expr.scalar import Scalar, cast, index_value
from tcc.ir.index import Index, IndexLike, as_index, as_int, bounds, const
from tcc.ir.types import I64
from tcc.known import all_known
from tcc.ops.formula import choose, fn


def require(condition: bool, message: str) -> None:
    """Raises ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def none_negative(values: Sequence[Index], message: str) -> None:
    """Raises ValueError with `message` if one of `values` is known to be negative."""
    require(all((as_int(size) or 0) >= 0 for size in values), message)


def sizes(values: Sequence[IndexLike]) -> tuple[int, ...]:
    """Returns sizes as integers; raises ValueError if one of them is symbolic."""
    numbers = all_known(map(as_int, values))
    if numbers is None:
        raise ValueError(f"sizes {list(values)} are not all known")
    return numbers


def integer(size: IndexLike) -> int:
    """Returns a size as an integer; raises ValueError if it is symbolic."""
    return sizes((size,))[0]


def dims(*values: int) -> tuple[Index, ...]:
    """Returns integers as constant sizes."""
    return tuple(const(n) for n in values)


def differ(a: Index, b: Index) -> bool:
    """True if two dims are certainly unequal: constants with different values."""
    x, y = as_int(a), as_int(b)
    return x is not None and y is not None and x != y


def wrapped(index: Scalar, size: IndexLike) -> Scalar:
    """Returns a tensor element as an i64 index into an axis of `size`.

    A negative element counts from the end.
    """
    wide = cast(index, I64)
    return choose(wide < 0, wide + as_index(size), wide)


def clamped(index: Scalar, size: IndexLike) -> Scalar:
    """Returns `index` clamped to [0, size), so that no input can make a read leave the tensor."""
    return fn("max", fn("min", index, index_value(as_index(size) - 1, I64)), 0)


def inside(index: Scalar, size: IndexLike) -> Scalar:
    """Returns the condition `0 <= index < size`."""
    return (index >= 0) & (index < as_index(size))


def guard(size: IndexLike) -> int | None:
    """Returns the fill value of a clamped read: None if the extent is certainly at least 1, else
    0."""
    low = bounds(as_index(size))[0]
    return None if low is not None and low >= 1 else 0
