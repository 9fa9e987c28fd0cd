"""Constant factors and shifts are folded into constant operands of preceding nodes of any linear
op."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import Graph, GraphBuilder, Value, walk_nodes
from tcc.ir.index import as_index, symbol
from tcc.ir.types import F16, F32, TensorType, tensor
from tcc.ops import OPS
from tcc.options import Options
from tcc.passes.derive.algebra.fold_factors import fold_factors
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.emit import emit, express
from tcc.variants import optimise, resolve_targets, variant_backends

from tests.draws import RNG, seeded
from tests.lib.oracle.calls import calls_of

Read = Callable[..., Graph]
Agree = Callable[..., None]
F = np.float32


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in walk_nodes(graph)]


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def normed(b: GraphBuilder, value: Value, channels: int) -> Value:
    vectors = [
        random(channels),
        random(channels),
        random(channels),
        np.abs(random(channels)) + F(1),
    ]
    operands = [b.constant(v, f"p{n}") for n, v in enumerate(vectors)]
    attrs = OPS["batch_normalization"].attrs(1e-3)
    return b.add(OPS["batch_normalization"], [value, *operands], attrs)[0]


def product_graph(kind: str, bias: bool, tail: str) -> Graph:
    """Returns a contraction with constant weights, then the nodes that `tail` names, then relu."""
    b = GraphBuilder("g")
    conv = OPS["conv"].attrs((1, 1), (1, 0), (0, 1), (1, 1), 2)
    transposed = OPS["conv_transpose"].attrs((2, 1), (1, 0), (0, 1), (1, 1), (1, 0), 2)
    forms: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, Any]] = {
        "conv": ((2, 4, 5, 5), (6, 2, 3, 2), 6, conv),
        "conv_transpose": ((2, 4, 5, 5), (4, 3, 3, 2), 6, transposed),
        "gemm": ((3, 4), (4, 5), 5, None),
        "matmul": ((3, 4), (4, 5), 5, None),
    }
    shape, weights, channels, attrs = forms[kind]
    operands = [b.input("x", tensor(F32, *shape)), b.constant(random(*weights), "w")]
    if bias:
        operands.append(b.constant(random(channels), "bias"))
    (value,) = b.add(OPS[kind], operands, attrs)
    column = (channels, *[1] * (len(shape) - 2))
    for step in tail.split():
        if step == "bn":
            value = normed(b, value, channels)
        else:
            (value,) = b.add(OPS[step], [value, b.constant(random(*column), step)])
    return b.finish(b.add(OPS["relu"], [value], names=["y"]))


@pytest.mark.parametrize(
    ("kind", "bias", "tail"),
    [
        *product(("conv", "conv_transpose"), (False, True), ("bn", "mul add bn", "sub div")),
        *product(("gemm",), (True,), ("bn", "mul add bn", "sub div")),
        ("matmul", False, "mul"),
    ],
)
def test_affine_maps_fold_into_weights(kind: str, bias: bool, tail: str, agree: Agree) -> None:
    before = product_graph(kind, bias, tail)
    after = fold_factors(before)
    assert names(after) == [kind, "relu"]
    agree(before, after, tolerance=1e-5)
    assert fold_factors(after) is after


def test_a_matmul_takes_no_shift(agree: Agree) -> None:
    before = product_graph("matmul", False, "bn")
    after = fold_factors(before)
    assert names(after) == ["matmul", "add", "relu"]
    agree(before, after, tolerance=1e-5)


def test_batch_norm_alone_becomes_a_product_and_a_sum(agree: Agree) -> None:
    b = GraphBuilder("g")
    value = normed(b, b.input("x", tensor(F32, 2, 5, 3, 3)), 5)
    before = b.finish([value])
    after = fold_factors(before)
    assert names(after) == ["mul", "add"]
    agree(before, after, tolerance=1e-6)


def test_values_with_other_readers_are_not_scaled(read: Read) -> None:
    text = """\
