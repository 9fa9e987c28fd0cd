"""`scripts/gpu_check` rebuilds weights, computes references in torch, and keeps its budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options
from tcc.runtime import load

torch = pytest.importorskip("torch", reason="the reference needs torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu import draws as drawing
from gpu import graphs, measure, recipe, report, run, torch_graph
from gpu.budget import Budget
from gpu.build import Item, compile_with_tcc, kernel_item, make_folder, rehearsed_items
from gpu.carry import pack, unpack
from gpu.devices import Cpu
from gpu.draws import ArrayDraw
from gpu.kernels import CHECKED, SMALL, kernels
from gpu.plan import KINDS, forecast, plan
from tests.draws import RNG

pytestmark = pytest.mark.xdist_group("gpu-check")


def dense_model() -> onnx.ModelProto:
    """Returns two dense layers and a filter, with every weight above the size that is carried."""
    weights = {
        "filter": RNG.normal(size=(32, 3, 5, 5)),
        "gain": RNG.normal(size=32),
        "shift": RNG.normal(size=32),
        "mean": RNG.normal(size=32),
        "variance": RNG.uniform(1, 2, size=32),
        "first": RNG.normal(size=(512, 256)),
        "second": RNG.normal(size=(48, 256)),
        "bias": RNG.normal(size=48),
    }
    nodes = [
        helper.make_node("Conv", ["x", "filter"], ["c"], kernel_shape=[5, 5]),
        helper.make_node(
            "BatchNormalization", ["c", "gain", "shift", "mean", "variance"], ["n"], epsilon=1e-5
        ),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "first"], ["m"]),
        helper.make_node("Gemm", ["m", "second", "bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 48])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, dict(inputs))
    return outputs


# ---- seeded arrays ------------------------------------------------------------------------------


def test_draws_are_the_words_of_philox_in_exact_arithmetic() -> None:
    values = drawing.values(ArrayDraw(7, (3, 5), 1.0, 0.25))
    words = np.random.Philox(key=7).random_raw(8)
    halves = [int(w) >> shift & 0xFFFFFFFF for w in words for shift in (0, 32)]
    expected = [1 + 0.25 * ((half >> 8) / 2**23 - 1) for half in halves[:15]]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.reshape(-1), np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_bits_are_those_of_torch(dtype: str) -> None:
    array = drawing.values(ArrayDraw(3, (4000,), 0.0, 2.0))
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    expected = torch.from_numpy(array).to(kind).view(torch.int32 if dtype == "f32" else torch.int16)
    bits = drawing.bits_of(array, dtype)
    np.testing.assert_array_equal(bits.view(expected.numpy().dtype), expected.numpy())


# ---- weight sections ----------------------------------------------------------------------------


def place(section: Any, offset: int, array: Any, dtype: str) -> None:
    data = np.ascontiguousarray(drawing.bits_of(array, dtype)).reshape(-1).view(np.uint8)
    section[offset : offset + data.size] = data


def test_a_section_is_found_in_every_form_and_rebuilt() -> None:
    draws = {
        "filter": ArrayDraw(1, (32, 16, 3, 3), 0.0, 1.0),
        "left": ArrayDraw(2, (64, 32), 0.0, 1.0),
        "right": ArrayDraw(3, (64, 96), 0.0, 1.0),
        "table": ArrayDraw(4, (100, 64), 0.5, 1.0),
        "panels": ArrayDraw(5, (48, 96), 0.0, 1.0),
        "absent": ArrayDraw(6, (64, 64), 0.0, 1.0),
    }
    arrays = {name: drawing.values(draw) for name, draw in draws.items()}
    section = np.zeros(1 << 18, np.uint8)
    place(section, 0, arrays["filter"].transpose(2, 3, 1, 0), "bf16")
    merged = np.concatenate([arrays["left"], arrays["right"]], 1)
    place(section, 16384, merged, "f32")
    place(section, 65536, arrays["table"], "f16")
    place(section, 81920, arrays["panels"].reshape(48, 3, 32).transpose(1, 0, 2), "f32")
    section[200_000:200_300] = RNG.integers(1, 256, 300)
    parts, remainder = recipe.describe(section, draws)
    assert {part.source for part in parts} == draws.keys() - {"absent"}
    assert len(remainder.lines) <= 384  # the 300 bytes that come from no array
    np.testing.assert_array_equal(recipe.rebuild(parts, remainder, draws), section)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any], int]:
    folder = tmp_path_factory.mktemp("carry")
    model = dense_model()
    draws = graphs.reseed(model)
    artifact = folder / "dense.so"
    compile_model(model, read_options({"target": "cpu"}), artifact)
    carried = pack(artifact, draws, folder / "dense.zip")
    return artifact, folder / "dense.zip", draws, carried


def test_an_artifact_comes_back_byte_for_byte_and_runs(packed: Any, tmp_path: Path) -> None:
    artifact, carried, draws, _ = packed
    again = tmp_path / "again.so"
    unpack(carried, draws, again)
    assert again.read_bytes() == artifact.read_bytes()
    x = RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)
    model = dense_model()
    graphs.reseed(model)
    (y,) = run_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(load(again)(x), y, rtol=0, atol=1e-4 * np.abs(y).max())


def test_most_weights_are_not_carried(packed: Any) -> None:
    _, _, draws, carried = packed
    assert carried < 0.2 * sum(4 * prod(draw.shape) for draw in draws.values())


def test_other_seeds_are_noticed(packed: Any, tmp_path: Path) -> None:
    _, carried, draws, _ = packed
    wrong = {n: ArrayDraw(d.seed + 1, d.shape, d.offset, d.spread) for n, d in draws.items()}
    with pytest.raises(ValueError, match="are not those of the artifact"):
        unpack(carried, wrong, tmp_path / "wrong.so")


# ---- the reference in torch ---------------------------------------------------------------------


def agrees(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
    draws = graphs.reseed(model)
    graph = json.loads(json.dumps(graphs.graph_json(model, draws)))
    assert torch_graph.draws_of(graph) == draws
    module = torch_graph.build(graph)
    with torch.inference_mode():
        outputs = module(*(torch.from_numpy(inputs[name]) for name in graph["inputs"]))
    for a, b in zip(outputs, run_onnxruntime(model, inputs), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=0, atol=1e-5 * max(np.abs(b).max(), 1e-3))


def test_the_reference_agrees_on_filters_and_dense_layers() -> None:
    agrees(dense_model(), {"x": RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)})


def test_the_reference_agrees_on_infogan() -> None:
    build = pytest.importorskip("models.build", reason="the models need the extra `models`")
    model = build.build_proto("infogan")
    inputs = pytest.importorskip("models.inputs", reason="the models need the extra `models`")
    agrees(model, inputs.make_inputs("infogan", 0))


ENCODER = """
<ir_version: 10, opset_import: ["" : 18]>
encoder (int64[1,8] ids, int64[1,8] mask) => (float[1,8,64] y, float[1,64] pooled) {
  e = Gather<axis = 0>(table, ids)
  n = LayerNormalization<axis = -1>(e, scale, shift)
  q0 = MatMul(n, wq)
  q1 = Reshape(q0, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q1)
  kt = Transpose<perm = [0, 2, 3, 1]>(q1)
  s = MatMul(q, kt)
  eight = Constant<value_float = 8.0>()
  d = Div(s, eight)
  seen = Cast<to = 9>(mask)
  axes = Constant<value_ints = [1, 2]>()
  wide = Unsqueeze(seen, axes)
  low = Constant<value_float = -1e9>()
  masked = Where(wide, d, low)
  p = Softmax<axis = -1>(masked)
  bad = IsNaN(p)
  zero = Constant<value_float = 0.0>()
  kept = Where(bad, zero, p)
  c = MatMul(kept, q)
  t = Transpose<perm = [0, 2, 1, 3]>(c)
  r = Reshape(t, flat)
  a, b = Split<axis = 2, num_outputs = 2>(r)
  swapped = Concat<axis = -1>(b, a)
  sum = Add(swapped, n)
  g = Erf(sum)
  y = Mul(sum, g)
  zeroth = Constant<value_int = 0>()
  first = Gather<axis = 1>(y, zeroth)
  three = Constant<value_float = 3.0>()
  cube = Pow(first, three)
  z = Gemm<transB = 1>(cube, wq, shift)
  pooled = Tanh(z)
}
"""


def test_the_reference_agrees_on_an_encoder() -> None:
    model = onnx.parser.parse_model(ENCODER)
    weights = {"table": (50, 64), "scale": (64,), "shift": (64,), "wq": (64, 64)}
    model.graph.initializer.extend(
        numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), name)
        for name, shape in weights.items()
    )
    for name, shape in (("heads", [0, 0, 4, 16]), ("flat", [0, 0, 64])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape), name))
    mask = (np.arange(8) < 6).astype(np.int64)[None]
    agrees(model, {"ids": RNG.integers(0, 50, (1, 8)), "mask": mask})


def test_unknown_operators_are_named() -> None:
    graph = {"inputs": ["x"], "outputs": ["y"], "tensors": {}, "nodes": [
        {"op": "Sinh", "in": ["x"], "out": ["y"], "at": {}}]}  # fmt: skip
    with pytest.raises(ValueError, match="Sinh"):
        torch_graph.build(graph)


def test_every_kernel_is_a_sound_model_that_the_reference_knows() -> None:
    names = []
    for kernel in kernels():
        onnx.checker.check_model(kernel.model)
        torch_graph.build(graphs.graph_json(kernel.model, kernel_item(kernel).draws))
        names.append(kernel.name)
    assert len(names) == len(set(names)) == 60


# ---- the two halves -----------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_gives_out_the_remaining_time() -> None:
    clock = Clock()
    budget = Budget(100.0, reserve=10.0, clock=clock)
    assert budget.grant(30.0, 5.0) == 30.0
    clock.now = 70.0
    assert budget.grant(30.0, 5.0) == 20.0
    clock.now = 86.0
    assert budget.grant(30.0, 5.0) is None
    assert (budget.left(), budget.spent()) == (4.0, 86.0)


def row(name: str, kind: str, precision: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "precision": precision, "tolerance": 0.02,
        "group": "model" if kind == "model" else "memory", **facts,
    }  # fmt: skip


ITEMS = [
    row("net_f32", "model", "f32"),
    row("net_bf16", "model", "bf16"),
    row("copyish", "kernel", "f32"),
    row("wrong", "kernel", "f32"),
    row("failing", "kernel", "f32"),
]


class Started:
    """A worker whose process is ready at once."""

    def ready(self, seconds: float) -> str:
        return ""


class Scripted(Started):
    """A worker that answers by a script; every step takes 20 seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked = clock, list[str]()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self.clock.now += 20.0
        name = request["item"].get("name", "device")
        self.asked.append(f"{request['task']} {name}")
        if name == "failing":
            return {"failed": "RuntimeFailure: no"}
        return {"result": {"error": 0.5 if name == "wrong" else 1e-3, "seconds": 1e-4}}


