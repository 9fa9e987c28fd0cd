"""Stages that are linear in some sources: they compute a sum of parts from the parts of a sum.

a[i] + b[i]         linear in a and b together, in neither alone
a[i] * w[i]         linear in a, and in w
a[i] + 1            not linear
"""

from collections.abc import Callable, Collection
from math import isfinite

from tcc.ir.expr import Stage
from tcc.ir.expr.scalar import Apply, Cast, Const, IndexValue, Read, Scalar, uncast, walk
from tcc.ir.index import as_int
from tcc.ir.region import widens

# The powers that a scalar may have in the sources: 0 where it does not depend on them, 1 where it
# is linear; both for zero.
_Degrees = frozenset[int]
_FREE, _LINEAR, _ZERO = frozenset({0}), frozenset({1}), frozenset({0, 1})


def is_linear(stage: Stage, is_source: Callable[[Read], bool]) -> bool:
    """True where every component of the stage is linear in the reads that `is_source` accepts.

    A linear stage combines by a sum, or does not combine.  Rounding to a narrower type is not
    linear.
    """
    if stage.monoid not in (None, "sum"):
        return False
    degrees: dict[Scalar, _Degrees] = {}
    for scalar in walk(*stage.body):
        degrees[scalar] = _degrees(scalar, degrees, is_source)
    return all(degrees[scalar] == _LINEAR for scalar in stage.body)


def _degrees(
    scalar: Scalar, degrees: dict[Scalar, _Degrees], is_source: Callable[[Read], bool]
) -> _Degrees:
    match scalar:
        case Const(value=value):
            return _ZERO if value == 0 else _FREE
        case Read():
            is_free = all(0 in degrees[index] for _, index in scalar.indirect)
            if not is_source(scalar):
                return _FREE if is_free else frozenset()
            return _LINEAR if is_free and not scalar.fill else frozenset()
        case Cast(arg=arg) if arg.dtype.is_float and widens(arg.dtype, scalar.dtype):
            return degrees[arg]
        case Cast(arg=arg):
            return degrees[arg] & _FREE
        case Apply(function=function, args=args):
            return _applied(function, scalar, [degrees[arg] for arg in args])
    return _FREE


def _applied(function: str, scalar: Apply, args: Collection[_Degrees]) -> _Degrees:
    match function, [*args]:
        case "neg", [x]:
            return x
        case (("add" | "sub"), [x, y]):
            return x & y
        case "mul", [x, y] if _is_number(scalar.args[1]):
            return x
        case "mul", [x, y] if _is_number(scalar.args[0]):
            return y
        case "div", [x, _] if scalar.dtype.is_float and _is_number(scalar.args[1]):
            return x
        case "select", [test, x, y] if 0 in test:
            return x & y
    return _FREE if all(0 in x for x in args) else frozenset()


def _is_number(scalar: Scalar) -> bool:
    """True for a finite number other than 0."""
    match uncast(scalar):
        case Const(value=value):
            return value != 0 and isfinite(value)
        case IndexValue(index=index):
            return bool(as_int(index))
    return False
