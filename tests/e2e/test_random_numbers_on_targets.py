"""A draw is the same on every target: evaluators, C files, 64-bit Arm, GPUs, and all ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tcc
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.driver import compile_model
from tcc.frontends import load_model
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.options import read_options
from tcc.passes.pipeline import run_pipeline
from tcc.variants import resolve_targets

from tests.lib.agreement import FLOAT, Array, model_of, value
from tests.lib.arm64 import compile_emulated, needs_emulator, run_emulated
from tests.lib.c_files.run_c import build, run_c, write_c
from tests.lib.interpreter.running import NEEDS_TRITON, Job, interpreter
from tests.lib.oracle.graph_of_rank import evaluate_rank
from tests.lib.oracle.program.evaluate import evaluate_program
from tests.ranks import run_ranks

from .gpu.test_block_models import weights_of
from .random_models import every_kind, feeds, looped, node
from .test_random_numbers import assert_same

N = 3
SIZES = {"x": (N, 100), "p": (N, 100), "l": (N, 4)}


def fixed() -> Graph:
    return load_model(every_kind(N), {})


def test_a_c_file_draws_with_its_seed(tmp_path: Path) -> None:
    source, graph, inputs = write_c(every_kind(N), tmp_path), fixed(), feeds(N)
    library = build(source)
    seed = ctypes.c_uint64.in_dll(library, "m_seed")
    for number in (0, 1):  # the seed grows by one with each call
        assert_same(run_c(library, graph, inputs), evaluate_graph(graph, inputs, seed=number))
    seed.value = 2**64 - 1
    assert_same(run_c(library, graph, inputs), evaluate_graph(graph, inputs, seed=2**64 - 1))
    assert seed.value == 0
    text = source.with_suffix(".h").read_text()
    assert "each call draws with m_seed" in text
    assert "extern uint64_t m_seed;" in text


def test_a_c_file_without_draws_has_no_seed(tmp_path: Path) -> None:
    model = model_of(
        [node("Relu", ["x"], ["y"])], [value("x", FLOAT, [3])], [value("y", FLOAT, [3])]
    )
    source = write_c(model, tmp_path)
    assert "seed" not in source.read_text() + source.with_suffix(".h").read_text()


def test_loops_of_a_c_file(tmp_path: Path) -> None:
    graph = load_model(looped(), {})
    inputs = {"x": np.ones(5, np.float32), "rows": np.ones((6, 5), np.float32)}
    try:
        source = write_c(looped(), tmp_path)
    except tcc.TccError as error:
        pytest.skip(f"C files refuse it: {error}")
    outputs, due = run_c(build(source), graph, inputs), evaluate_graph(graph, inputs, seed=0)
    for name, array in due.items():
        np.testing.assert_array_equal(outputs[name], array)


@needs_emulator
@pytest.mark.xdist_group("emulated-models")
def test_arm_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCC_SEED", "11")
    (tmp_path / "m.onnx").write_bytes(every_kind(N).SerializeToString())
    artifact = compile_emulated(tmp_path / "m.onnx", tmp_path / "m.so")
    outputs = run_emulated(artifact, feeds(N), tmp_path / "arrays")
    assert_same(outputs, evaluate_graph(fixed(), feeds(N), seed=11))


def on_gpu(graph: Graph, given: Mapping[str, Array], seed: int, kernels: str) -> dict[str, Array]:
    """Returns the outputs of a GPU program whose kernels run as tile programs or as Triton text."""
    options = read_options({"target": "cuda:sm_90"})
    planned = run_pipeline(graph, options.level, Trace(None, None))
    lowering = GpuBackend(resolve_targets(options)[0], options).lower(planned, Trace())

    def run(number: int, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        results = interpreter().run(Job(lowering.kernels[number], arrays, sizes), "ieee")
        for array, result in zip(arrays, results, strict=True):
            if array.flags.writeable:
                array[...] = result

    values = [given[value.name] for value in planned.inputs]
    results = evaluate_program(
        lowering.program, lowering.kernels, values, weights_of(lowering), seed=seed,
        run=run if kernels == "triton" else None,
    )  # fmt: skip
    return {v.name: np.asarray(a) for v, a in zip(planned.outputs, results, strict=True)}


def small() -> Graph:
    nodes = [
        node("RandomNormal", [], ["normal"], shape=[7, 11]),
        node("RandomUniform", [], ["uniform"], shape=[3, 5], low=-1.0),
        node("RandomUniformLike", ["x"], ["uniform2"]),
        node("Bernoulli", ["x"], ["coin"]),
    ]
    outputs = {"normal": [7, 11], "uniform": [3, 5], "uniform2": [4, 9], "coin": [4, 9]}
    listed = [value(k, FLOAT, s) for k, s in outputs.items()]
    return load_model(model_of(nodes, [value("x", FLOAT, [4, 9])], listed, opset=17), {})


@pytest.mark.parametrize(
    "kernels",
    [
        "tiles",
        pytest.param("triton", marks=[*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]),
    ],
)
def test_gpus_draw_the_same(kernels: str) -> None:
    inputs = {"x": np.full((4, 9), 0.5, np.float32)}
    for seed in (1, 2**64 - 2):
        due = evaluate_graph(small(), inputs, seed=seed)
        assert_same(on_gpu(small(), inputs, seed, kernels), due)


def test_loops_on_gpus() -> None:
    inputs = {"x": np.ones(5, np.float32), "rows": np.ones((6, 5), np.float32)}
    graph = load_model(looped(), {})
    due = evaluate_graph(graph, inputs, seed=6)
    outputs = on_gpu(graph, inputs, 6, "tiles")
    for name, array in due.items():
        np.testing.assert_array_equal(outputs[name], array)


RANKS = """
import sys
import numpy as np
import tcc
from tcc.runtime import comm as comms

with comms.open() as comm:
    module = tcc.load(sys.argv[1], comm=comm)
    x = np.full((2, 3), comm.rank, np.float32)
    for seed in (None, None, 5, comm.rank):
        print(*module.run({"x": x}, seed=seed)["y"].reshape(-1))
"""


def test_all_ranks_draw_the_same(tmp_path: Path, comm_library: Path) -> None:
    """All ranks use the seed of rank 0, given or drawn."""
    nodes = [
        node("AllReduce", ["x"], ["total"], domain="com.microsoft"),
        node("RandomUniformLike", ["total"], ["r"]),
        node("RandomUniformLike", ["total"], ["s"]),
        node("Add", ["r", "s"], ["y"]),
    ]
    model = model_of(
        nodes, [value("x", FLOAT, [2, 3])], [value("y", FLOAT, [2, 3])], opset=17,
        domains=["com.microsoft"],
    )  # fmt: skip
    artifact = compile_model(model, read_options({"jobs": 1}), tmp_path / "m.so").path
    outputs = run_ranks(2, RANKS, comm_library, artifact)
    assert outputs[0] == outputs[1]
    first, second, told, other = outputs[0].splitlines()
    assert len({first, second, told, other}) == 4
    graph = load_model(model, {})
    due = evaluate_rank(graph, {"x": np.zeros((2, 3), np.float32)}, lambda _, x: x, 0, seed=5)
    np.testing.assert_allclose(
        np.array(told.split(), np.float32), due["y"].reshape(-1), rtol=1e-6, atol=1e-6
    )