def test_failures_stop_nothing_and_time_runs_out_on_the_least_important(tmp_path: Path) -> None:
    clock = Clock()
    worker, out = Scripted(clock), tmp_path / "out.json"
    refused = {"late": "no such operator"}
    index = {"tcc": "0", "archs": ["sm_90"], "device": "cuda", "refused": refused, "items": ITEMS}
    results = run.carry_out(tmp_path, index, worker, Budget(135.0, clock=clock), out)
    assert worker.asked == [
        "device device", "model net_bf16", "kernel copyish", "kernel wrong", "kernel failing",
        "model net_f32",
    ]  # fmt: skip
    late = ["compiled net_bf16", "autotuned net_bf16", "compiled net_f32"]
    assert results["skipped"] == late
    assert json.loads(out.read_text()) == results
    assert report.failures(results) == [
        "late: not compiled: no such operator",
        "failing: kernel failed: RuntimeFailure: no",
        "wrong: error 0.5 > 0.02",
    ]
    assert report.absent(results) == [f"{step}: no time was left" for step in late]
    assert "net_bf16" in report.table(results)


class Hanging(Started):
    """A worker that hangs on every item that has a twin."""

    def __init__(self) -> None:
        self.asked = list[str]()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        name = request["item"].get("name", "device")
        self.asked.append(name)
        if name.startswith("new"):
            return {"failed": "took more than 30 s", "broken": True}
        return {"result": {"error": 1e-3, "seconds": 1e-4}}


