"""Products whose gathers read a part of them are computed in that part alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder, walk_nodes
from tcc.ir.index import const
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.passes.graph.check_indices import check_indices
from tcc.passes.graph.unread_columns import drop_unread_columns

Agree = Callable[..., None]
SHAPE = (2, 40, 64)


def product_read(op: str, axis: int, low: int, high: int, *, repeated: bool = False) -> Graph:
    """A gather of indices from `low` to `high` along an axis of the product f32[2,40,64]."""
    b = GraphBuilder("example")
    x, y = b.input("x", tensor(F32, 2, 40, 8)), b.input("y", tensor(F32, 8, 64))
    product = b.add(OPS["matmul"], [x, y])
    form = (1, 5, 3) if op == "gather_elements" else (5, 3)
    array = np.linspace(low, high, 15).astype(np.int64).reshape(form)
    indices = b.constant(array, "indices")
    if repeated:
        whole = tuple(map(const, (2, *form[1:])))
        (indices,) = b.add(OPS["expand"], [indices], OPS["expand"].attrs(whole))
    return b.finish(b.add(OPS[op], [*product, indices], OPS[op].attrs(axis), names=["z"]))


def product_shape(graph: Graph) -> list[int | None]:
    (made,) = (n.outputs[0] for n in walk_nodes(graph) if n.op.name == "matmul")
    return list(made.type.static_shape or ())


@pytest.mark.parametrize("op", ["gather", "gather_elements"])
@pytest.mark.parametrize(
    ("axis", "low", "high", "size"),
    [
        (1, 7, 30, 24),  # rows as they are
        (1, 0, 0, 1),
        (2, 20, 30, 16),  # columns in whole lines
        (2, 60, 63, 16),  # which end with the last
        (2, 0, 16, 32),
    ],
)
def test_a_product_has_what_its_gather_reads(
    agree: Agree, op: str, axis: int, low: int, high: int, size: int
) -> None:
    before = product_read(op, axis, low, high)
    after = drop_unread_columns(before)
    agree(before, after, tolerance=1e-6)
    assert product_shape(after) == [*SHAPE[:axis], size, *SHAPE[axis + 1 :]]
    assert drop_unread_columns(after) is after


@pytest.mark.parametrize(
    ("axis", "low", "high"), [(1, 0, 39), (2, 0, 63), (2, 5, 55), (2, -3, 5), (2, 9, 64), (0, 0, 0)]
)
def test_a_product_that_is_read_whole_or_nobody_knows_how_far_stays(
    axis: int, low: int, high: int
) -> None:
    before = product_read("gather", axis, low, high)
    assert drop_unread_columns(before) is before


def test_repeated_indices_are_moved_before_they_are_repeated(agree: Agree) -> None:
    before = product_read("gather_elements", 2, 20, 30, repeated=True)
    after = drop_unread_columns(before)
    agree(before, after, tolerance=1e-6)
    (sub,) = (n for n in after.nodes if n.op.name == "sub")
    assert sub.outputs[0].type.static_shape == (1, 5, 3)


def test_indices_that_data_give_need_no_check_where_they_are_clipped(agree: Agree) -> None:
    b = GraphBuilder("example")
    x, y, n = (b.input(*pair) for pair in zip("xyn", (tensor(F32, 3, 8), tensor(F32, 8, 64),
                                                      tensor(I64, 3, 7)), strict=True))  # fmt: skip
    ends = [b.constant(np.array(end), "end") for end in (20, 30)]
    (inside,) = b.add(OPS["clip"], [n, *ends])
    product = b.add(OPS["matmul"], [x, y])
    attrs = OPS["gather_elements"].attrs(1)
    before = b.finish(b.add(OPS["gather_elements"], [*product, inside], attrs, names=["z"]))
    after = drop_unread_columns(before)
    agree(before, after, tolerance=1e-6)
    assert product_shape(after) == [3, 16]
    assert all(node.op.name != "check_indices" for node in walk_nodes(check_indices(after)))


def test_a_product_that_others_read_stays() -> None:
    b = GraphBuilder("example")
    x, y = b.input("x", tensor(F32, 4, 8)), b.input("y", tensor(F32, 8, 64))
    (product,) = b.add(OPS["matmul"], [x, y])
    indices = b.constant(np.array([3, 9]), "indices")
    gathered = b.add(OPS["gather"], [product, indices], OPS["gather"].attrs(1), names=["z"])
    (same,) = b.add(OPS["relu"], [product], names=["r"])
    for outputs in ([*gathered, same], [*gathered, product]):
        before = b.finish(outputs)
        assert drop_unread_columns(before) is before
