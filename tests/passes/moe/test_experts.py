"""Cores and block kernels multiply data-dependent matrices in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from tcc.ir.graph import Graph
from tcc.ir.tile import Contract, Load, TileLoop
from tcc.passes.fuse.partition import partition
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.backend import KernelModel
from tcc.schedule.cpu.core import CoreModel

from tests.passes.placing import TYPICAL
from tests.passes.tile.cpu.test_programs import check, lowered
from tests.passes.tile.gpu.test_programs import lowered as lowered_blocks
from tests.passes.tile.gpu.tiles import statements

from .experts import GRAPHS, layer, rows_of_a_table

WAYS: dict[str, tuple[KernelModel, Callable[[Graph], Any]]] = {
    "cores": (TYPICAL, partial(lowered, core=CoreModel(16, 32))),
    "blocks": (BlockChooser(), lowered_blocks),
}


def stored(graph: Graph, model: KernelModel) -> list[Sequence[int]]:
    """Returns the shapes of the values that kernels exchange, including results."""
    shapes = []
    for group in partition(graph, model):
        for value in group.results(graph, graph.users()):
            shape = value.type.static_shape
            assert shape is not None
            shapes.append(shape)
    return shapes


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", list(GRAPHS))
def test_chosen_matrices_are_not_copied(name: str, way: str) -> None:
    graph = GRAPHS[name]()
    model, lower = WAYS[way]
    matrix_shapes = {v.type.static_shape[-2:] for v in graph.constants if v.type.static_shape}
    assert not matrix_shapes & {tuple(shape[-2:]) for shape in stored(graph, model)}
    check(graph, lower(graph), 1)


@pytest.mark.parametrize("way", list(WAYS))
def test_rows_are_still_copied_side_by_side(way: str) -> None:
    graph = rows_of_a_table(24, 64, 48)
    model, lower = WAYS[way]
    assert (24, 64) in stored(graph, model)
    check(graph, lower(graph), 1)


def test_positions_are_loaded_before_the_sum() -> None:
    """A load inside the loop would wait for the position in every step."""
    _, kernels, _ = lowered_blocks(layer(3, 40, 512, 48))
    (loop,) = [s for s in kernels[0].body if isinstance(s, TileLoop)]
    loads = [s for s in statements(loop.body) if isinstance(s, Load)]
    assert any(s.indirect for s in loads)
    assert not any(s.buffer.dtype.is_integer for s in loads)
    assert any(isinstance(s, Contract) for s in loop.body)
