"""Rules that replace a function together with the nodes around it."""

from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.graph import Node, Value
from tcc.ir.graph.rewrite import Replacement, RewriteSite, Rule
from tcc.ir.types import F32
from tcc.ops.formula import fn
from tcc.passes.graph.emit import express
from tcc.passes.graph.rules_movement import result_types

# The range of constants for which x / c may become x * (1 / c). The error of the product is at most
# half an ULP larger.
_LEAST, _MOST = 2.0**-10, 2.0**10


def _one_plus_erf(site: RewriteSite) -> Replacement:
    """Returns erf(x / c) + 1, which is a part of GELU, as an expression.

    The kernel then has the constants as literals.  It can also use faster code: the sum needs erf
    only to an absolute error.
    """
    if result_types(site)[0].dtype is not F32:
        return None
    for number in (0, 1):
        inner, array = site.producer(number), site.array(1 - number)
        if inner is None or inner.op.name != "erf" or array is None or array.size != 1:
            continue
        if array.reshape(()) == 1 and result_types(site) == (inner.outputs[0].type,):
            value, factor = _scaled(site, inner)
            builder = ExprBuilder(value.type)
            at = builder.point(value.type)
            x: Scalar = builder.read(0, *at)
            scaled = x if factor == 1 else x * factor
            return express(site.builder, builder.finish(at, fn("erf", scaled) + 1.0), value)
    return None


def _scaled(site: RewriteSite, inner: Node) -> tuple[Value, float]:
    """Returns (x, factor) so that the operand of erf is x * factor.

    The factor is a constant factor, or the reciprocal of a constant divisor, or 1.  The product is
    at most one and a half ULP from the quotient, and erf does not increase the difference.
    """
    (value,) = inner.inputs
    assert value is not None
    before = site.builder.producer(value)
    if before is not None and before.op.name in ("div", "mul"):
        base, by = before.inputs
        array = site.builder.array(by)
        if base is not None and base.type == value.type and array is not None and array.size == 1:
            number = float(array.reshape(()))
            if _LEAST <= abs(number) <= _MOST:
                return base, 1 / number if before.op.name == "div" else number
    return value, 1.0


FUNCTIONS = (Rule("one plus erf", _one_plus_erf, "add"),)