def test_items_that_resemble_hanging_items_come_last(tmp_path: Path) -> None:
    items = []
    for kind, names in (("kernel", "abc"), ("model", "m")):
        for name in names:
            items.append(row(f"new_{name}", kind, "bf16"))
            items.append(row(f"old_{name}", kind, "bf16", twin_of=f"new_{name}"))
    index = {"tcc": "0", "archs": ["sm_90"], "device": "cuda", "refused": {}, "items": items}
    worker = Hanging()
    results = run.carry_out(tmp_path, index, worker, Budget(1000.0), tmp_path / "out.json")
    assert worker.asked == [
        "device", "new_a", "old_a", "new_m", "old_m", "old_b", "old_c",
        "new_m", "new_m", "new_b", "new_c",
    ]  # fmt: skip
    assert len(report.failures(results)) == 4
    assert (tmp_path / "out.txt").read_text() == report.table(results)


def test_errors_are_compared_with_the_tolerance_or_the_error_of_torch() -> None:
    facts = {"facts": row("n", "model", "bf16")}
    items = {
        "good": {**facts, "error": 0.02, "torch_error": 0.001},
        "as_torch": {**facts, "error": 0.03, "torch_error": 0.03},
        "wrong": {**facts, "error": 0.04, "torch_error": 0.03},
        "nan": {**facts, "error": float("nan"), "torch_error": 0.03},
    }
    results = {"items": items, "refused": {}, "device": {}, "skipped": []}
    assert report.failures(results) == ["wrong: error 0.04 > 0.03", "nan: error nan > 0.03"]


