"""Lowered programs, run by the evaluator, agree with the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import evaluate, free_vars
from tcc.ir.program import Program
from tcc.ir.program.text import program_text
from tcc.ir.program.verify import verify_program
from tcc.ir.tile import TileKernel
from tcc.ir.tile.text import kernel_text
from tcc.ir.tile.verify import verify_kernel
from tcc.passes.memory.compact_buffers import compacted
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.lib.oracle.program.parse import parse_program
from tests.lib.oracle.tile.parse import parse_kernel
from tests.passes.fuse.models import MODELS
from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]
SIZES = (1, 4, 5, 9)


def lowered(graph: Graph, core: CoreModel) -> tuple[Program, list[TileKernel], Array]:
    """Returns the planned program of `graph`, its kernels, and its weight section."""
    program, table, weights = lower_program(
        compacted(place_graph(graph)), CoreChooser(core), lower_node
    )
    names = tuple(f"kernel{n}" for n in range(len(table.bounds)))
    program, kernels = update_in_place(replace(program, kernels=names), table.bounds)
    planned = plan_arena(program, arena_planner())
    section = [part() for part in weights.parts()]
    packed = np.concatenate(section) if section else np.zeros(0, np.uint8)
    return planned, list(kernels), packed


def symbols(graph: Graph) -> dict[str, Any]:
    variables = (v for x in graph.inputs for d in x.type.shape for v in free_vars(d))
    return {v.name: v for v in variables}


def inputs_of(graph: Graph, size: int) -> dict[str, Array]:
    """Returns random inputs with every symbolic size near `size`."""
    rng = np.random.default_rng(size)
    sizes = {
        name: min(max(size + n, v.lo), v.hi or 99)
        for n, (name, v) in enumerate(symbols(graph).items())
    }
    inputs = {}
    for value in graph.inputs:
        shape = tuple(int(evaluate(d, sizes)) for d in value.type.shape)
        dtype = value.type.dtype
        if dtype.is_float:
            inputs[value.name] = rng.standard_normal(shape).astype(dtype.carrier)
        elif dtype.is_integer:
            inputs[value.name] = rng.integers(0, 6, shape).astype(dtype.carrier)
        else:
            inputs[value.name] = rng.random(shape) < 0.7
    return inputs


def check(graph: Graph, made: tuple[Program, list[TileKernel], Array], size: int) -> None:
    inputs = inputs_of(graph, size)
    ordered = [inputs[v.name] for v in graph.inputs]
    actual = evaluate_program(*made[:2], ordered, made[2])
    expected = evaluate_graph(graph, inputs)
    for value, array in zip(graph.outputs, actual, strict=True):
        reference = expected[value.name]
        assert array.shape == reference.shape
        np.testing.assert_allclose(array, reference, rtol=2e-5, atol=2e-5, err_msg=value.name)


@pytest.mark.parametrize("core", [CoreModel(16, 32), CoreModel(4, 16)], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", list(MODELS))
def test_program_agrees_with_graph(name: str, core: CoreModel) -> None:
    graph = MODELS[name]()
    lowering = lowered(graph, core)
    verify_program(lowering[0])
    assert [c for k in lowering[1] for c in verify_kernel(k)] == []
    for size in SIZES if symbols(graph) else SIZES[:1]:
        check(graph, lowering, size)


@pytest.mark.parametrize("name", list(MODELS))
def test_texts_parse_back(name: str) -> None:
    program, kernels, _ = lowered(MODELS[name](), CoreModel(16, 32))
    assert parse_program(program_text(program)) == program
    for kernel in kernels:
        text = kernel_text(kernel)
        assert kernel_text(parse_kernel(text)) == text
