"""Shardings have texts that parse back and local types; meshes have groups of ranks."""

from __future__ import annotations

import pytest
from tcc.distributed.changes import Transfer, transfer
from tcc.distributed.mesh import Mesh, MeshAxis
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Split,
    local_type,
    parse_sharding,
)
from tcc.ir.index import symbol
from tcc.ir.types import F32, TensorType, tensor

PADDED = Split(1, 3, 256), Split(1, block=4)
COPIED = Split(1, copies=2), Split(0, 2, 5, 3)
ALL: list[Sharding] = [
    *(WHOLE, *map(Split, (0, 1, 12)), Split(2, 3)),
    *(*PADDED, *COPIED, *map(Partial, REDUCTIONS)),
]


@pytest.mark.parametrize("sharding", ALL, ids=repr)
def test_texts_parse_back(sharding: Sharding) -> None:
    assert parse_sharding(repr(sharding)) == sharding


@pytest.mark.parametrize(
    "text",
    [
        "",
        "split",
        "split()",
        "split(-1)",
        "split(1,2)",
        "split(99999)",
        "split(1, block=)",
        "split(1, copies=2, block=4)",
        "partial(avg)",
        "whole ",
        "Whole",
    ],
)
def test_invalid_sharding_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no sharding"):
        parse_sharding(text)


def test_a_rank_holds_a_block_of_a_split_axis() -> None:
    type = tensor(F32, 6, 8)
    assert local_type(type, Split(0), 3) == tensor(F32, 2, 8)
    assert local_type(type, Split(1), 4) == tensor(F32, 6, 2)
    assert local_type(type, Split(1, block=3), 4) == tensor(F32, 6, 3)
    assert local_type(type, Split(1, 2, block=3), 2) == tensor(F32, 6, 6)
    assert local_type(type, Split(1, copies=2), 4) == tensor(F32, 6, 4)
    assert local_type(type, WHOLE, 4) == local_type(type, Partial("max"), 4) == type


@pytest.mark.parametrize(
    ("type", "axis"),
    [
        (tensor(F32, 6, 8), 1),
        (tensor(F32, 6, 8), 2),
        (tensor(F32, 0), 0),
        (tensor(F32, symbol("n")), 0),
    ],
)
def test_an_axis_that_ranks_do_not_divide_has_no_blocks(type: TensorType, axis: int) -> None:
    with pytest.raises(ValueError, match="no 3 equal blocks"):
        local_type(type, Split(axis), 3)


@pytest.mark.parametrize(
    "split",
    [Split(1, block=2), Split(1, block=8), Split(1, block=10), Split(1, copies=3), Split(1, 3, 2)],
    ids=repr,
)
def test_blocks_that_do_not_cover_an_axis_are_refused(split: Split) -> None:
    """The axis has 8 elements, and there are 4 ranks."""
    with pytest.raises(ValueError, match="have no"):
        local_type(tensor(F32, 6, 8), split, 4)


def test_the_axes_of_a_mesh_are_groups_of_ranks() -> None:
    mesh = Mesh((2, 3))
    assert mesh.ranks == 6
    assert mesh.axis(0) == MeshAxis(2, 3, ((0, 3), (1, 4), (2, 5)))
    assert mesh.axis(1) == MeshAxis(3, 1, ((0, 1, 2), (3, 4, 5)))
    for axis in (mesh.axis(0), mesh.axis(1)):
        assert axis.all_ranks == 6
        for members in axis.members:
            assert [axis.place(rank) for rank in members] == list(range(axis.ranks))


def test_the_only_axis_of_a_mesh_is_one_group_of_all_ranks() -> None:
    for mesh in (Mesh((4,)), Mesh((1, 4, 1))):
        axis = mesh.axis(mesh.sizes.index(4))
        assert axis == MeshAxis(4)
        assert [axis.place(rank) for rank in range(4)] == [0, 1, 2, 3]


def test_changes_of_sharding_cost_the_bytes_of_their_collective() -> None:
    type = tensor(F32, 8, 16)  # 512 bytes
    assert transfer(type, Partial("sum"), WHOLE, 4) == Transfer("all_reduce", 768)
    assert transfer(type, Partial("max"), Split(0), 4) == Transfer("reduce_scatter", 384)
    assert transfer(type, Split(1), WHOLE, 4) == Transfer("all_gather", 384)
    assert transfer(type, Split(1), Split(0), 4) == Transfer("all_to_all", 96)
    assert transfer(type, WHOLE, Split(1), 4) == transfer(type, WHOLE, WHOLE, 4) == Transfer("", 0)
    assert transfer(type, WHOLE, Partial("sum"), 4) == Transfer("", 0)
    assert transfer(type, WHOLE, Partial("max"), 4) is None
    assert transfer(type, Partial("sum"), Partial("max"), 4) is None
