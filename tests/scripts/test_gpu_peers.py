"""`scripts/gpu_check` times torch in its fastest form, and that form computes the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="the reference needs torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu import graphs, measure, peers, report, torch_graph, worker
from gpu.build import kernel_item
from gpu.devices import Cpu
from gpu.kernels import SMALL, MeasuredKernel, kernels

pytestmark = pytest.mark.xdist_group("gpu-check")
KERNELS = {kernel.name: kernel for kernel in kernels(SMALL)}


def prepared(kernel: MeasuredKernel) -> tuple[Any, dict[str, Any], Any, list[Any]]:
    """Returns (torch module, row of the index, graph, inputs) of a kernel at small sizes."""
    item = kernel_item(kernel)
    graph = graphs.graph_json(item.model, item.draws)
    inputs = [measure.draw(spec, "cpu", 0) for spec in item.facts["inputs"]]
    return torch_graph.build(graph), item.facts, graph, inputs


@pytest.mark.parametrize("name", ["gemm_i8_k256", "gemm_f8_k256", "embedding_bag_f32"])
def test_functions_of_torch_compute_what_the_graph_computes(name: str) -> None:
    reference, facts, graph, inputs = prepared(KERNELS[name])
    ((form, prepare),) = peers.forms(reference, facts, graph).values()
    (result,) = form(*(prepare(x) for x in inputs))
    (expected,) = reference(*inputs)
    assert result.shape == expected.shape
    assert measure.error([result], [expected]) <= facts["tolerance"]


def test_four_bit_matmuls_have_the_sizes_of_the_graph() -> None:
    reference, facts, graph, inputs = prepared(KERNELS["decode_i4_m16"])
    ((form, prepare),) = peers.forms(reference, facts, graph).values()
    (result,) = form(*(prepare(x) for x in inputs))
    assert result.shape == reference(*inputs)[0].shape


def test_convolutions_are_timed_in_both_layouts() -> None:
    reference, facts, graph, inputs = prepared(KERNELS["conv_chain_bf16"])
    forms = peers.forms(reference, facts, graph)
    assert list(forms) == ["eager", "channels-last"]
    results = [form(*map(prepare, inputs))[0] for form, prepare in forms.values()]
    assert results[1].is_contiguous(memory_format=torch.channels_last)
    assert measure.error([results[1]], [results[0]]) <= facts["tolerance"]


def run_onnxruntime(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    data, options = model.SerializeToString(), onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # its scatters on several threads can lose updates
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("name", ["gemm_i8_k256", "decode_i4_m16", "gat_f32"])
def test_the_references_of_narrow_matmuls_and_of_graphs_agree_with_onnx_runtime(name: str) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(KERNELS[name].model)
    model.opset_import[0].version = 21  # the last that every ONNX Runtime has
    reference, _, _, inputs = prepared(KERNELS[name])
    arrays = {p.name: x.numpy() for p, x in zip(model.graph.input, inputs, strict=True)}
    expected = run_onnxruntime(model, arrays)
    result = reference(*inputs)[0].numpy()
    if expected.dtype == np.int32:
        np.testing.assert_array_equal(result, expected)
    else:
        tolerance = 1e-2 if expected.dtype == np.float16 else 1e-4
        largest = np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * largest)


def test_filters_of_16_bits_are_drawn_from_seeds() -> None:
    item = kernel_item(KERNELS["conv_chain_bf16"])
    module = torch_graph.build(graphs.graph_json(item.model, item.draws))
    assert set(item.draws) == {"w0", "w1", "w2"}
    filters = dict(module.named_buffers())
    for (name, draw), stored in zip(item.draws.items(), filters.values(), strict=True):
        assert stored.dtype == torch.bfloat16
        tensor = next(t for t in item.model.graph.initializer if t.name == name)
        bits = np.frombuffer(tensor.raw_data, np.int16)
        np.testing.assert_array_equal(stored.view(torch.int16).reshape(-1).numpy(), bits)
        assert draw.spread > 0


def test_a_form_that_torch_refuses_costs_no_time_of_tcc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no such instruction")

    kernel = KERNELS["gemm_i8_k256"]
    reference, facts, graph, _ = prepared(kernel)
    monkeypatch.setitem(peers.PEERS, "int_mm", lambda graph: refuse)
    monkeypatch.setattr(worker, "_graph", lambda *_: graph)
    monkeypatch.setattr(worker, "_module", lambda *_: reference)
    result = worker.kernel({"item": facts, "folder": ""}, Cpu())
    assert result["torch_refused"] == {"int_mm": "RuntimeError: no such instruction"}
    assert "torch_seconds" not in result
    assert result["seconds"] > 0
    item = {"facts": facts, **result}
    lines = [*report._kernels({"items": {kernel.name: item}, "device": {}})]
    assert "torch refuses int_mm" in lines[1]


def test_draws_of_bytes_cover_all_values() -> None:
    spec = {"name": "a", "shape": [4096], "dtype": "i8", "draw": "integers"}
    values = measure.draw({**spec, "low": -128, "high": 127}, "cpu", 0)
    assert (values.min().item(), values.max().item()) == (-128, 127)