def test_the_full_plan_covers_the_checks_of_tcc_in_time() -> None:
    items = [kernel_item(kernel).facts for kernel in kernels()]
    wide = "f32", "i8"
    items += [{**i, "twin_of": i["name"]} for i in items if i["precision"] not in wide]
    models = ("resnet50", "bert_base", "vit_b16", "gpt2_prefill", "gpt2_decode")
    items += [row(f"{m}_{p}", "model", p) for m in models for p in ("bf16", "f32")]
    items += [row(f"{m}_triton", "model", "bf16", twin_of=f"{m}_bf16") for m in models]
    steps = list(plan(items))
    tasks = [step.task for step in steps]
    assert tasks.count("kernel") == 60 + 31
    assert (tasks.count("model"), tasks.count("compiled")) == (15, 10)
    assert tasks.count("autotuned") == 5
    small = [{**kernel_item(k).facts, "kind": "small"} for k in kernels(CHECKED)]
    steps = list(plan([*items, *small], ["compute-sanitizer", "ncu"]))
    tasks = [step.task for step in steps]
    assert tasks[: len(small) + 2] == ["device", *["small"] * len(small), "sanitize"]
    assert (tasks.count("sanitize"), tasks.count("profile")) == (4, 5)
    last = max(i for i, task in enumerate(tasks) if task in report.OURS)
    assert sum(KINDS[task].expected for task in tasks[: last + 1]) < 570
    assert "(where time is left)" in forecast(steps, 470.0).splitlines()[-1]


