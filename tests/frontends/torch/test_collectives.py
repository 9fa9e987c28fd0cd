"""torch's functional collectives become collectives of the graph, tested on ranks in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tcc.driver import load_model
from tcc.errors import UserError
from tcc.ir.graph import Graph, Node
from tcc.ops.collective import collective_kind
from tcc.ops.operands import sizes
from tcc.passes.program.lower_node import check_runnable

from tests.draws import RNG, seeded
from tests.lib.oracle.graph_of_rank import evaluate_rank
from tests.lib.oracle.ranks import Rank, exchanged, in_lockstep

torch = pytest.importorskip("torch")

# Imports of optional packages come after the check that the packages are installed.
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def size(request: pytest.FixtureRequest) -> Iterator[int]:
    """Starts a process group of `size` ranks that compute nothing: an export only records
    collectives."""
    ranks = getattr(request, "param", 2)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    yield ranks
    dist.destroy_process_group()


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x, dist.group.WORLD)


def imported(function: Callable[..., Any]) -> Graph:
    return load_model(torch.export.export(Model(function), (torch.zeros(4, 6),)))


def on_ranks(graph: Graph, xs: list[Array]) -> list[Array]:
    def run(rank: Rank) -> Array:
        def exchange(node: Node, x: Array) -> Array:
            if node.op.name == "rank":
                return np.array(rank.number)
            rows = sizes(node.attrs.rows)
            return exchanged(rank, collective_kind(node.op.name), node.attrs, x, rows)

        feeds = {graph.inputs[0].name: xs[rank.number]}
        (output,) = evaluate_rank(graph, feeds, exchange, rank.number).values()
        return output

    return in_lockstep(len(xs), run)


with seeded("test_torch_collectives: x"):
    X = [RNG.standard_normal((4, 6)).astype(np.float32) for _ in range(4)]
A, B, C, D = X


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
    for output, array in zip(on_ranks(imported(function), X[:2]), want, strict=True):
        np.testing.assert_array_equal(output, array)


# ---- groups and meshes ---------------------------------------------------------------------------

ON_FOUR = pytest.mark.parametrize("size", [4], indirect=True)


@ON_FOUR
def test_named_groups_have_the_ranks_that_are_with_this_process() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    group = dist.new_group([3, 0, 1])

    def function(x: Any, _: Any) -> Any:
        x = functional.all_reduce(x, "sum", mesh.get_group("a"))
        x = functional.all_reduce(x, "sum", mesh.get_group("b"))
        x = functional.all_gather_tensor(x, 0, group)
        return functional.broadcast(x, 3, dist.group.WORLD)

    nodes = [node.attrs for node in imported(function).nodes if node.op.name != "cast"]
    assert [a.members for a in nodes] == [((0, 2),), ((0, 1),), ((0, 1, 3),), ()]
    assert [a.ranks for a in nodes] == [2, 2, 3, 0]
    assert [a.group for a in nodes[:2]] == ["mesh_a", "mesh_b"]


def share(x: Any, mesh: DeviceMesh, axis: int) -> Any:
    """Returns the rank's columns along a dimension of the mesh."""
    return x.narrow(1, mesh._sym_get_coordinate(axis) * 3, 3)


@ON_FOUR
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranks", [[[0, 1], [2, 3]], [[3, 0], [1, 2]]])
def test_a_mesh_is_one_program_for_all_its_ranks(ranks: list[list[int]], axis: int) -> None:
    """Coordinates are those of the mesh; groups are in the order of rank numbers."""
    mesh = DeviceMesh("cpu", ranks)

    def function(x: Any, _: Any) -> Any:
        return functional.all_gather_tensor(share(x, mesh, axis), 0, (mesh, axis))

    with dist.config.patch(compile_on_one_rank=True):
        graph = imported(function)
    (members,) = [node.attrs.members for node in graph.nodes if node.op.name == "all_gather"]
    assert tuple(dist.get_process_group_ranks(mesh.get_group(axis))) in members
    lines = ranks if axis else [list(line) for line in zip(*ranks, strict=True)]
    assert {*members} == {tuple(sorted(line)) for line in lines}
    results = on_ranks(graph, X)
    for line in lines:
        parts = {rank: X[rank][:, 3 * n : 3 * n + 3] for n, rank in enumerate(line)}
        reference = np.concatenate([parts[rank] for rank in sorted(line)])
        for rank in line:
            np.testing.assert_array_equal(results[rank], reference)


@ON_FOUR
def test_a_rank_outside_the_mesh_is_refused() -> None:
    mesh = DeviceMesh("cpu", [0, 2])
    with dist.config.patch(compile_on_one_rank=True):
        graph = imported(lambda x, _: share(x, mesh, 0))
    with pytest.raises(UserError, match="coordinate"):
        on_ranks(graph, X)


def test_groups_that_no_process_has_are_refused_by_name() -> None:
    """An archive holds the names of groups, not their ranks."""
    x = torch.zeros(4, 6)
    program = torch.export.export(
        Model(lambda x, g: functional.all_reduce(x, "sum", g) + functional.all_reduce(x, "max", g)),
        (x,),
    )
    names = iter(("rows", "columns"))
    for node in program.graph.nodes:
        if "all_reduce" in str(node.target):
            node.args = (*node.args[:2], next(names))
    with pytest.raises(UserError, match="several groups of ranks") as caught:
        check_runnable(load_model(program))
    assert "their ranks are not known" in caught.value.why


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, g: functional.all_reduce(x, "band", g), "no reduction band"),
        (lambda x, g: functional.all_reduce(x > 0, "max", g), "bool"),
        (
            lambda x, g: functional.all_to_all_single(x, [1, 3], [2, 1], g),
            "its blocks have 3 rows",
        ),
    ],
)
def test_unsupported_collectives_are_refused(function: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        imported(function)
