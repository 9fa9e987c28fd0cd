"""Integers and comparisons of scalars as expressions of indices."""

from types import MappingProxyType

from tcc.ir.expr.scalar import Apply, Cast, Const, IndexValue, Scalar
from tcc.ir.index import Index, bounds, const
from tcc.ir.types import I64, integer_limits


def index_of(scalar: Scalar) -> Index | None:
    """Returns the index equal to an integer scalar; None where the scalar or one of its operands
    may wrap.  No index wraps in i64."""
    if not scalar.dtype.is_integer:
        return None
    formula: Index | None = None
    match scalar:
        case Const(value=value):
            formula = const(int(value))
        case IndexValue(index=index):
            formula = index
        case Cast(arg=arg):
            formula = index_of(arg)
        case Apply(function="add" | "sub" | "mul" as function, args=args):
            a, b = map(index_of, args)
            if a is not None and b is not None:
                formula = a + b if function == "add" else a - b if function == "sub" else a * b
    if formula is None or scalar.dtype is I64:
        return formula
    (low, high), (lowest, highest) = bounds(formula), integer_limits(scalar.dtype)
    return (
        formula
        if low is not None and high is not None and lowest <= low and high <= highest
        else None
    )


def held_where(test: Scalar, holds: bool) -> tuple[Index, ...]:
    """Returns indices that are 0 or more wherever the comparison `test` of indices has the outcome
    `holds`. Empty if nothing is known.

    `i < n` that holds gives `(n - i - 1,)`; `i < n` that does not hold gives `(i - n,)`. The
    comparison has this outcome exactly where all the indices are 0 or more.
    """
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