def test_goals_are_compared_with_measured_values() -> None:
    items = {
        "softmax_f32_8mb": {"facts": row("s", "kernel", "f32"), "share": 0.8},
        "gather_f32_8mb": {"facts": row("g", "kernel", "f32"), "share": 0.9},
        "gemm_bf16_k1024": {"facts": row("m", "kernel", "bf16", group="matrix"), "share": 0.94},
        "gemm_f32_k1024": {"facts": row("f", "kernel", "f32", group="matrix"), "share": 0.5},
        "attention_bf16": {
            "facts": row("a", "kernel", "bf16", group="other"), "flops_per_second": 4e14,
        },
        "net_bf16": {
            "facts": row("n", "model", "bf16"), "seconds": 3e-3, "compiled_seconds": 4e-3,
            "autotuned_seconds": 2e-3,
        },
        "late_bf16": {"facts": row("l", "model", "bf16"), "seconds": 3e-3},
    }  # fmt: skip
    assert report.missed({"items": items}) == [
        "softmax_f32_8mb: 80% of 85%",
        "gemm_bf16_k1024: 94% of 95%",
        "attention_bf16: 400 TFLOP/s of 500",
        "net_bf16: 1.50 times torch.compile's time",
    ]


# ---- a rehearsal --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a CPU folder with a kernel of each group, a model, and an item without its file."""
    out = tmp_path_factory.mktemp("rehearsal") / "folder"
    names = ("gemm_bf16_k64", "gather_f32_1mb", "attention_bf16", "transpose_f32_1mb")
    items = list(rehearsed_items(names))
    model = dense_model()
    draws = graphs.reseed(model)
    port = {"name": "x", "shape": [2, 3, 8, 8], "dtype": "f32", "draw": "normal"}
    facts = row("dense_f32", "model", "f32", inputs=[port], graph="dense", bytes=0, flops=0)
    items.append(Item(model, draws, {"precision": "f32"}, {**facts, "tolerance": 1e-4}))
    facts = row("dense_bf16", "model", "bf16", inputs=[port], graph="dense", bytes=0, flops=0)
    items.append(Item(model, draws, {"precision": "bf16"}, facts))
    index = make_folder(out, iter(items), ["cpu"], compile_with_tcc)
    assert not index["refused"]
    (out / "artifacts" / "transpose_f32_1mb.zip").unlink()
    return out


def test_a_rehearsal_runs_every_step_of_the_other_half(rehearsed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(rehearsed / "gpu_check"), "--run", str(rehearsed)]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    job = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, env=bare)
    results = json.loads(out.read_text())
    log = out.with_suffix(".log").read_text()
    assert job.returncode == 1, job.stdout + log  # because of the missing file
    assert results["rehearsal"]
    assert "failed" not in results["device"], log
    items = results["items"]
    missing = items.pop("transpose_f32_1mb")
    assert "FileNotFoundError" in missing["failed"]["kernel"]
    assert report.failures(results) == [], log
    for name in ("gemm_bf16_k64", "gather_f32_1mb", "attention_bf16"):
        assert items[f"small_{name}"]["error"] <= items[name]["facts"]["tolerance"]
        assert items[name]["timed"] == "graph"
        assert items[name]["seconds"] > 0 < items[name]["torch_seconds"]
    assert items["gather_f32_1mb"]["share"] > 0
    assert items["gemm_bf16_k64"]["share"] > 0
    for name, tasks in (("dense_f32", ("", "compiled_")), ("dense_bf16", ("", "autotuned_"))):
        assert all(items[name][f"{task}seconds"] > 0 for task in tasks), items[name]
    text = out.with_suffix(".txt").read_text()
    assert text.startswith("REHEARSAL on this CPU")
    assert text in job.stdout
    assert "steps in 470 s:" in job.stdout


def test_kernels_run_alone_under_a_tool(rehearsed: Path) -> None:
    names = ("small_gemm_bf16_k64", "small_gather_f32_1mb")
    command = [sys.executable, "-m", "gpu.small", str(rehearsed), *names]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(command, cwd=rehearsed, capture_output=True, text=True, env=bare)
    assert process.returncode == 0, process.stderr
    assert [line.split(":")[0] for line in process.stdout.splitlines()] == list(names)


def test_no_rehearsal_is_kept_among_results(rehearsed: Path, tmp_path: Path) -> None:
    index = json.loads((rehearsed / "index.json").read_text())
    reason = run.why_not(index, tmp_path / "scripts" / "results" / "gpu.json")
    assert reason is not None
    assert "must not hold" in reason
    assert run.why_not(index, tmp_path / "gpu.json") is None