graph g(%x : f32[1,2,3]) {
  %w = const @w : f32[4,2,1]
  %s = const @s : f32[FORM]
  %a = conv(%x, %w) {strides=(1), before=(0), after=(0), dilations=(1), group=1} : f32[1,4,3]
  %b = mul(%a, %s) : f32[1,4,3]
  %c = TAIL : f32[1,4,3]
  return %c
}
"""
    for form, tail in (((4, 1), "add(%a, %b)"), ((4, 3), "relu(%b)"), ((3,), "relu(%b)")):
        filled = text.replace("FORM", ",".join(map(str, form))).replace("TAIL", tail)
        graph = read(filled, w=random(4, 2, 1), s=random(*form))
        assert fold_factors(graph) is graph
    zero = text.replace("FORM", "1").replace("TAIL", "relu(%b)").replace("mul(", "div(")
    graph = read(zero, w=random(4, 2, 1), s=F([0]))
    assert fold_factors(graph) is graph


def test_factors_out_of_the_range_are_not_folded(read: Read) -> None:
    text = """\
graph g(%x : f64[1,2,3]) {
  %w = const @w : f64[4,2,1]
  %b = const @b : f64[4]
  %s = const @s : f64[1]
  %a = conv(%x, %w, %b) {strides=(1), before=(0), after=(0), dilations=(1), group=1} : f64[1,4,3]
  %c = OP(%a, %s) : f64[1,4,3]
  return %c
}
"""
    w = random(4, 2, 1).astype(np.float64)
    for op, bias, factor in (("div", 1.0, 5e-324), ("mul", 1e308, 1e10), ("mul", np.inf, 0.0)):
        graph = read(text.replace("OP", op), w=w, b=np.full(4, bias), s=np.array([factor]))
        assert fold_factors(graph) is graph


def test_a_product_around_a_body_is_not_scaled_for_it(read: Read) -> None:
    graph = read(
        """\
graph g(%x : f32[3,2], %c : bool[]) {
  %w = const @w : f32[2,4]
  %a = matmul(%x, %w) : f32[3,4]
  %y = if(%c) {then=graph t() {
    %s = const @s : f32[4]
    %m = mul(%a, %s) : f32[3,4]
    return %m
  }, otherwise=graph o() {
    %z = relu(%a) : f32[3,4]
    return %z
  }, types=(f32[3,4])} : f32[3,4]
  return %y
}
""",
        w=random(2, 4),
        s=random(4),
    )
    assert fold_factors(graph) is graph


# ---- any node that is linear -------------------------------------------------------------------


def behind(op: str, shapes: list[tuple[int, ...]], scale: tuple[int, ...], **attrs: Any) -> Graph:
    """Returns a constant times a node of an input and weights; the node is an expression without
    its op's name."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, *shapes[0]))
    weights = [b.constant(random(*shape), "w") for shape in shapes[1:]]
    (y,) = b.add(OPS[op], [x, *weights], OPS[op].attrs(**attrs))
    expr = node_expr(b.producer(y))
    (y,) = express(b, expr, x, *weights)
    return b.finish([emit(b, "mul", b.constant(random(*scale), "s"), y)])


