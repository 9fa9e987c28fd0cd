"""On a device, a kernel and not the host appends rows of states in the caller's memory."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from tcc.backends.gpu.backend import GpuBackend
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.ir.program import CallOp, Copy
from tcc.options import read_options
from tcc.passes.graph.state import bind_states
from tcc.passes.pipeline import run_pipeline
from tcc.variants import resolve_targets

from tests.e2e.test_states import STATES, WIDTH, decoder, normal
from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value
from tests.lib.oracle.program.evaluate import evaluate_program

from .test_block_models import weights_of


def heads(past: int | str, new: int | str) -> onnx.ModelProto:
    """Returns a cache [batch, heads, rows, width] that grows along the rows, and its sum."""
    shape = [2, 3, past, WIDTH]
    nodes = [
        helper.make_node("Concat", ["past", "rows"], ["present"], axis=2),
        helper.make_node("ReduceSum", ["present", "axes"], ["y"], keepdims=0),
    ]
    inputs = [value("past", FLOAT, shape), value("rows", FLOAT, [2, 3, new, WIDTH])]
    outputs = [value("y", FLOAT, [2, 3, WIDTH]), value("present", FLOAT, [2, 3, None, WIDTH])]
    return model_of(nodes, inputs, outputs, {"axes": np.array([2])})


def run(model: onnx.ModelProto, states: dict[str, str], feeds: dict[str, Array], old: int) -> None:
    """Runs a model on caches with room for the new rows, and compares with ONNX Runtime."""
    options = read_options({"target": "cuda:sm_90"})
    graph = run_pipeline(load_model(model, {}), options.level, Trace(None, None))
    graph = bind_states(graph, states.items())
    code = GpuBackend(resolve_targets(options)[0], options)
    code.check(graph)
    lowering = code.lower(graph, Trace())
    assert not any(isinstance(step, CallOp) for step in lowering.program.body)
    assert not any(isinstance(step, Copy) for step in lowering.program.body)
    arrays = []
    for port in graph.inputs:
        array = feeds[port.name]
        if port.name in states:  # the rows that a run appends are NaN before it
            room = [(0, 0)] * array.ndim
            room[-2] = (0, feeds[states[port.name]].shape[-2] - array.shape[-2])
            array = np.pad(array, room, constant_values=np.nan)
        arrays.append(array)
    reference = expected(
        session(model), {n: a for n, a in feeds.items() if n not in states.values()}
    )
    weights = weights_of(lowering) if lowering.weights.size else np.zeros(0, np.uint8)
    results = evaluate_program(lowering.program, lowering.kernels, arrays, weights)
    outputs = {v.name: np.asarray(a) for v, a in zip(graph.outputs, results, strict=True)}
    assert_agree(outputs, reference)


@pytest.mark.parametrize(("past", "new"), [(5, 1), ("p", 1), ("p", "n")])
def test_a_decoder_appends_to_its_caches(past: int | str, new: int | str) -> None:
    caches = {name: normal(n, 5, WIDTH) for n, name in enumerate(STATES)}
    rows = 1 if new == 1 else 3
    grown = {name: normal(9, 5 + rows, WIDTH) for name in STATES.values()}
    run(decoder(past, new), STATES, {"x": normal(7, rows, WIDTH), **caches, **grown}, 5)


@pytest.mark.parametrize(("past", "new"), [(4, 2), ("p", "n")])
def test_rows_between_the_heads_are_appended(past: int | str, new: int | str) -> None:
    feeds = {"past": normal(1, 2, 3, 4, WIDTH), "rows": normal(2, 2, 3, 2, WIDTH)}
    feeds["present"] = normal(3, 2, 3, 6, WIDTH)
    run(heads(past, new), {"past": "present"}, feeds, 4)


def test_a_scatter_update_goes_through_separate_memory() -> None:
    """A scatter may read old rows while it writes others, so the new state is computed elsewhere
    and copied."""
    model = model_of(
        [helper.make_node("ScatterND", ["past", "at", "rows"], ["present"], name="put")],
        [value("past", FLOAT, [8, 4]), value("rows", FLOAT, [2, 4])],
        [value("present", FLOAT, [8, 4])],
        {"at": np.array([[2], [-1]])},
    )
    options = read_options({"target": "cuda:sm_90"})
    code = GpuBackend(resolve_targets(options)[0], options)
    graph = run_pipeline(load_model(model, {}), options.level, Trace(), settings=code.settings)
    graph = bind_states(graph, [("past", "present")])
    code.check(graph)
    lowering = code.lower(graph, Trace())
    assert any(isinstance(step, Copy) for step in lowering.program.body)
    feeds = {"past": normal(1, 8, 4), "rows": normal(2, 2, 4)}
    weights = weights_of(lowering) if lowering.weights.size else np.zeros(0, np.uint8)
    arrays = [feeds[port.name] for port in graph.inputs]
    (present,) = evaluate_program(lowering.program, lowering.kernels, arrays, weights)
    assert_agree({"present": np.asarray(present)}, expected(session(model), feeds))
