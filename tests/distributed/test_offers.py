"""The strategies that nodes offer, as texts."""

from __future__ import annotations

from typing import Any

import pytest
from tcc.distributed.free_axes import free_strategies
from tcc.distributed.offers import expr_of
from tcc.distributed.sharding import Split
from tcc.distributed.strategies import strategies
from tcc.ir.graph import GraphBuilder, Node
from tcc.ir.index import const, symbol
from tcc.ir.types import F32, I8, I64, TensorType, tensor
from tcc.ops import OPS

from .one_axis import offers


def node_of(op: str, *types: TensorType, **attrs: Any) -> Node:
    b = GraphBuilder("g")
    values = [b.input(f"x{n}", type) for n, type in enumerate(types)]
    node = b.producer(b.add(OPS[op], values, OPS[op].attrs(**attrs))[0])
    assert node is not None
    return node


def texts(node: Node, ranks: int, *wishes: tuple[int, Split]) -> list[str]:
    expr = expr_of(node)
    assert expr is not None
    return [repr(strategy) for strategy in strategies(expr, ranks, wishes)[1:]]


def shape(*dims: int) -> tuple[Any, ...]:
    return tuple(map(const, dims))


HEADS = node_of("reshape", tensor(F32, 1, 32, 384), shape=shape(1, 32, 6, 64))
JOINED = node_of("reshape", tensor(F32, 1, 32, 6, 64), shape=shape(1, 32, 384))
TOKENS, IN_HEADS = "split(1) -> split(1)", "split(2, 6) -> split(3)"
PARTS = "partial(sum) -> partial(sum)"
ELEVEN = "split(1, block=11) -> split(1, block=11)"


@pytest.mark.parametrize(
    ("node", "ranks", "expected"),
    [
        (HEADS, 2, [TOKENS, "split(2) -> split(2)", IN_HEADS, PARTS]),
        (
            HEADS,
            3,
            [ELEVEN, "split(2) -> split(2)", "split(2, 6, block=22) -> split(3, block=22)", PARTS],
        ),
        # A block of 96 would cut heads.
        (HEADS, 4, [TOKENS, IN_HEADS, "split(2, block=128) -> split(2, block=2)", PARTS]),
        (JOINED, 3, [ELEVEN, "split(2) -> split(2)", PARTS]),
        (JOINED, 4, [TOKENS, "split(2, block=2) -> split(2, block=128)", PARTS]),
        (
            node_of("gemm", tensor(F32, 5, 8), tensor(F32, 8, 12), tensor(F32, 12)),
            4,
            [
                "split(1), split(0), partial(sum) -> partial(sum)",
                "whole, split(1), split(0) -> split(1)",
                "split(0, block=2), whole, whole -> split(0, block=2)",
            ],
        ),
        (
            node_of("softmax", tensor(F32, 4, 8), axis=1),
            2,
            ["split(0) -> split(0)", "split(1) -> split(1)"],
        ),
        (
            node_of("add", tensor(F32, 4, 8), tensor(F32, 8)),
            8,
            ["split(1), split(0) -> split(1)", "partial(sum), partial(sum) -> partial(sum)"],
        ),
        (node_of("relu", tensor(F32, 3, symbol("n"))), 3, ["split(0) -> split(0)"]),
        (
            node_of("reduce_max", tensor(F32, 4, 5), axes=(0,), keepdims=True),
            2,
            ["split(0) -> partial(max)", "split(1, block=3) -> split(1, block=3)"],
        ),
        (
            node_of("arg_max", tensor(F32, 4, 7), axis=1, keepdims=False, select_last=False),
            2,
            ["split(0) -> split(0)", "split(1, block=4) -> whole"],
        ),
    ],
    ids=lambda item: item.op.name if isinstance(item, Node) else None,
)
def test_strategies_of_a_node(node: Node, ranks: int, expected: list[str]) -> None:
    assert sorted(texts(node, ranks)) == sorted(expected)


def test_groups_of_integer_weights_are_never_cut() -> None:
    """Rows of 96 elements have a scale for each 32 elements, so a block is one group or two of the
    three."""
    types = tensor(I8, 4, 96), tensor(F32, 4, 3)
    node = node_of("dequantize_linear", *types, axis=1, block_size=32)
    assert "split(1), split(1) -> split(1)" in texts(node, 3)
    assert texts(node, 2) == [
        "split(0), split(0) -> split(0)",
        "split(1, block=64), split(1, block=2) -> split(1, block=64)",
    ]
    assert texts(node, 4) == ["split(0), split(0) -> split(0)"]


def test_an_axis_of_several_parts_is_divided_in_each_of_them() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 7, 5))
    w = b.input("w", tensor(F32, 5, 24))
    (y,) = b.add(OPS["matmul"], [x, w])
    parts = b.add(OPS["split"], [y], OPS["split"].attrs(1, shape(8, 8, 8)))
    graph = b.finish(parts)
    matmul, split = graph.nodes
    assert "split(1, 3) -> split(1), split(1), split(1)" in map(repr, offers(graph, 4)[split])
    assert "whole, split(1, 3) -> split(1, 3)" in map(repr, offers(graph, 4)[matmul])
    assert "whole, split(1, 3) -> split(1, 3)" not in texts(matmul, 4)
    assert "whole, split(1, 3) -> split(1, 3)" in texts(matmul, 4, (0, Split(1, 3)))