CONV = {"before": (2, 1), "after": (1, 0), "dilations": (1, 2)}
TRANSPOSED = {**CONV, "strides": (2, 1), "output_padding": (1, 0), "group": 2}
with seeded("test_fold_factors: linear"):
    LINEAR: dict[str, Graph] = {
        "conv of groups": behind(
            "conv", [(2, 4, 5, 6), (6, 2, 3, 2), (6,)], (6, 1, 1), strides=(2, 1), group=2, **CONV
        ),
        "transposed": behind(
            "conv_transpose", [(1, 4, 5, 4), (4, 3, 3, 2)], (6, 1, 1), **TRANSPOSED
        ),
        "heads": behind("einsum", [(2, 5, 8), (3, 8, 4)], (3, 1, 4), equation="bsd,hde->bhse"),
        "heads alone": behind(
            "einsum", [(2, 5, 8), (3, 8, 4)], (3, 1, 1), equation="bsd,hde->bhse"
        ),
        "matrices of a batch": behind(
            "einsum", [(3, 5, 8), (3, 8, 4)], (3, 1, 4), equation="bsd,bde->bse"
        ),
        "a number": behind("einsum", [(5, 8), (8, 4)], (1, 1), equation="sd,de->es"),
    }
    APART: dict[str, Graph] = {
        "by rows": behind("einsum", [(5, 8), (8, 4)], (5, 1), equation="sd,de->se"),
        "a batch of one matrix": behind(
            "einsum", [(3, 5, 8), (8, 4)], (3, 1, 1), equation="bsd,de->bse"
        ),
        "window": behind(
            "conv",
            [(1, 2, 5), (3, 2, 2)],
            (4,),
            strides=(1,),
            before=(0,),
            after=(0,),
            dilations=(1,),
            group=1,
        ),
    }


@pytest.mark.parametrize("name", LINEAR)
def test_scales_fold_into_any_linear_node(name: str, agree: Agree) -> None:
    after = fold_factors(LINEAR[name])
    assert names(after) == ["expression"]
    agree(LINEAR[name], after, tolerance=1e-5)


@pytest.mark.parametrize("name", APART)
def test_a_scale_that_a_weight_does_not_tell_stays(name: str) -> None:
    assert fold_factors(APART[name]) is APART[name]


def squared(b: ExprBuilder, i: Any) -> Any:
    return b.read(0, *i) * b.read(1, *i) * b.read(1, *i)


def beside(b: ExprBuilder, i: Any) -> Any:
    return b.read(0, *i) * b.read(1, *i) + b.read(0, *i)


def twice_each(b: ExprBuilder, i: Any) -> Any:
    return b.read(0, *i) * b.read(1, i[0] % 2)


def test_bodies_without_a_product_of_weights_stay() -> None:
    for formula in (squared, beside, twice_each):
        kind = tensor(F32, 4)
        made = ExprBuilder(kind, kind)
        i = made.iters(4)
        b = GraphBuilder("g")
        x, w = b.input("x", kind), b.constant(random(4), "w")
        (y,) = express(b, made.finish(i, formula(made, i)), x, w)
        graph = b.finish([emit(b, "mul", y, b.constant(random(4), "s"))])
        assert fold_factors(graph) is graph


def test_sums_of_weights_are_scaled_together(agree: Agree) -> None:
    kind = tensor(F32, 4)
    made = ExprBuilder(kind, kind, kind)
    i = made.iters(4)
    y = made.read(1, *i) * made.read(0, *i) - made.read(2, *i)
    b = GraphBuilder("g")
    weights = [b.constant(random(4), "w") for _ in range(2)]
    (v,) = express(b, made.finish(i, y), b.input("x", kind), *weights)
    before = b.finish([emit(b, "div", emit(b, "neg", v), b.constant(random(4), "s"))])
    after = fold_factors(before)
    assert names(after) == ["expression"]
    agree(before, after, tolerance=1e-5)


def test_a_symbolic_batch_is_no_part_of_the_scale(agree: Agree) -> None:
    b = GraphBuilder("g")
    batch = as_index(symbol("n", 1, 9))
    x = b.input("x", TensorType(F32, (batch, *tensor(F32, 4, 5, 5).shape)))
    attrs = OPS["conv"].attrs((1, 1), (1, 0), (0, 1), (1, 1), 2)
    (y,) = b.add(OPS["conv"], [x, b.constant(random(6, 2, 3, 2), "w")], attrs)
    before = b.finish([normed(b, y, 6)])
    after = fold_factors(before)
    assert names(after) == ["conv"]
    agree(before, after, tolerance=1e-5, n=3)


