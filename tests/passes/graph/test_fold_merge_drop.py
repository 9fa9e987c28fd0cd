"""Folding, merging and dropping of nodes, and transposed convolutions, compared with golden texts
and numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.rewrite import without_dead
from tcc.ir.graph.text import graph_text
from tcc.ir.index import const, symbol
from tcc.ir.types import F32, TensorType, tensor
from tcc.ops import OPS
from tcc.passes.graph.cse import merge_equal_nodes
from tcc.passes.graph.decompose import decompose_transposed
from tcc.passes.graph.fold_constants import fold_constants

from tests.draws import RNG

Read = Callable[..., Graph]
Agree = Callable[..., None]
F = np.float32


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(F)


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in walk_nodes(graph)]


# ---- constants ----------------------------------------------------------------------------------


def test_constants_are_folded_in_bodies_too(read: Read, agree: Agree) -> None:
    before = read(
        """\
graph g(%x : f32[2,3], %c : bool[]) {
  %k = const @k : f32[3]
  %s = dims() {values=(2, 3)} : i64[2]
  %e = exp(%k) : f32[3]
  %y = if(%c) {then=graph t() {
    %n = neg(%e) : f32[3]
    %a = add(%x, %n) : f32[2,3]
    return %a
  }, otherwise=graph o() {
    return %x
  }, types=(f32[2,3])} : f32[2,3]
  return %y, %s
}
""",
        k=F([0, 1, 2]),
    )
    after = fold_constants(before)
    assert ops(after) == ["if", "add"]
    agree(before, after)
    assert fold_constants(after) is after


def test_a_large_broadcast_stays(read: Read) -> None:
    text = """\
graph g(%x : f32[1]) {
  %k = const @k : f32[1]
  %e = expand(%k) {shape=(600000)} : f32[600000]
  %y = add(%x, %e) : f32[600000]
  return %y
}
"""
    graph = read(text, k=F([3]))
    assert fold_constants(graph) is graph
    assert ops(fold_constants(read(text.replace("600000", "60"), k=F([3])))) == ["add"]


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("layer_normalization(%k, %s, %s) {axis=1, epsilon=1e-05, outputs=1}", "1024,512"),
        ("softmax(%k) {axis=1}", "1024,512"),
        ("gemm(%k, %w, %s)", "1024,512"),
    ],
)
def test_results_as_large_as_their_operands_are_folded(
    read: Read, agree: Agree, node: str, shape: str
) -> None:
    """The results take two MiB, more than is always stored; examples are relative positions and
    learned queries."""
    rng = np.random.default_rng(0)
    text = f"""\
graph g(%x : f32[{shape}]) {{
  %k = const @k : f32[1024,512]
  %s = const @s : f32[512]
  %w = const @w : f32[512,512]
  %m = {node} : f32[{shape}]
  %y = add(%x, %m) : f32[{shape}]
  return %y
}}
"""
    sizes = {"k": (1024, 512), "s": (512,), "w": (512, 512)}
    before = read(text, **{name: rng.standard_normal(n).astype(F) for name, n in sizes.items()})
    after = fold_constants(before)
    assert ops(after) == ["add"]
    agree(before, after)


def test_a_chain_that_grows_is_folded_only_so_far(read: Read) -> None:
    steps = [f"  %t{n + 1} = tile(%t{n}) {{repeats=(4)}} : f32[{4 ** (n + 9)}]" for n in range(5)]
    text = "\n".join(
        ["graph g(%x : f32[1]) {", f"  %t0 = const @k : f32[{4**8}]", *steps,
         "  %s = reduce_sum(%t5) {axes=(0), keepdims=false} : f32[]",
         "  %y = add(%x, %s) : f32[1]", "  return %y", "}", ""]
    )  # fmt: skip
    after = fold_constants(read(text, k=np.ones(4**8, F)))
    assert ops(after) == ["tile", "tile", "reduce_sum", "add"]  # would store 64 MiB in addition


def test_nodes_that_the_reference_refuses_are_not_folded(read: Read) -> None:
    graph = read(
        """\
graph g() {
  %k = const @k : f32[2]
  %i = const @i : i64[1]
  %y = gather(%k, %i) {axis=0} : f32[1]
  return %y
}
""",
        k=F([1, 2]),
        i=np.array([7]),
    )
    assert fold_constants(graph) is graph


def test_symbolic_sizes_are_not_folded(read: Read) -> None:
    graph = read("""\
size n in [1,]
graph g(%x : f32[n,2]) {
  %d = dims() {values=(n, 2)} : i64[2]
  return %d
}
""")
    assert fold_constants(graph) is graph


# ---- equal and dead nodes -----------------------------------------------------------------------


def test_equal_nodes_merge_within_their_graph(read: Read, agree: Agree) -> None:
    before = read(
        """\
