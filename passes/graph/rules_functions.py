"""Rules for functions of what is computed around them."""

from __future__ import annotations

import math

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply, literal
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Rule, Site
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.graph.rules_movement import result_types
from tcc.record import record

# Factors and divisors between which a product rounds as a quotient does, but for half a unit.
_LEAST, _MOST = 2.0**-10, 2.0**10


# ---- one plus the error function ----------------------------------------------------------------


@record
class _Scaled:
    """`value` times `factor`."""

    value: Value
    factor: float


def _one_plus_erf(site: Site) -> _Scaled | None:
    """What erf is taken of in erf(x / c) + 1, as GELU is written: the kernel then knows the
    constants and has code for the sum, which needs erf to an absolute error only."""
    if site.node.op.name != "add" or result_types(site)[0].dtype is not F32:
        return None
    for number in (0, 1):
        inner, array = site.producer(number), site.array(1 - number)
        if inner is None or inner.op.name != "erf" or array is None or array.size != 1:
            continue
        if array.reshape(()) == 1 and result_types(site) == (inner.outputs[0].type,):
            return _scaled(site, inner)
    return None


def _scaled(site: Site, inner: Node) -> _Scaled | None:
    """The operand of erf, with the number that it is multiplied or divided by where there is one:
    a product is at most one and a half units from the quotient, which erf makes no larger."""
    (value,) = inner.inputs
    if value is None:
        return None
    before = site.builder.producer(value)
    if before is not None and before.op.name in ("div", "mul"):
        base, by = before.inputs
        array = None if by is None else site.builder.array(by)
        if base is not None and base.type == value.type and array is not None and array.size == 1:
            number = float(array.reshape(()))
            if _LEAST <= abs(number) <= _MOST:
                return _Scaled(base, 1 / number if before.op.name == "div" else number)
    return _Scaled(value, 1.0)


def _sum_with_erf(site: Site, found: _Scaled) -> tuple[Value, ...]:
    builder = ExprBuilder(found.value.type)
    at = builder.iters(*found.value.type.shape)
    x: Scalar = builder.read(0, *at)
    if found.factor != 1:
        x = apply("mul", x, literal(found.factor, x.dtype))
    builder.stage(at, apply("add", apply("erf", x), literal(1.0, x.dtype)))
    op = OPS["expression"]
    return site.builder.add(op, [found.value], op.attrs(builder.done()), loc=site.node.loc)


def _one_plus_erf_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 2, 3))
    (scaled,) = b.add(OPS["div"], [x, b.constant(np.asarray(math.sqrt(2), np.float32), "root")])
    (inner,) = b.add(OPS["erf"], [scaled])
    one = b.constant(np.asarray(1.0, np.float32), "one")
    return b.finish(b.add(OPS["add"], [inner, one], names=["y"]))


FUNCTIONS = (Rule("one plus erf", _one_plus_erf, _sum_with_erf, _one_plus_erf_example),)