def test_rows_at_data_dependent_indices_are_divided() -> None:
    node = node_of("gather", tensor(F32, 6, 8), tensor(I64, 4), axis=0)
    assert texts(node, 2) == [
        "whole, split(0) -> split(0)",
        "split(1), whole -> split(1)",
        "split(0), whole -> partial(sum)",
        "partial(sum), whole -> partial(sum)",
    ]
    assert "split(0, block=2), whole -> partial(sum)" in texts(node, 4)  # 6 rows for 4 ranks


def test_padded_blocks_hold_whole_heads_everywhere() -> None:
    """Ten heads of 64 on 3 ranks give blocks of four heads, from the matmul to the next matmul."""
    b = GraphBuilder("g")
    x, w = b.input("x", tensor(F32, 1, 8, 640)), b.input("w", tensor(F32, 640, 640))
    (y,) = b.add(OPS["matmul"], [x, w])
    (heads,) = b.add(OPS["reshape"], [y], OPS["reshape"].attrs(shape(1, 8, 10, 64)))
    (rows,) = b.add(OPS["reshape"], [heads], OPS["reshape"].attrs(shape(1, 8, 640)))
    (z,) = b.add(OPS["matmul"], [rows, w])
    graph = b.finish([z])
    expected = [
        "whole, split(1, block=256) -> split(2, block=256)",
        "split(2, block=256) -> split(2, block=4)",
        "split(2, block=4) -> split(2, block=256)",
        "split(2, block=256), split(0, block=256) -> partial(sum)",
    ]
    offered = offers(graph, 3)
    for node, text in zip(graph.nodes, expected, strict=True):
        assert text in map(repr, offered[node])


def test_padding_does_not_tell_what_to_read() -> None:
    """The indices of a gather stay whole if their blocks would have padding."""
    node = node_of("gather", tensor(F32, 6, 8), tensor(I64, 5), axis=0)
    assert not any("block=3" in text.split(" -> ")[0].split(", ", 1)[1] for text in texts(node, 2))


def test_loops_that_later_stages_need_whole_are_reduced_in_between() -> None:
    softmax = node_of("softmax", tensor(F32, 4, 8), axis=1)
    expr = expr_of(softmax)
    assert expr is not None
    by_keys = next(s for s in strategies(expr, 2) if s.results == (Split(1),))
    assert by_keys.reduced == ((0, ("max",)), (2, ("sum",)))
    norm = node_of(
        "layer_normalization", tensor(F32, 3, 8), tensor(F32, 8), axis=1, epsilon=1e-5, outputs=1
    )
    assert texts(norm, 4) == ["split(1), split(0) -> split(1)"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            node_of("top_k", tensor(F32, 4, 7, 5), axis=1, k=const(3), largest=True, sorted=True),
            [
                "split(0) -> split(0), split(0)",
                "split(2, block=3) -> split(2, block=3), split(2, block=3)",
            ],
        ),
        (
            node_of("update_slice", tensor(F32, 4, 9), tensor(F32, 4, 2), axis=1, start=const(3)),
            ["split(0), split(0) -> split(0)"],
        ),
        (
            node_of(
                "scatter_elements",
                *(tensor(F32, 5, 8, 6), tensor(I64, 5, 2, 4), tensor(F32, 5, 2, 4)),
                axis=1,
                reduction="none",
            ),
            [],  # padding is no valid index, and axis 2 of the updates is shorter
        ),
        (
            node_of(
                "scatter_nd",
                *(tensor(F32, 9, 4, 6), tensor(I64, 5, 3, 1), tensor(F32, 5, 3, 4, 6)),
                reduction="add",
            ),
            ["split(1), whole, split(2) -> split(1)", "split(2), whole, split(3) -> split(2)"],
        ),
        (
            node_of(
                "scatter_rows",
                *(tensor(F32, 9, 4), tensor(I64, 5, 1), tensor(F32, 7, 4), tensor(I64, 5)),
                reduction="add",
            ),
            ["split(1), whole, split(1), whole -> split(1)"],
        ),
    ],
    ids=lambda item: item.op.name if isinstance(item, Node) else None,
)
def test_host_functions_are_divided_along_free_axes(node: Node, expected: list[str]) -> None:
    assert [repr(s) for s in free_strategies(node, 2, (), ())[1:]] == expected


def test_padding_ends_where_the_axis_ends() -> None:
    """A slice keeps ten of eleven rows: the padding of its result would hold the operand's last
    row."""
    types, bounds = tensor(F32, 11, 2), {"starts": shape(0, 0), "steps": (1, 1)}
    node = node_of("slice", types, **bounds, sizes=shape(10, 2))
    assert not any("block=4" in text for text in texts(node, 3))