graph g(%x : f32[2], %c : bool[]) {
  %k = const @k : f32[1]
  %a = leaky_relu(%x) {alpha=0.0} : f32[2]
  %b = leaky_relu(%x) {alpha=-0.0} : f32[2]
  %d = leaky_relu(%x) {alpha=0.0} : f32[2]
  %e = add(%d, %k) : f32[2]
  %f = add(%a, %k) : f32[2]
  %y = if(%c) {then=graph t() {
    %p = exp(%d) : f32[2]
    %q = exp(%a) : f32[2]
    %r = add(%p, %q) : f32[2]
    return %r
  }, otherwise=graph o() {
    return %b
  }, types=(f32[2])} : f32[2]
  return %e, %f, %y
}
""",
        k=F([3]),
    )
    after = merge_equal_nodes(before)
    # Both sums stay, because both are outputs; 0.0 and -0.0 are different attributes.
    assert ops(after) == ["leaky_relu", "leaky_relu", "add", "add", "if", "exp", "add"]
    agree(before, after)
    assert merge_equal_nodes(after) is after


def test_sizes_that_data_decides_are_not_merged(read: Read) -> None:
    graph = read("""\
size m in [0,]
size n in [0,]
graph g(%x : f32[2]) {
  %a = non_zero(%x) {size=m} : i64[1,m]
  %b = non_zero(%x) {size=n} : i64[1,n]
  return %a, %b
}
""")
    assert merge_equal_nodes(graph) is graph


def test_dead_nodes_and_constants_go(read: Read) -> None:
    before = read(
        """\
graph g(%x : f32[2]) {
  %k = const @k : f32[2]
  %a = add(%x, %k) : f32[2]
  %b = exp(%a) : f32[2]
  %y = relu(%x) : f32[2]
  return %y
}
""",
        k=F([3, 4]),
    )
    after = without_dead(before)
    assert graph_text(after) == "graph g(%x : f32[2]) {\n  %y = relu(%x) : f32[2]\n  return %y\n}\n"
    assert without_dead(after) is after


# ---- transposed convolutions --------------------------------------------------------------------


def transposed(kernel: int, attrs: tuple[Any, ...], group: int, symbolic: bool) -> Graph | None:
    stride, before, after, extra = attrs
    b = GraphBuilder("g")
    rows = symbol("h", 1) if symbolic else const(4)
    x = b.input("x", TensorType(F32, (const(2), const(4), rows, const(3))))
    operands = [x, b.constant(random(4, 3, kernel, 2), "w")]
    bias = random(3 * group)
    operands.append(
        b.constant(bias, "bias") if kernel % 2 else b.input("bias", tensor(F32, len(bias)))
    )
    lists = ((stride, 2), (before, 0), (after, 1), (1, 1), (extra, 0))
    (y,) = b.add(OPS["conv_transpose"], operands, OPS["conv_transpose"].attrs(*lists, group))
    shape = y.type.static_shape
    return None if shape is not None and min(shape) < 1 else b.finish([y])


@pytest.mark.parametrize(("stride", "group"), list(product((1, 2, 3, 4), (1, 2))))
def test_transposed_convolutions_have_no_inserted_zeros(
    stride: int, group: int, agree: Agree
) -> None:
    count = 0
    for kernel, before, after, extra in product((1, 2, 4, 5, 9), (0, 1, 3), (0, 2), (0, 1)):
        attrs = (stride, before, after, extra)
        graph = transposed(kernel, attrs, group, symbolic=False)
        if graph is None or extra >= stride:
            continue
        result = decompose_transposed(graph)
        assert "conv_transpose" not in ops(result)
        assert ops(result).count("conv") == (2 if kernel > stride and kernel % stride else 1)
        agree(graph, result, tolerance=1e-5)
        count += 1
    assert count >= 15


def test_transposed_convolutions_of_infinities_make_no_other_nan() -> None:
    for kernel, before in product((1, 3, 4), (0, 1)):
        graph = transposed(kernel, (2, before, 0, 0), 1, symbolic=False)
        assert graph is not None
        feeds = {v.name: random(*(v.type.static_shape or ())) for v in graph.inputs}
        feeds["x"][0, 0, 1, 1], feeds["x"][1, 2, 3, 0] = np.inf, np.nan
        (reference,) = evaluate_graph(graph, feeds).values()
        (output,) = evaluate_graph(decompose_transposed(graph), feeds).values()
        np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-5)


def test_transposed_convolutions_of_symbolic_size(agree: Agree) -> None:
    graph = transposed(4, (2, 1, 1, 0), 1, symbolic=True)
    assert graph is not None
    after = decompose_transposed(graph)
    assert ops(after) == ["conv", "reshape", "transpose", "reshape", "slice", "reshape", "add"]
    for h in (1, 2, 5):
        agree(graph, after, tolerance=1e-5, h=h)
    # Padding of 3 drops all but the middle, which has an unknown extent for a symbolic size.
    crops = transposed(1, (1, 3, 2, 0), 1, symbolic=True)
    assert crops is not None
    assert decompose_transposed(crops) is crops
