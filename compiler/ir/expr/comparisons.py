"""Integers and comparisons of scalars as expressions of indices."""

from types import MappingProxyType

from tcc.ir.expr.scalar import Apply, Cast, Const, IndexValue, Scalar
from tcc.ir.index import Index, bounds, const
from tcc.ir.types import I64, integer_limits


def index_of(scalar: Scalar) -> Index | None:
    """The index that an integer is, where neither it nor what it is made of wraps; no index wraps
    in i64."""
    if not scalar.dtype.is_integer:
        return None
    found: Index | None = None
    match scalar:
        case Const(value=value):
            found = const(int(value))
        case IndexValue(index=index):
            found = index
        case Cast(arg=arg):
            found = index_of(arg)
        case Apply(function="add" | "sub" | "mul" as function, args=args):
            a, b = map(index_of, args)
            if a is not None and b is not None:
                found = a + b if function == "add" else a - b if function == "sub" else a * b
    if found is None or scalar.dtype is I64:
        return found
    (low, high), (least, most) = bounds(found), integer_limits(scalar.dtype)
    return found if low is not None and high is not None and least <= low and high <= most else None


def held_where(test: Scalar, holds: bool) -> tuple[Index, ...]:
    """Indices that are 0 or more wherever a comparison of indices holds, or does not; none where
    nothing is known.  Of `lt`, `le`, `gt` and `ge` one says as much as the comparison itself, of
    `eq` both together do."""
    if not isinstance(test, Apply) or test.function not in _OPPOSITE:
        return ()
    a, b = map(index_of, test.args)
    if a is None or b is None:
        return ()
    match test.function if holds else _OPPOSITE[test.function]:
        case "lt":
            return (b - a - 1,)
        case "le":
            return (b - a,)
        case "gt":
            return (a - b - 1,)
        case "ge":
            return (a - b,)
        case "eq":
            return (a - b, b - a)
    return ()


_OPPOSITE = MappingProxyType(
    {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
)
