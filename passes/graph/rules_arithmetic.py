"""Rules for arithmetic with constants, and for control flow with a constant condition."""

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.rewrite import Replacement, RewriteSite, Rule, inlined
from tcc.ir.op import Array
from tcc.ir.types import BF16, F32
from tcc.ops.formula import choose
from tcc.passes.graph.emit import emit, express
from tcc.passes.graph.rules_movement import first_operand, same_before, same_type
from tcc.zipped import zip_equal

# The largest exponent of a power that is replaced by multiplications.
_MOST_PRODUCTS = 3


# ---- neutral constants --------------------------------------------------------------------------


def _is_zero(array: Array, negative: bool) -> bool:
    """Returns True if all elements are zero.

    Zeros of floats must also be negative if `negative`, and positive if not: x + (-0.0) equals x
    for each float x, but x + 0.0 changes the sign of a negative zero.
    """
    signs = array.dtype.kind != "f" or (np.signbit(array) == negative).all()
    return bool(not array.any() and signs)


def _neutral(site: RewriteSite) -> Value | None:
    """Returns x for x + 0, x - 0, x * 1 and x / 1."""
    name = site.node.op.name
    for number in (1, 0) if name in ("add", "mul") else (1,):
        array = site.array(number)
        if array is None or not array.size:
            continue
        if name in ("add", "sub"):
            neutral = _is_zero(array, negative=name == "add")
        else:
            neutral = bool((array == 1).all())
        if neutral:
            return same_type(site, 1 - number)
    return None


# ---- products instead of quotients and powers ---------------------------------------------------


def _reciprocal(site: RewriteSite) -> Value | None:
    """Returns a product with the reciprocals of a constant divisor, if all of them are exact.

    The reciprocal of a power of two is exact if neither of the two is a subnormal float.
    """
    divisor = site.array(1)
    if divisor is None or divisor.dtype.kind != "f" or not divisor.size:
        return None
    if site.array(0) is not None or site.inputs[1] is None or site.inputs[1].dtype is BF16:
        return None
    with np.errstate(all="ignore"):
        inverse = np.asarray(1 / divisor, divisor.dtype)
        exact = (np.abs(np.frexp(divisor)[0]) == 0.5) & np.isfinite(inverse) & np.isfinite(divisor)
        tiny = np.finfo(divisor.dtype).tiny
        exact &= (np.abs(inverse) >= tiny) & (np.abs(divisor) >= tiny)
    if not exact.all():
        return None
    return emit(site.builder, "mul", site.inputs[0], site.builder.constant(inverse, "reciprocal"))


def _small_power(site: RewriteSite) -> Value | None:
    """Returns products of the base, for a power of floats with a constant exponent of 1, 2 or 3."""
    exponent, base = site.array(1), same_type(site, 0)
    if exponent is None or not exponent.size or base is None or not base.dtype.is_float:
        return None
    count = int(exponent.flat[0]) if exponent.flat[0] in range(1, _MOST_PRODUCTS + 1) else 0
    if not count or not (exponent == count).all():
        return None
    value = base
    for _ in range(count - 1):
        value = emit(site.builder, "mul", value, base)
    return value


# ---- nodes with one operand, and inverse pairs --------------------------------------------------


def _single_operand(site: RewriteSite) -> Value | None:
    """Returns the operand of a node with a single operand, whose op combines any number of
    operands."""
    return first_operand(site) if len(site.inputs) == 1 else None


def _undone(site: RewriteSite) -> Value | None:
    """Returns x for neg(neg(x)) and for not(not(x))."""
    before = same_before(site)
    return None if before is None else before.inputs[0]


# ---- replacement of NaN -------------------------------------------------------------------------


def _without_nan(site: RewriteSite) -> Replacement:
    """Returns an expression in place of where(is_nan(x), constant, x).

    The kernel then has the constant as a literal, and does not load it.
    """
    test, value, array = site.producer(0), same_type(site, 2), site.array(1)
    if test is None or test.op.name != "is_nan" or array is None or array.size != 1:
        return None
    if value is None or value.dtype is not F32 or test.inputs[0] is not value:
        return None
    builder = ExprBuilder(value.type)
    at = builder.point(value.type)
    x = builder.read(0, *at)
    clean = choose(apply("is_nan", x), array.item(), x)
    return express(site.builder, builder.finish(at, clean), value)


# ---- control flow -------------------------------------------------------------------------------


def _known_if(site: RewriteSite) -> Replacement:
    """Returns the results of the branch that a constant condition selects.

    Returns None if their types differ from the types of the node's results.  A result that the
    branch does not compute itself gets an identity node, because the value may be another output of
    the model.
    """
    condition = site.array(0)
    if condition is None:
        return None
    branch: Graph = site.node.attrs.then if condition.all() else site.node.attrs.otherwise
    if [v.type for v in branch.outputs] != [v.type for v in site.node.outputs]:
        return None
    computed = {v for node in branch.nodes for v in node.outputs}
    results: list[Value] = []
    for value, inner in zip_equal(inlined(site.builder, branch), branch.outputs):
        if inner not in computed or value in results:
            value = emit(site.builder, "identity", value)
        results.append(value)
    return results


ARITHMETIC = (
    Rule("neutral constant", _neutral, "add sub mul div"),
    Rule("exact reciprocal", _reciprocal, "div"),
    Rule("small power", _small_power, "pow"),
    Rule("one operand", _single_operand, "sum max min mean"),
    Rule("undone", _undone, "neg not bitwise_not"),
    Rule("constant instead of NaN", _without_nan, "where"),
    Rule("if with a constant", _known_if, "if"),
)
