"""Every change of sharding gives each rank its array, for any axes and groups of a mesh."""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np
import pytest
from tcc.distributed.changes import Changer
from tcc.distributed.mesh import Mesh
from tcc.distributed.sharding import WHOLE, Partial, Sharding, Split, Whole
from tcc.ir.graph import GraphBuilder
from tcc.ir.graph.verify import verify_graph
from tcc.ir.types import BOOL, F32, I32, DType, tensor

from tests.lib.oracle.graph_of_rank import evaluate_rank

from .lockstep import Array, exchange_of, in_lockstep, on_ranks

SHAPE = (4, 1, 8, 12)
SHARDINGS: list[Sharding] = [
    WHOLE,
    Split(0),
    Split(2),
    Split(3),
    Split(3, 3),
    Split(3, block=7),
    Split(3, 3, block=3),
    Split(2, copies=2),
    Partial("sum"),
    Partial("min"),
]
CHANGES = [(a, b) for a, b in itertools.product(SHARDINGS, SHARDINGS) if not isinstance(b, Partial)]


def local(array: Array, sharding: Sharding, place: int, ranks: int) -> Array:
    if isinstance(sharding, Split):
        axis, place = sharding.axis, place // sharding.copies
        length = sharding.block or array.shape[axis] // sharding.groups * sharding.copies // ranks
        blocks = []
        for group in np.split(array, sharding.groups, axis):
            block = group.take(
                range(place * length, min((place + 1) * length, group.shape[axis])), axis
            )
            padding = [(0, 0)] * array.ndim
            padding[axis] = 0, length - block.shape[axis]
            blocks.append(np.pad(block, padding))
        return np.concatenate(blocks, axis)
    if isinstance(sharding, Whole):
        return array
    return array + array.dtype.type(place)  # the parts of ranks differ


def value_of(array: Array, sharding: Sharding, ranks: int) -> Array:
    """Returns the value that ranks with the arrays of `local` hold together."""
    if not isinstance(sharding, Partial):
        return array
    parts = [local(array, sharding, place, ranks) for place in range(ranks)]
    return reduce({"sum": np.add, "min": np.minimum}[sharding.reduction], parts)


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize(("source", "result"), CHANGES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_ranks_get_their_arrays(
    source: Sharding, result: Sharding, sizes: tuple[int, ...], axis: int
) -> None:
    if axis < len(sizes):
        check(source, result, Mesh(sizes), axis, I32)


@pytest.mark.parametrize("sizes", [(4,), (2, 2)], ids=str)
def test_the_parts_of_a_whole_value_add_up_to_it(sizes: tuple[int, ...]) -> None:
    mesh = Mesh(sizes)
    axis, array = mesh.axis(0), np.arange(6, dtype=np.int32)
    b = GraphBuilder("g")
    x = b.input("x", tensor(I32, 6))
    part = Changer(b, axis).change(x, x.type, WHOLE, Partial("sum"))
    graph = b.finish([part])
    verify_graph(graph)
    parts = [outputs[part.name] for outputs in on_ranks(graph, {"x": array}, mesh.ranks)]
    for group in axis.members or [range(mesh.ranks)]:
        np.testing.assert_array_equal(np.sum([parts[rank] for rank in group], 0), array)


def test_bools_are_gathered() -> None:
    check(Split(2), WHOLE, Mesh((2,)), 0, BOOL)


def check(source: Sharding, result: Sharding, mesh: Mesh, number: int, dtype: DType) -> None:
    axis = mesh.axis(number)
    rng = np.random.default_rng(7)
    arrays = [rng.integers(0, 2 if dtype is BOOL else 99, SHAPE) for _ in range(mesh.ranks)]
    groups = axis.members or (tuple(range(mesh.ranks)),)
    values_of_ranks = {
        r: arrays[n].astype(dtype.carrier) for n, group in enumerate(groups) for r in group
    }
    b = GraphBuilder("g")
    first = local(values_of_ranks[0], source, 0, axis.ranks)
    x = b.input("x", tensor(dtype, *first.shape))
    y = Changer(b, axis).change(x, tensor(dtype, *SHAPE), source, result)
    graph = b.finish([y])
    verify_graph(graph)
    feeds = [
        local(values_of_ranks[r], source, axis.place(r), axis.ranks) for r in range(mesh.ranks)
    ]
    outputs = in_lockstep(
        mesh.ranks,
        lambda rank: evaluate_rank(
            graph, {"x": feeds[rank.number]}, exchange_of(rank), rank.number
        ),
    )
    for r, output in enumerate(outputs):
        value = value_of(values_of_ranks[r], source, axis.ranks)
        expected = local(value, result, axis.place(r), axis.ranks)
        np.testing.assert_array_equal(output[y.name], expected)


def test_f32_parts_are_summed() -> None:
    check(Partial("sum"), Split(3), Mesh((4,)), 0, F32)