def test_small_kernels_are_those_of_full_size() -> None:
    def stem(name: str) -> str:
        return "_".join(part for part in name.split("_") if part[0] not in "k0123456789")

    small, full = ({stem(k.name) for k in kernels(*sizes)} for sizes in ((SMALL,), ()))
    assert small == full


def test_times_are_of_single_runs_and_results_do_not_share_memory() -> None:
    device, calls, alive = Cpu(), [], []

    def first(i: int) -> Any:
        calls.append(i)
        alive.append(torch.zeros(4096))
        return alive[-1]

    def second(i: int) -> None:
        sum(range(20_000))

    works = [measure.Work(first, 3), measure.Work(second, 1)]
    quick, slow = measure.compare(device, works)
    assert slow.seconds > 5 * quick.seconds
    assert set(calls) == {0, 1, 2}
    assert quick.how == slow.how == "graph"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of two kernels, compiled for the CPU instead of the GPU; a third kernel is
    refused."""
    out = tmp_path_factory.mktemp("gpu") / "folder"

    def compile_item(model: onnx.ModelProto, options: Mapping[str, Any], path: Path) -> None:
        assert options["target"] == "cuda:sm_90"
        if "Softmax" in {node.op_type for node in model.graph.node}:
            raise UserError("this one is refused")
        compile_with_weights(model, path)

    names = ("transpose_f32_8mb", "reduce_rows_f32_8mb", "softmax_f32_8mb")
    items = (kernel_item(kernel) for kernel in kernels() if kernel.name in names)
    make_folder(out, items, ["sm_90"], compile_item)
    return out


def compile_with_weights(model: onnx.ModelProto, path: Path) -> None:
    """Compiles a model for the CPU with a weight section, which GPU artifacts always have."""
    array = np.zeros((1024,), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(array, "zeros"))
    model.graph.node.add().CopyFrom(helper.make_node("Identity", ["zeros"], ["unused"]))
    model.graph.output.add().CopyFrom(
        helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1024])
    )
    compile_model(model, read_options({"target": "cpu"}), path)


def test_a_folder_holds_all_that_a_run_needs(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    assert [item["name"] for item in index["items"]] == ["transpose_f32_8mb", "reduce_rows_f32_8mb"]
    assert list(index["refused"]) == ["softmax_f32_8mb"]
    assert (folder / "tcc" / "runtime" / "module.py").is_file()
    # only the folder's own tcc, no Triton, no onnx
    code = (
        "import sys; sys.path[0] = sys.argv[1]\n"
        "sys.modules.update(dict.fromkeys(('onnx', 'triton', 'llvmlite')))\n"
        "import gpu.run, gpu.worker, tcc\n"
        "assert tcc.__file__.startswith(sys.argv[1]), tcc.__file__\n"
    )
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=bare)


def test_without_a_gpu_a_run_says_so(folder: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, str(folder / "gpu_check"), "--run", str(folder)]
    command += ["--json", str(tmp_path / "out.json")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stdout == "gpu_check: torch sees no GPU on this machine; nothing was measured\n"
    assert not (tmp_path / "out.json").exists()


def test_a_worker_answers_and_ends_when_it_takes_too_long(folder: Path, tmp_path: Path) -> None:
    worker = run.Worker(folder, tmp_path / "log")
    try:
        assert worker.ready(0.0) == "took more than 0 s"  # it imports torch
        assert worker.ready(120.0) == ""
        os.kill(worker._process.pid, signal.SIGSTOP)
        slow = worker.ask({"task": "device", "item": {}}, 0.0)
        assert slow == {"failed": "took more than 0 s", "broken": True}
        assert worker.ready(120.0) == ""
        answer = worker.ask({"task": "nonsense", "item": {}, "device": "cpu"}, 120.0)
        assert answer == {"failed": "KeyError: 'nonsense'"}
    finally:
        worker.close()
