"""Expert layers with many tokens on GPUs: a few kernels order the rows, and matrix units multiply
tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tcc.backends.gpu.backend import GpuBackend
from tcc.backends.gpu.code import Job as CompileJob
from tcc.backends.gpu.code import compile_blocks
from tcc.backends.gpu.compile import Compilers
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.tile.text import kernel_text
from tcc.options import Options, read_options
from tcc.passes.moe.grouped_gemm import GroupedMatmul
from tcc.passes.pipeline import GraphSettings, run_pipeline
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.gpu.plan import block_schedule
from tcc.passes.traffic import traffic
from tcc.variants import resolve_targets

from tests.e2e.test_experts import EXPERTS, TOP, drawn, layer
from tests.lib.agreement import Array, assert_agree, expected, session
from tests.lib.interpreter.running import Job, interpreter
from tests.lib.oracle.gpu.machine_code import machine_code
from tests.lib.oracle.program.evaluate import evaluate_program

from .test_block_models import weights_of

TOKENS, DEPTH, WIDTH = 1024, 256, 320


def _sixteen(_: GroupedMatmul) -> int:
    return 16


def lowered(options: Options) -> tuple[Graph, Lowered]:
    code = GpuBackend(resolve_targets(options)[0], options)
    model = layer(TOKENS, DEPTH, WIDTH, activation_type="silu")
    graph = run_pipeline(load_model(model, {}), 2, Trace(None, None), settings=code.settings)
    return graph, code.lower(graph, Trace())


def products(made: Lowered) -> list[int]:
    """Returns the numbers of the kernels that contain a matmul."""
    return [n for n, kernel in enumerate(made.kernels) if "contract" in kernel_text(kernel)]


def test_the_interpreter_agrees() -> None:
    """The layer is small, so the test sets the tile size, whatever it costs."""
    options = read_options({"target": "cuda:sm_90", "precision": "f16"})
    code = GpuBackend(
        resolve_targets(options)[0], options, GraphSettings(small_top_k=True, tile_of=_sixteen)
    )
    model = layer(21, 32, 48, activation_type="silu")
    graph = run_pipeline(load_model(model, {}), 2, Trace(None, None), settings=code.settings)
    lowering = code.lower(graph, Trace())
    assert products(lowering)
    feeds = drawn(21, 32)
    values = [feeds[v.name] for v in graph.inputs]

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        results = interpreter().run(Job(lowering.kernels[number], arrays, sizes), "f16")
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    (y,) = evaluate_program(
        lowering.program, lowering.kernels, values, weights_of(lowering), run=run
    )
    assert_agree({"y": np.asarray(y)}, expected(session(model), feeds), 2e-3)


def test_each_expert_is_read_once_and_not_once_a_row() -> None:
    options = read_options({"target": "cuda:sm_90", "precision": "bf16"})
    _, lowering = lowered(options)
    experts = EXPERTS * DEPTH * WIDTH * 2 * 2
    assert len(products(lowering)) == 2
    # Kernels for the best experts and shares, counts and places of rows, matmuls, and the sum of
    # both.
    assert len(lowering.kernels) <= 12
    bytes_moved = traffic(lowering.placed, lowering.table.bodies)
    assert bytes_moved is not None
    rows = TOKENS * (TOP + 1) * (DEPTH + WIDTH) * 4
    assert bytes_moved.bytes < 2 * (experts + 4 * rows)


@pytest.mark.parametrize(("target", "families"), [
    ("cuda:sm_90", ["HGMMA"]),
    ("rocm:gfx942", ["v_mfma"]),
])  # fmt: skip
def test_matrix_units_multiply_tiles(target: str, families: list[str]) -> None:
    options = read_options({"target": target, "precision": "bf16"})
    targets = resolve_targets(options)[0]
    _, lowering = lowered(options)
    number = products(lowering)[0]
    bound = lowering.table.bounds[number]
    job = CompileJob(
        [bound.kernel], ["product"], [block_schedule(bound)], [lowering.alignments[number]],
        targets, precision="bf16", gluon=True,
    )  # fmt: skip
    with Compilers(1) as compilers:
        code = compile_blocks(job, compilers)
    machine_codes = [machine_code(kernel) for (kernel,) in code.kernels]
    assert [[f for f, _ in code.matrix] for code in machine_codes] == [[f] for f in families]
    assert not any(code.private for code in machine_codes)
