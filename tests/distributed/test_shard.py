"""Divided graphs have few collectives, give the results of one rank, and hold blocks of
constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import RankRates, one_host
from tcc.distributed.planner import PlanStep
from tcc.distributed.sharding import WHOLE, Split
from tcc.distributed.strategies import Strategy
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import Index, IndexLike, as_int, const, symbol
from tcc.ir.types import BOOL, F32, I64, TensorType, tensor
from tcc.ops import OPS
from tcc.ops.collective import CollectiveAttrs

from .lockstep import Array, collectives, on_ranks
from .one_axis import offers, sharded, solve_strategies

# The latency of a collective is worth some work, so that one all_reduce is cheaper than two halves.
RATES = RankRates(operations=5e10, memory_bytes=1e10, link_bytes=1e10, latency=1e-5)
TOKENS = 9  # the number of tokens for graphs with a symbolic number


def divider(ranks: int) -> Callable[[Graph], Graph]:
    return PlanStep(one_host(ranks, RATES), partition_solver())


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.float32(shape[0]))


def add(b: GraphBuilder, op: str, *inputs: Value, **attrs: object) -> Value:
    row = OPS[op]
    return b.add(row, inputs, row.attrs(**attrs))[0]


def linear(b: GraphBuilder, rng: np.random.Generator, x: Value, columns: int) -> Value:
    rows = int(x.type.shape[-1].const)
    y = add(b, "matmul", x, b.constant(normal(rng, rows, columns), "w"))
    return add(b, "add", y, b.constant(normal(rng, columns), "bias"))


def mlp(layers: int, batch: int, width: int) -> Graph:
    rng, b = np.random.default_rng(1), GraphBuilder("mlp")
    x = b.input("x", tensor(F32, batch, width))
    for _ in range(layers):
        x = add(b, "relu", linear(b, rng, x, width))
    return b.finish([x])


def block(heads: int, tokens: IndexLike, width: int) -> Graph:
    """Returns an encoder layer: attention and two matmuls, each behind a normalisation."""
    rng, b = np.random.default_rng(2), GraphBuilder("block")
    x = start = b.input("x", tensor(F32, 1, tokens, width))
    q, k, v = (
        split_heads(b, linear(b, rng, start, width), heads, perm)
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = add(b, "softmax", add(b, "matmul", q, k), axis=3)
    mixed = add(b, "transpose", add(b, "matmul", scores, v), perm=(0, 2, 1, 3))
    heads_together = add(b, "reshape", mixed, shape=start.type.shape)
    x = norm(b, add(b, "add", linear(b, rng, heads_together, width), x))
    wide = add(b, "gelu", linear(b, rng, x, 4 * width), approximate="none")
    x = norm(b, add(b, "add", linear(b, rng, wide, width), x))
    return b.finish([x])


def split_heads(b: GraphBuilder, x: Value, heads: int, perm: tuple[int, ...]) -> Value:
    one, tokens, width = x.type.shape
    shaped = add(b, "reshape", x, shape=(one, tokens, const(heads), width // heads))
    return add(b, "transpose", shaped, perm=perm)


def norm(b: GraphBuilder, x: Value) -> Value:
    scale = b.constant(np.ones(int(x.type.shape[-1].const), np.float32), "scale")
    return add(b, "layer_normalization", x, scale, axis=2, epsilon=1e-5, outputs=1)


def check(graph: Graph, divided: Graph, ranks: int, seed: int = 0, tokens: int = TOKENS) -> None:
    """Checks that the results of all ranks are equal, and equal those of one rank up to
    rounding."""
    verify_graph(divided)
    rng = np.random.default_rng(seed)
    feeds = {
        v.name: normal(rng, *(tokens if as_int(d) is None else d.const for d in v.type.shape))
        for v in graph.inputs
    }
    expected = evaluate_graph(graph, feeds)
    for outputs in on_ranks(divided, feeds, ranks):
        assert outputs.keys() == expected.keys()
        for name, array in expected.items():
            limit = 1e-5 * np.abs(array).max()
            np.testing.assert_allclose(outputs[name], array, rtol=0, atol=limit)


def rank_bytes(graph: Graph) -> float:
    return sum(graph.store.arrays(handle)[0].nbytes for handle in graph.constants.values())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layers", [2, 6])
def test_an_mlp_has_an_all_reduce_for_two_layers(layers: int, ranks: int) -> None:
    graph = mlp(layers, 64, 512)
    divided = divider(ranks)(graph)
    assert collectives(divided) == ["all_reduce"] * (layers // 2)
    assert rank_bytes(divided) < 1.01 / ranks * rank_bytes(graph)
    check(graph, divided, ranks)


@pytest.mark.parametrize(("heads", "ranks"), [(8, 2), (8, 4), (6, 3)])
def test_a_transformer_block_has_two_all_reduces(heads: int, ranks: int) -> None:
    graph = block(heads, 32, 64 * heads)
    divided = divider(ranks)(graph)
    assert collectives(divided) == ["all_reduce"] * 2
    assert rank_bytes(divided) < 1.01 / ranks * rank_bytes(graph)
    check(graph, divided, ranks)


def test_a_block_of_any_number_of_tokens_has_two_all_reduces() -> None:
    graph = block(8, symbol("tokens", 1, 64, typical=32), 512)
    divided = divider(2)(graph)
    assert collectives(divided) == ["all_reduce"] * 2
    check(graph, divided, 2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_number_of_tokens_that_ranks_always_divide_is_divided(ranks: int) -> None:
    graph = block(8, 4 * symbol("quads", 1, 16, typical=8), 512)
    offered = offers(graph, ranks)
    choice = {node: by_tokens(node, offered[node]) for node in graph.nodes}
    divided = sharded(graph, choice, ranks)
    assert collectives(divided) == ["all_gather"] * 3  # of keys, values and the result
    for tokens in (4, 12):
        check(graph, divided, ranks, tokens=tokens)


def by_tokens(node: Node, offered: Sequence[Strategy]) -> Strategy:
    """Returns the strategy that splits the result along its first symbolic axis."""
    shape = node.outputs[0].type.shape
    axis = next(n for n, size in enumerate(shape) if as_int(size) is None)
    return next(strategy for strategy in offered if strategy.results == (Split(axis),))


def test_a_number_of_tokens_that_ranks_may_not_divide_is_whole() -> None:
    graph = block(8, 3 * symbol("triples", 1, 20), 512)
    softmax = next(node for node in graph.nodes if node.op.name == "softmax")
    assert [*map(repr, offers(graph, 2)[softmax])] == ["whole -> whole", "split(1) -> split(1)"]
    assert "split(2) -> split(2)" in map(repr, offers(graph, 3)[softmax])


def test_ranks_that_do_not_divide_the_heads_give_the_same_results() -> None:
    graph = block(6, 32, 384)
    check(graph, divider(4)(graph), 4)


def test_more_ranks_than_anything_can_use_are_refused() -> None:
    b = GraphBuilder("g")
    graph = b.finish(b.add(OPS["relu"], [b.input("x", tensor(F32, 4, 6))]))
    with pytest.raises(UserError, match="nothing in the model can be divided among 7 ranks"):
        PlanStep(one_host(7), partition_solver())(graph)


def test_a_graph_without_work_stays_as_it_is() -> None:
    b = GraphBuilder("g")
    graph = b.finish(b.add(OPS["relu"], [b.input("x", tensor(F32, 4, 6))]))
    assert divider(2)(graph) is graph


def test_equal_graphs_become_equal_texts() -> None:
    first, second = (graph_text(divider(2)(block(8, 32, 512))) for _ in range(2))
    assert first == second


def test_outputs_keep_their_names_and_are_whole() -> None:
    rng, b = np.random.default_rng(3), GraphBuilder("g")
    x = b.input("x", tensor(F32, 64, 512))
    (y,) = b.add(OPS["matmul"], [x, b.constant(normal(rng, 512, 512))], names=["y"])
    (z,) = b.add(OPS["relu"], [y], names=["z"])
    graph = b.finish([z, y, x])
    divided = divider(2)(graph)
    assert [(v.name, v.type) for v in divided.outputs] == [(v.name, v.type) for v in graph.outputs]
    assert set(collectives(divided)) == {"all_gather"}
    check(graph, divided, 2)


def test_bodies_read_whole_values() -> None:
    rng, b = np.random.default_rng(4), GraphBuilder("g")
    x = b.input("x", tensor(F32, 64, 512))
    hidden = add(b, "matmul", x, b.constant(normal(rng, 512, 512)))
    test = b.constant(np.array(True), "test")
    branches = []
    for op in ("relu", "neg"):
        inner = GraphBuilder(op, parent=b)
        branches.append(inner.finish(inner.add(OPS[op], [hidden])))
    (y,) = b.add(OPS["if"], [test], OPS["if"].attrs(*branches, (hidden.type,)))
    graph = b.finish([y])
    divided = divider(2)(graph)
    assert collectives(divided) == ["all_gather"]
    check(graph, divided, 2)


def test_a_model_with_collectives_is_refused() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType(F32, (const(4),)))
    graph = b.finish(b.add(OPS["all_reduce"], [x], CollectiveAttrs(2), loc="reduce"))
    with pytest.raises(UserError, match="divides itself") as error:
        divider(2)(graph)
    assert error.value.where == "reduce"


def test_a_mask_of_bools_is_gathered_as_bytes() -> None:
    rng, b = np.random.default_rng(5), GraphBuilder("g")
    x = b.input("x", tensor(F32, 64, 512))
    hidden = add(b, "matmul", x, b.constant(normal(rng, 512, 512)))
    positive = add(b, "greater", hidden, b.constant(np.zeros((), np.float32)))
    assert positive.type.dtype is BOOL
    graph = b.finish([add(b, "cast", positive, to=I64)])
    check(graph, divider(2)(graph), 2)


def fused_block(heads: int, tokens: int, width: int) -> Graph:
    """Returns attention whose queries, keys and values are columns of one matmul."""
    rng, b = np.random.default_rng(6), GraphBuilder("block")
    start = b.input("x", tensor(F32, 1, tokens, width))
    columns = linear(b, rng, start, 3 * width)
    parts = b.add(OPS["split"], [columns], OPS["split"].attrs(2, tuple(map(const, (width,) * 3))))
    perms = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    q, k, v = (split_heads(b, x, heads, perm) for x, perm in zip(parts, perms, strict=True))
    scores = add(b, "softmax", add(b, "matmul", q, k), axis=3)
    mixed = add(b, "transpose", add(b, "matmul", scores, v), perm=(0, 2, 1, 3))
    heads_together = add(b, "reshape", mixed, shape=start.type.shape)
    return b.finish([linear(b, rng, heads_together, width)])


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("form", [block, fused_block])
def test_ten_heads_are_divided_by_whole_heads(
    form: Callable[[int, int, int], Graph], ranks: int
) -> None:
    graph, heads = form(10, 32, 640), -(-10 // ranks)
    softmax = next(node for node in graph.nodes if node.op.name == "softmax")
    by_heads = next(s for s in offers(graph, ranks)[softmax] if s.results == (Split(1, 1, heads),))
    fixed = {softmax: by_heads}
    choice = solve_strategies(graph, ranks, RATES, partition_solver(), fixed)
    divided = sharded(graph, choice, ranks)
    assert rank_bytes(divided) < 1.02 * heads / 10 * rank_bytes(graph)
    check(graph, divided, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_vocabulary_that_ranks_do_not_divide_is_divided(ranks: int) -> None:
    rng, b = np.random.default_rng(7), GraphBuilder("g")
    table = b.constant(normal(rng, 5025, 100), "table")
    tokens = b.input("tokens", tensor(I64, 1, 7))
    x = add(b, "gather", table, tokens, axis=0)
    x = linear(b, rng, add(b, "relu", linear(b, rng, x, 100)), 100)
    y = add(b, "matmul", x, b.constant(normal(rng, 100, 5025), "head"))
    graph = b.finish([add(b, "softmax", y, axis=2)])
    divided = divider(ranks)(graph)
    assert rank_bytes(divided) < 1.05 / ranks * rank_bytes(graph)
    feeds = {"tokens": rng.integers(0, 5025, (1, 7))}
    feeds["tokens"][0, :2] = 0, 5024
    (expected,) = evaluate_graph(graph, feeds).values()
    for outputs in on_ranks(divided, feeds, ranks):
        (probabilities,) = outputs.values()
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5 * expected.max())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("op", "sign"), [("arg_max", 1), ("arg_min", -1)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_equal_extrema_of_several_ranks_have_the_position_of_one_rank(
    op: str, sign: int, last: bool, ranks: int
) -> None:
    x = np.zeros((5, 10), np.float32)
    x[0, [2, 9]] = sign * np.inf
    x[1, [4, 7]] = np.nan
    x[2, :] = -sign * np.inf
    x[3, [0, 5]] = sign
    b = GraphBuilder("g")
    value = b.input("x", tensor(F32, 5, 10))
    graph = b.finish([add(b, op, value, axis=1, keepdims=False, select_last=last)])
    (node,) = graph.nodes
    by_columns = next(s for s in offers(graph, ranks)[node] if s.results == (WHOLE,) and s.reduced)
    divided = sharded(graph, {node: by_columns}, ranks)
    assert collectives(divided) == ["all_gather"] * 2
    positions = [[2, 4, 0, 0, 0], [9, 7, 9, 5, 9]][last]
    for outputs in on_ranks(divided, {"x": x}, ranks):
        np.testing.assert_array_equal(*outputs.values(), positions)


def shared_heads(heads: int, shared: int, tokens: int, size: int) -> Graph:
    """Returns attention in which `heads` query heads share `shared` heads of keys and values."""
    rng, b = np.random.default_rng(8), GraphBuilder("shared")
    width = heads * size
    x = b.input("x", tensor(F32, 1, tokens, width))

    def repeated(perm: tuple[int, ...]) -> Value:
        key_heads = split_heads(b, linear(b, rng, x, shared * size), shared, (0, 2, 1, 3))
        one = add(b, "reshape", key_heads, shape=shape_of(1, shared, 1, tokens, size))
        copies = (1, shared, heads // shared, tokens, size)
        all_heads = add(b, "expand", one, shape=shape_of(*copies))
        heads_together = add(b, "reshape", all_heads, shape=shape_of(1, heads, tokens, size))
        return add(b, "transpose", heads_together, perm=perm)

    q = split_heads(b, linear(b, rng, x, width), heads, (0, 2, 1, 3))
    scores = add(b, "softmax", add(b, "matmul", q, repeated((0, 1, 3, 2))), axis=3)
    values = repeated((0, 1, 2, 3))
    mixed = add(b, "transpose", add(b, "matmul", scores, values), perm=(0, 2, 1, 3))
    heads_together = add(b, "reshape", mixed, shape=x.type.shape)
    return b.finish([linear(b, rng, heads_together, width)])


def shape_of(*dims: int) -> tuple[Index, ...]:
    return tuple(map(const, dims))


@pytest.mark.parametrize(("heads", "shared", "ranks"), [(8, 4, 2), (8, 2, 4), (8, 1, 4), (9, 3, 2)])
def test_ranks_have_the_shared_heads_that_their_queries_read(
    heads: int, shared: int, ranks: int
) -> None:
    """If there are more ranks than shared heads, neighbouring ranks hold the same head."""
    graph = shared_heads(heads, shared, 16, 64)
    softmax = next(node for node in graph.nodes if node.op.name == "softmax")
    expand = next(node for node in graph.nodes if node.op.name == "expand")
    heads_of_rank = -(-shared // ranks)  # the key heads of a rank
    block = heads_of_rank * heads // shared if shared >= ranks else heads // ranks
    padded = block if block * ranks > heads else 0
    offered = offers(graph, ranks)
    choice = {softmax: next(s for s in offered[softmax] if s.results == (Split(1, 1, padded),))}
    divided_heads = Split(1, 1, heads_of_rank if padded else 0, max(1, ranks // shared))
    if shared > 1:
        choice[expand] = next(s for s in offered[expand] if s.operands[0] == divided_heads)
    choice = solve_strategies(graph, ranks, RATES, partition_solver(), choice)
    divided = sharded(graph, choice, ranks)
    parts = {v.type.shape[1] for n in divided.nodes for v in n.outputs if n.op.name == "expand"}
    assert const(heads_of_rank) in parts
    check(graph, divided, ranks)


def test_sums_leave_out_padding_that_no_caller_set_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcc.distributed.shard.zero_padded", lambda *_: frozenset())
    graph = mlp(2, 8, 100)
    first, second = (node for node in graph.nodes if node.op.name == "matmul")
    offered = offers(graph, 3)
    columns, rows = Split(1, block=34), Split(0, block=34)
    choice = {
        first: next(s for s in offered[first] if s.results == (columns,)),
        second: next(s for s in offered[second] if s.operands == (columns, rows)),
    }
    choice = solve_strategies(graph, 3, RATES, partition_solver(), choice)
    check(graph, sharded(graph, choice, 3), 3)