def test_a_large_shift_takes_nothing_from_the_scale(agree: Agree) -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(F32, 3, 4)), b.constant(random(4, 5), "w")
    factor, mask = (
        b.constant(F([3, 1, -2, 5, 0.5]), "s"),
        b.constant(F([0, -3e38, 1e30, 1, -1]), "m"),
    )
    kind = tensor(F32, 5)
    made = ExprBuilder(tensor(F32, 3, 5), kind, kind)
    i, j = made.iters(3, 5)
    row = made.read(0, i, j) * made.read(1, j) - made.read(2, j)
    (y,) = express(b, made.finish((i, j), row), emit(b, "matmul", x, w), factor, mask)
    before = b.finish([y])
    after = fold_factors(before)
    assert names(after) == ["matmul", "add"]
    scaled = after.constant(after.nodes[0].inputs[1])
    assert np.array_equal(scaled, b.array(w) * b.array(factor))
    agree(before, after, tolerance=1e-6)


def test_a_value_that_is_doubled_often_is_analysed_once(agree: Agree) -> None:
    made = ExprBuilder(tensor(F32, 3, 5))
    i = made.iters(3, 5)
    doubled = made.read(0, *i)
    for _ in range(60):
        doubled = doubled + doubled
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(F32, 3, 4)), b.constant(random(4, 5), "w")
    (y,) = express(b, made.finish(i, doubled), emit(b, "matmul", x, w))
    before = b.finish([y])
    after = fold_factors(before)
    assert names(after) == ["matmul"]
    agree(before, after, tolerance=1e-6)


def test_halves_stay() -> None:
    b = GraphBuilder("g")
    w, s = (b.constant(random(*n).astype(np.float16), "c") for n in ((4, 5), (5,)))
    graph = b.finish([emit(b, "mul", emit(b, "matmul", b.input("x", tensor(F16, 3, 4)), w), s)])
    assert fold_factors(graph) is graph


def test_work_grows_with_the_layers() -> None:
    def tower(layers: int) -> Graph:
        b = GraphBuilder("g")
        x = b.input("x", tensor(F32, 1, 4, 3))
        attrs = OPS["conv"].attrs((1,), (1,), (1,), (1,), 1)
        for _ in range(layers):
            (x,) = b.add(OPS["conv"], [x, b.constant(random(4, 4, 3), "w")], attrs)
            x = emit(b, "relu", normed(b, x, 4))
        return b.finish([x])

    fold_factors(tower(1))
    few, many = (calls_of(lambda n=n: fold_factors(tower(n))) for n in (5, 20))
    assert many < 4.2 * few


# ---- numbers ------------------------------------------------------------------------------------


def scaled(number: float, rows: int) -> Graph:
    """Returns a matmul whose second operand, 40 x 4, is divided by a number."""
    b = GraphBuilder("g")
    x, y = b.input("x", tensor(F32, rows, 40)), b.input("y", tensor(F32, 40, 4))
    y = emit(b, "div", y, b.constant(np.array(number, F), "c"))
    return b.finish([emit(b, "relu", emit(b, "matmul", x, y))])


def test_a_number_multiplies_the_smaller_of_operand_and_result(agree: Agree) -> None:
    before = scaled(3.0, 39)
    after = fold_factors(before)
    assert names(after) == ["matmul", "mul", "relu"]
    agree(before, after, tolerance=1e-6)
    assert fold_factors(after) is after


@pytest.mark.parametrize("graph", [scaled(3.0, 40), scaled(1e-4, 39)])
def test_numbers_that_save_nothing_or_leave_the_range_stay(graph: Graph) -> None:
    assert fold_factors(graph) is graph


@pytest.mark.parametrize("target", ["cpu", "c", "cuda:sm_90"])
def test_options_leave_factors_where_they_are(target: str) -> None:
    before = product_graph("conv", False, "mul")
    for options, stays in (
        (Options(target=target), False),
        (Options(target=target, level=1), False),
        (Options(target=target, derive=False), True),
        (Options(target=target, numerics="strict"), True),
    ):
        codes = variant_backends(resolve_targets(options), options, 0)
        ((after,),) = optimise(before, codes, options, Trace())
        assert ("mul" in names(after)) == stays
