"""Rules for arithmetic with constants, and for control flow whose way is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply, literal
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.graph.rewrite import Rule, Site, inlined
from tcc.ir.index import nonnegative
from tcc.ir.op import Array
from tcc.ir.types import F32, element_count, tensor
from tcc.ops import OPS
from tcc.passes.graph.rules_movement import first_operand, if_example, result_types, take
from tcc.record import record

Result = Sequence[Value]
# Powers that a few products give.
_MOST_PRODUCTS = 3
# A factor of a matrix product this many times smaller than the other is scaled in its place.
_RARELY = 8


def _operand(site: Site, number: int) -> Value | None:
    """Operand `number` if it has the type of the result: no broadcast is lost with the other."""
    value = site.inputs[number]
    return value if value is not None and result_types(site) == (value.type,) else None


# ---- neutral constants --------------------------------------------------------------------------


def _is_zero(array: Array, negative: bool) -> bool:
    """All zeros; those of floats all of the sign that adding them changes nothing."""
    signs = array.dtype.kind != "f" or (np.signbit(array) == negative).all()
    return bool(not array.any() and signs)


def _neutral(site: Site) -> Value | None:
    """The operand of x + 0, x - 0, x * 1, x / 1 that is the result."""
    name = site.node.op.name
    if name not in ("add", "sub", "mul", "div"):
        return None
    for number in (1, 0) if name in ("add", "mul") else (1,):
        array = site.array(number)
        if array is None or not array.size:
            continue
        if name in ("add", "sub"):
            neutral = _is_zero(array, negative=name == "add")
        else:
            neutral = bool((array == 1).all())
        if neutral:
            return _operand(site, 1 - number)
    return None


# ---- products instead of quotients and powers ---------------------------------------------------


def _reciprocal(site: Site) -> Array | None:
    """The reciprocals of a constant divisor if all are exact: powers of two, normal both ways."""
    if site.node.op.name != "div":
        return None
    divisor = site.array(1)
    if (
        divisor is None
        or divisor.dtype.kind != "f"
        or not divisor.size
        or site.array(0) is not None
    ):
        return None
    if site.inputs[1] is None or site.inputs[1].type.dtype.name == "bf16":
        return None
    with np.errstate(all="ignore"):
        inverse = np.asarray(1 / divisor, divisor.dtype)
        exact = (np.abs(np.frexp(divisor)[0]) == 0.5) & np.isfinite(inverse) & np.isfinite(divisor)
        tiny = np.finfo(divisor.dtype).tiny
        exact &= (np.abs(inverse) >= tiny) & (np.abs(divisor) >= tiny)
    return inverse if exact.all() else None


def _product(site: Site, inverse: Array) -> Result:
    by = site.builder.constant(inverse, "reciprocal")
    return site.builder.add(OPS["mul"], [site.inputs[0], by], loc=site.node.loc)


def _small_power(site: Site) -> int | None:
    """A constant exponent 1 to 3, the same everywhere, of floats."""
    if site.node.op.name != "pow" or not first_operand(site).type.dtype.is_float:
        return None
    exponent = site.array(1)
    if exponent is None or not exponent.size or _operand(site, 0) is None:
        return None
    count = int(exponent.flat[0]) if exponent.flat[0] in range(1, _MOST_PRODUCTS + 1) else 0
    return count if count and (exponent == count).all() else None


def _products(site: Site, count: int) -> Result:
    base = value = first_operand(site)
    for _ in range(count - 1):
        (value,) = site.builder.add(OPS["mul"], [value, base], loc=site.node.loc)
    return (value,)


# ---- factors of products of matrices -------------------------------------------------------------


def _scaled_factor(site: Site) -> tuple[int, Value, Value] | None:
    """The operand of a matmul that is a value times one constant number, that value, and the
    number; where the other operand is much smaller and can take the number instead.

    Only numbers near one, and types wide enough, so that nothing overflows that did not before.
    """
    if site.node.op.name != "matmul":
        return None
    for number in (1, 0):
        product, other = site.producer(number), site.inputs[1 - number]
        if product is None or product.op.name != "mul" or other is None:
            continue
        for side in (1, 0):
            value, factor = product.inputs[1 - side], product.inputs[side]
            array = None if factor is None else site.builder.array(factor)
            if value is None or factor is None or array is None or array.size != 1:
                continue
            sized = value.type == product.outputs[0].type and other.type.rank >= factor.type.rank
            if sized and _near_one(array) and _much_smaller(other, value):
                return number, value, factor
    return None


def _near_one(array: Array) -> bool:
    wide = array.dtype in (np.float32, np.float64)
    return wide and bool(2.0**-10 <= abs(array.reshape(-1)[0]) <= 2.0**10)


def _much_smaller(small: Value, large: Value) -> bool:
    sizes = (element_count(v.type.shape) for v in (large, small))
    count = next(sizes) - next(sizes) * _RARELY
    return nonnegative(count)


def _factor_moved(site: Site, found: tuple[int, Value, Value]) -> Result:
    number, value, factor = found
    (scaled,) = site.builder.add(OPS["mul"], [site.inputs[1 - number], factor], loc=site.node.loc)
    operands = [scaled, value] if number == 1 else [value, scaled]
    return site.builder.add(site.node.op, operands, site.node.attrs, loc=site.node.loc)


def _scaled_factor_example() -> Graph:
    b = GraphBuilder("example")
    x, y = b.input("x", tensor(F32, 1, 4)), b.input("y", tensor(F32, 4, 40))
    factor = b.constant(np.asarray(0.5, np.float32), "c")
    (scaled,) = b.add(OPS["mul"], [y, factor])
    return b.finish(b.add(OPS["matmul"], [x, scaled], names=["z"]))


# ---- nodes of one operand, and pairs ------------------------------------------------------------


def _alone(site: Site) -> Value | None:
    """The one operand of an op that combines any number of them."""
    many = site.node.op.name in ("sum", "max", "min", "mean")
    return first_operand(site) if many and len(site.inputs) == 1 else None


def _undone(site: Site) -> Value | None:
    """x of neg(neg(x)) and not(not(x))."""
    if site.node.op.name not in ("neg", "not", "bitwise_not"):
        return None
    before = site.producer(0)
    return before.inputs[0] if before and before.op is site.node.op else None


# ---- values instead of NaN ----------------------------------------------------------------------


@record
class _Cleaned:
    """`value` with `instead` where it is NaN."""

    value: Value
    instead: float


def _cleaned(site: Site) -> _Cleaned | None:
    """where(is_nan(x), constant, x): the kernel then knows the constant."""
    if site.node.op.name != "where" or site.inputs[2] is None:
        return None
    test, value, array = site.producer(0), _operand(site, 2), site.array(1)
    if test is None or test.op.name != "is_nan" or array is None or array.size != 1:
        return None
    if value is None or value.type.dtype is not F32 or test.inputs[0] is not value:
        return None
    return _Cleaned(value, float(array.reshape(())))


def _without_nan(site: Site, found: _Cleaned) -> Result:
    builder = ExprBuilder(found.value.type)
    at = builder.iters(*found.value.type.shape)
    x = builder.read(0, *at)
    clean = apply("select", apply("is_nan", x), literal(found.instead, x.dtype), x)
    builder.stage(at, clean)
    op = OPS["expression"]
    return site.builder.add(op, [found.value], op.attrs(builder.done()), loc=site.node.loc)


def _cleaned_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 2, 3))
    (root,) = b.add(OPS["sqrt"], [x])
    (test,) = b.add(OPS["is_nan"], [root])
    zero = b.constant(np.asarray(0.0, np.float32), "c")
    return b.finish(b.add(OPS["where"], [test, zero, root], names=["y"]))


# ---- control flow -------------------------------------------------------------------------------


def _known_if(site: Site) -> Graph | None:
    """The branch that is taken, if it gives the very types that the node promises."""
    if site.node.op.name != "if":
        return None
    condition = site.array(0)
    if condition is None:
        return None
    taken: Graph = site.node.attrs.then if condition.all() else site.node.attrs.otherwise
    promised = tuple(v.type for v in site.node.outputs)
    return taken if tuple(v.type for v in taken.outputs) == promised else None


def _branch(site: Site, taken: Graph) -> Result:
    """The branch's nodes; results that it does not compute itself get nodes of their own, because
    they may be outputs of the model too."""
    own = {v for node in taken.nodes for v in node.outputs}
    results: list[Value] = []
    for value, inner in zip(inlined(site.builder, taken), taken.outputs, strict=True):
        if inner not in own or value in results:
            (value,) = site.builder.add(OPS["identity"], [value], loc=site.node.loc)
        results.append(value)
    return results


# ---- examples -----------------------------------------------------------------------------------


def _with_constant(op: str, constant: object) -> Callable[[], Graph]:
    """`relu(op(x, constant))` of an input f32[2,3]."""

    def example() -> Graph:
        b = GraphBuilder("example")
        x = b.input("x", tensor(F32, 2, 3))
        other = b.constant(np.asarray(constant, np.float32), "c")
        (y,) = b.add(OPS[op], [x, other])
        return b.finish(b.add(OPS["relu"], [y], names=["y"]))

    return example


def _in_a_row(*names: str) -> Callable[[], Graph]:
    def example() -> Graph:
        b = GraphBuilder("example")
        value = b.input("x", tensor(F32, 2, 3))
        for name in names:
            (value,) = b.add(OPS[name], [value])
        return b.finish(b.add(OPS["relu"], [value], names=["y"]))

    return example


ARITHMETIC = (
    Rule("neutral constant", _neutral, take, _with_constant("add", [-0.0, -0.0, -0.0])),
    Rule("exact reciprocal", _reciprocal, _product, _with_constant("div", [2.0, -0.5, 8.0])),
    Rule("small power", _small_power, _products, _with_constant("pow", 3)),
    Rule("scaled factor", _scaled_factor, _factor_moved, _scaled_factor_example),
    Rule("one operand", _alone, take, _in_a_row("max")),
    Rule("undone", _undone, take, _in_a_row("neg", "neg")),
    Rule("constant instead of NaN", _cleaned, _without_nan, _cleaned_example),
    Rule("if with a constant", _known_if, _branch, if_example),
)
