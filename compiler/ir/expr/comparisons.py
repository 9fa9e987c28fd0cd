"""Converts integer scalars and comparisons to index expressions."""

from types import MappingProxyType

from tcc.ir.expr.scalar import Apply, Cast, Const, IndexValue, Scalar
from tcc.ir.index import Index, const
from tcc.ir.index.compare import ends
from tcc.ir.types import I64, DType, integer_limits


def index_of(scalar: Scalar) -> Index | None:
    """Returns the index that equals an integer scalar.

    Returns None for other scalars, and where the scalar or one of its operands may overflow its
    type. Values of type i64 are assumed not to overflow.
    """
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
    is_exact = formula is None or scalar.dtype is I64 or holds_all(scalar.dtype, formula)
    return formula if is_exact else None


def holds_all(dtype: DType, index: Index) -> bool:
    """Returns True if the integers of type `dtype` contain all values of an index."""
    (low, high), (lowest, highest) = ends(index), integer_limits(dtype)
    return lowest <= low and high <= highest


def held_where(test: Scalar, holds: bool) -> tuple[Index, ...]:
    """Returns indices that are all at least 0 exactly where the comparison `test` is `holds`.

    The condition `i < n` gives `(n - i - 1,)` where it is true and `(i - n,)` where it is false.
    The result is empty if `test` is no comparison of indices, or if its outcome says that two
    indices differ.
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
