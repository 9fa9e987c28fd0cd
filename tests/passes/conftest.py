"""Fixtures for graph passes: graphs read from text, compared by evaluation, compiled and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.planner import arena_planner
from tcc.backends.artifact.variant import Variant
from tcc.backends.cpu.codegen import compile_object
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.graph import ConstantStore, Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.types import DTypeKind, TensorType
from tcc.ops import OPS
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.runtime.module import Module, load
from tcc.schedule.cpu.core import CoreModel
from tcc.target import parse_target

from tests.lib.oracle.graph.parse import parse_graph
from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Graph], Module]
Read = Callable[..., Graph]


def _read(text: str, **constants: Any) -> Graph:
    """Parses the graph of `text`, in which `@NAME` stands for the digest of a constant."""
    store = ConstantStore()
    for name, array in constants.items():
        text = text.replace(f"@{name} ", f"@{store.put(np.asarray(array)).digest[:16]} ")
    graph = parse_graph(text, OPS, store)
    verify_graph(graph)
    return graph


@pytest.fixture
def read() -> Read:
    return _read


def _sample(form: TensorType, rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    shape = [d.const if not d.terms else sizes[d.key] for d in form.shape]
    if form.dtype.kind is DTypeKind.FLOAT:
        return rng.standard_normal(shape).astype(form.dtype.carrier)
    return rng.integers(0, 2, shape).astype(form.dtype.carrier)


@pytest.fixture
def agree() -> Callable[..., None]:
    """Returns a function that checks two graphs: both are well formed and give the same results on
    random inputs."""

    def check(before: Graph, after: Graph, tolerance: float = 0.0, **sizes: int) -> None:
        verify_graph(after)
        assert [v.name for v in after.outputs] == [v.name for v in before.outputs]
        rng = np.random.default_rng(7)
        feeds = {v.name: _sample(v.type, rng, sizes) for v in before.inputs}
        reference, results = evaluate_graph(before, feeds), evaluate_graph(after, feeds)
        for name, array in reference.items():
            largest = np.abs(array).max(initial=1e-30) if array.dtype.kind == "f" else 0
            np.testing.assert_allclose(results[name], array, rtol=0, atol=tolerance * largest)

    return check


@pytest.fixture
def compiled(tmp_path: Path) -> Run:
    """Returns a function that compiles a graph without any graph pass and loads it."""

    def run(graph: Graph) -> Module:
        program, table, weights = lower_program(
            place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node
        )
        program = plan_arena(program, arena_planner())
        target = parse_target("cpu", "host", detect)
        names = tuple(f"tcc_k{n}" for n in range(len(table.bounds)))
        texts = [emit_kernel(b.kernel, n, target) for b, n in zip(table.bounds, names, strict=True)]
        objects: Sequence[bytes] = [compile_object(t.llvm, target) for t in texts]
        scratch = max([t.scratch for t in texts], default=0)
        program = replace(program, kernels=names, scratch=scratch)
        parts = [part() for part in weights.parts()]
        path = tmp_path / f"{graph.name}.so"
        variant = Variant("cpu", program, parts, objects)
        link_artifact([variant], {}, "model", path)
        return load(path, threads=1, poison=True)

    return run
