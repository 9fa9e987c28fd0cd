"""Whole models as block kernels, which the evaluators run, agree with ONNX Runtime without a
GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.program import Alias, CallOp
from tcc.ir.program.verify import verify_program
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.passes.pipeline import lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.align import buffer_alignments
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.lib.agreement import Array, assert_agree, expected, session
from tests.lib.oracle.program.evaluate import evaluate_program

from .small_models import MODELS, SHAPES


def lowered(name: str) -> tuple[Graph, Lowered]:
    graph = run_pipeline(load_model(MODELS[name](), {}), 2, Trace(None, None))
    return graph, lower(graph, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())


def weights_of(made: Lowered) -> Array:
    parts = [np.frombuffer(memoryview(part()).cast("B"), np.uint8) for part in made.weights.parts()]
    return np.concatenate(parts)


@pytest.mark.parametrize("name", list(MODELS))
def test_model_agrees(name: str) -> None:
    graph, lowering = lowered(name)
    names = tuple(f"k{n}" for n in range(len(lowering.kernels)))
    program = lowering.program
    assert not any(isinstance(i, CallOp) for i in program.body), "halos are not filled by the host"
    verify_program(replace(program, kernels=names))
    for kernel in lowering.kernels:
        verify_blocks(kernel)
    runner = session(MODELS[name]())
    for number, shape in enumerate(SHAPES[name]):
        x = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
        results = evaluate_program(program, lowering.kernels, [x], weights_of(lowering))
        outputs = dict(zip((v.name for v in graph.outputs), results, strict=True))
        assert_agree(outputs, expected(runner, {"x": x}))


def test_memory_counts_as_aligned_unless_it_is_a_view() -> None:
    """The runtime places or copies all other memory to aligned addresses."""
    _, lowering = lowered("attention")
    assert {align for kernel in lowering.alignments for align in kernel} == {16}
    views = tuple(replace(b, place=Alias()) for b in lowering.program.buffers)
    program = replace(lowering.program, buffers=views)
    alignments = buffer_alignments(program, lowering.kernels)
    assert {align for kernel in alignments for align in kernel} == {4}
