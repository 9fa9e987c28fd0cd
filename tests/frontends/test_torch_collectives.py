"""torch's functional collectives become collectives of the graph, on ranks in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tcc.driver import load_model
from tcc.errors import UserError
from tcc.ir.graph import Graph, Node
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ops.collective import collected, collective_kind

from tests.oracle.ranks import Rank, in_lockstep

torch = pytest.importorskip("torch")

# What needs the optional packages comes after the question whether they are there.
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Two ranks that compute nothing: an export only records what is issued on them."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def imported(function: Callable[..., Any]) -> Graph:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x, dist.group.WORLD)

    return load_model(torch.export.export(Model(), (torch.zeros(4, 6),)))


def on_ranks(graph: Graph, xs: list[Array]) -> list[Array]:
    def run(rank: Rank) -> Array:
        def exchange(node: Node, x: Array) -> Array:
            kind, attrs = collective_kind(node.op.name), node.attrs
            return rank.meet((kind, attrs, x.shape), x, lambda all_: collected(kind, attrs, all_))

        feeds = {graph.inputs[0].name: xs[rank.number]}
        (found,) = evaluate_graph(graph, feeds, exchange=exchange).values()
        return found

    return in_lockstep(2, run)


X = [np.random.default_rng(rank).standard_normal((4, 6)).astype(np.float32) for rank in range(2)]
A, B = X


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x, g: functional.all_reduce(x, "sum", g), [A + B, A + B]),
        (lambda x, g: functional.all_reduce(x, "product", g), [A * B, A * B]),
        (lambda x, g: functional.all_reduce(x, "avg", g), [(A + B) / 2] * 2),
        (lambda x, g: functional.all_reduce(x, "max", g), [np.maximum(A, B)] * 2),
        (lambda x, g: functional.all_gather_tensor(x, 0, g), [np.concatenate([A, B])] * 2),
        (lambda x, g: functional.all_gather_tensor(x, 1, g), [np.concatenate([A, B], 1)] * 2),
        (
            lambda x, g: functional.all_gather_tensor(x[0, 0], 0, g),
            [np.array([A[0, 0], B[0, 0]])] * 2,
        ),
        (lambda x, g: functional.reduce_scatter_tensor(x, "sum", 0, g), [(A + B)[:2], (A + B)[2:]]),
        (
            lambda x, g: functional.reduce_scatter_tensor(x, "sum", 1, g),
            [(A + B)[:, :3], (A + B)[:, 3:]],
        ),
        (
            lambda x, g: functional.all_to_all_single(x, None, None, g),
            [np.concatenate([A[:2], B[:2]]), np.concatenate([A[2:], B[2:]])],
        ),
        (lambda x, g: functional.broadcast(x, 1, g), [B, B]),
    ],
)  # fmt: skip
def test_collectives_agree_with_numpy(function: Any, want: list[Array]) -> None:
    for found, array in zip(on_ranks(imported(function), X), want, strict=True):
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, g: functional.all_reduce(x, "band", g), "no reduction band"),
        (lambda x, g: functional.all_reduce(x > 0, "max", g), "bool"),
        (
            lambda x, g: functional.all_to_all_single(x, [1, 3], [2, 2], g),
            "blocks of different sizes",
        ),
    ],
)
def test_what_is_refused(function: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        imported(function)
