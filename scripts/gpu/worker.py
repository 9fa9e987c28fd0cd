"""Runs single steps on the GPU for `run.py`: reads a line of JSON and writes a line of JSON.

The worker is a process of its own: a step may hang or break the device's context, and then only the
worker has to end.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tcc import runtime
from torch import Tensor

from gpu.carry import unpack
from gpu.collectives import check
from gpu.devices import Cpu, MeasuredDevice, device_of
from gpu.measure import TYPES, DeviceTiming, Work, compare, draw, error, input_sets, latency
from gpu.names import TORCH_MODES
from gpu.peers import Form, Prepare, channels_last, forms, has_images, reason_of_failure
from gpu.torch_graph import build, draws_of

Request = Mapping[str, Any]
_STEP_RUNS = 20
_HOST_SECONDS = 0.3


@cache
def _graph(folder: str, name: str) -> Any:
    return json.loads((Path(folder) / "graphs" / f"{name}.json").read_text())


def device(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the names of the device and of torch, the copy bandwidth, and the rate of matmuls.

    The matmuls are of large matrices in bf16.
    """
    size = device.peak
    a, b = (torch.randn(size, size, device=device.name).bfloat16() for _ in range(2))
    matmul, copy = compare(device, [Work(lambda i: torch.mm(a, b), 1), _copy(device, device.large)])
    return {
        **device.facts(),
        "torch": torch.__version__,
        "copy_bytes_per_second": device.large / copy.seconds,
        "matrix_flops_per_second": 2 * size**3 / matmul.seconds,
        "jax": importlib.util.find_spec("jax") is not None,
    }


def _copy(device: MeasuredDevice, traffic: int) -> Work:
    """Returns the work of a copy that reads and writes `traffic` bytes in total."""
    spec = {"name": "copy", "shape": [traffic // 8], "dtype": "f32", "draw": "normal"}
    sets = [tensors[0] for tensors in input_sets([spec], device)]
    targets = [torch.empty_like(x) for x in sets]
    return Work(lambda i: targets[i].copy_(sets[i]), len(sets))


def kernel(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns a kernel's error against torch, and the times and rates of both.

    "share" is its speed as a share of the speed of a copy (group "memory") or of torch's matmul
    (group "matrix").
    """
    item = request["item"]
    # tcc shall not record CUDA graphs here: `compare` records the runs of all works itself.
    with patch.dict(os.environ, TCC_GRAPHS="0"):
        module = _module(request, device)
    reference = _reference(request, device)
    sets = input_sets(item["inputs"], device)
    result: dict[str, Any] = {"error": _kernel_error(module, reference, sets[0], item)}
    works, refused = _peer_works(request, reference, sets)
    copies = [_copy(device, item["bytes"])] if item["group"] == "memory" else []
    ours = Work(lambda i: module(*sets[i]), len(sets))
    with _tf32(item["precision"] == "tf32"), torch.inference_mode():
        tcc_time, *times = compare(device, [ours, *works.values(), *copies])
    torch_times = dict(zip(works, times, strict=False))
    if torch_times:
        result["torch_form"] = min(torch_times, key=lambda name: torch_times[name].seconds)
    if refused:
        result["torch_refused"] = refused
    torch_time = torch_times.get(result.get("torch_form", ""))
    return result | _rates(item, tcc_time, torch_time, times[len(works) :])


def _peer_works(
    request: Request, reference: Any, sets: list[list[Tensor]]
) -> tuple[dict[str, Work], dict[str, str]]:
    """Returns (the work of each form in which torch is timed, why torch refuses other forms)."""
    graph, works, refused = _graph(request["folder"], request["item"]["graph"]), {}, {}
    for name, (form, prepare) in forms(reference, request["item"], graph).items():
        reason = reason_of_failure(form, [prepare(x) for x in sets[0]])
        if reason:
            refused[name] = reason
        else:
            works[name] = _peer_work(name, form, prepare, sets)
    return works, refused


def _peer_work(name: str, form: Form, prepare: Prepare, sets: list[list[Tensor]]) -> Work:
    """Returns the work of a form in which torch is timed, on its own layout of the inputs."""
    prepared = [[prepare(x) for x in inputs] for inputs in sets]
    if name == "channels-last":
        return Work(lambda i: form(*prepared[i]), len(sets))
    # torch may return a view without copying elements. tcc always writes its results, so torch must
    # do so too.
    return Work(lambda i: [x.contiguous() for x in form(*prepared[i])], len(sets))


def small(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the larger error of two runs of a kernel at small sizes."""
    item = request["item"]
    module, reference = _module(request, device), _reference(request, device)
    inputs = [draw(spec, device.name, 0) for spec in item["inputs"]]
    errors = [_kernel_error(module, reference, inputs, item) for _ in range(2)]
    device.synchronize()
    return {"error": max(errors)}


def _rates(
    item: Mapping[str, Any],
    tcc_time: DeviceTiming,
    torch_time: DeviceTiming | None,
    copies: list[DeviceTiming],
) -> dict[str, Any]:
    rates = {
        "seconds": tcc_time.seconds, "timed": tcc_time.how,
        "bytes_per_second": item["bytes"] / tcc_time.seconds,
        "flops_per_second": item["flops"] / tcc_time.seconds,
    }  # fmt: skip
    if torch_time is not None:
        rates |= {"torch_seconds": torch_time.seconds, "torch_timed": torch_time.how}
    if copies:
        rates["share"] = copies[0].seconds / tcc_time.seconds
    elif item["group"] == "matrix" and torch_time is not None:
        rates["share"] = torch_time.seconds / tcc_time.seconds
    return rates


class _tf32:
    """A context in which torch may, or may not, use tf32 for matmuls of float32.

    tf32 rounds the operands to eleven significant bits.
    """

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed

    def __enter__(self) -> None:
        self._before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self._allowed
        torch.backends.cudnn.allow_tf32 = self._allowed

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self._before


def _kernel_error(
    module: Any, reference: Any, inputs: list[Tensor], item: Mapping[str, Any]
) -> float:
    outputs = _tuple(module(*inputs))
    wider = torch.float64 if item["precision"] in ("f32", "tf32") else torch.float32
    with _tf32(False), torch.inference_mode():
        exact = [x.to(wider) if x.is_floating_point() else x for x in inputs]
        # Constants of 16 bits get the type of the inputs.
        return error(outputs, copy.deepcopy(reference).to(wider)(*exact))


def _reference(request: Request, device: MeasuredDevice) -> Any:
    return build(_graph(request["folder"], request["item"]["graph"])).to(device.name)


def _module(
    request: Request, device: MeasuredDevice, timed: bool = False, threads: int | None = None
) -> Any:
    """Returns the loaded artifact of an item after a first run.

    The artifact was carried without the weights that seeds determine; they are drawn here. With
    `timed`, the module measures the time of each of its steps. `threads` bounds its threads.
    """
    item = request["item"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{item['name']}.so"
        draws = draws_of(_graph(request["folder"], item["graph"]))
        unpack(Path(request["folder"]) / "artifacts" / f"{item['name']}.zip", draws, path)
        module = runtime.load(path, threads, timed=timed)
        # The first run copies the weights to the device. The file must exist until then.
        inputs = [draw(spec, device.name, 0) for spec in item["inputs"]]
        module(*inputs)
        device.synchronize()
    return module


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def model(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the error of tcc and of torch in the item's precision against torch in float32.

    Also returns the latencies of both, without torch.compile.
    """
    item = request["item"]
    module, reference = _module(request, device), _reference(request, device)
    inputs = [draw(spec, device.name, 1) for spec in item["inputs"]]
    with _tf32(False), torch.inference_mode():
        exact = reference(*inputs)
    result = {"error": error(_tuple(module(*inputs)), exact)}
    result["seconds"] = latency(device, lambda: module(*inputs))
    torch_model, operands = _in_precision(request, reference, inputs)
    with _tf32(False), torch.inference_mode():
        result["torch_error"] = error(torch_model(*operands), exact)
        result["eager_seconds"] = latency(device, lambda: torch_model(*operands))
    return result


def steps(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the seconds of a launch of each step of a model, in runs of the whole model.

    They are the times of `tcc inspect --measure`: each is the median of several runs. The clock
    itself delays the steps, so the sum exceeds the model's latency.
    """
    item = request["item"]
    module = _module(request, device, timed=True)
    inputs = [draw(spec, device.name, 1) for spec in item["inputs"]]
    sums = []
    for _ in range(_STEP_RUNS + 1):
        module(*inputs)
        device.synchronize()
        sums.append(module.times())
    runs = [
        [(b.seconds - a.seconds) / max(1, b.count - a.count) for a, b in zip(*pair, strict=True)]
        for pair in pairwise(sums)
    ]
    seconds = [statistics.median(times) for times in zip(*runs, strict=True)]
    if len(seconds) != len(item["priced"]):
        raise ValueError(f"{len(seconds)} steps are timed, {len(item['priced'])} are priced")
    return {"step_seconds": seconds}


def _in_precision(
    request: Request, reference: Any, inputs: list[Tensor]
) -> tuple[Any, list[Tensor]]:
    """Returns the torch model and its inputs, converted to the item's precision.

    Images and filters of models with convolutions have their channels last.
    """
    item = request["item"]
    dtype = TYPES[item["precision"]]
    operands = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    if not has_images(_graph(request["folder"], item["graph"])):
        return reference.to(dtype), operands
    module = reference.to(dtype=dtype, memory_format=torch.channels_last)
    return module, [channels_last(x) for x in operands]


def compiled(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the latency of torch.compile in the mode "reduce-overhead"."""
    return _compiled(request, device, "compiled")


def autotuned(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the latency of torch.compile in the mode "max-autotune", which compiles for long."""
    return _compiled(request, device, "autotuned")


def _compiled(request: Request, device: MeasuredDevice, name: str) -> dict[str, Any]:
    """Returns the latency of torch.compile, and the seconds of its first call.

    `name` is a key of TORCH_MODES.
    """
    inputs = [draw(spec, device.name, 1) for spec in request["item"]["inputs"]]
    torch_model, operands = _in_precision(request, _reference(request, device), inputs)
    torch._dynamo.reset()
    with _tf32(False), torch.inference_mode():
        compiled_model = torch.compile(
            torch_model, fullgraph=True, **device.compile_options(TORCH_MODES[name])
        )
        start_time = time.perf_counter()
        compiled_model(*operands)
        device.synchronize()
        compile_seconds = time.perf_counter() - start_time
        seconds = latency(device, lambda: compiled_model(*operands))
    torch._dynamo.reset()
    return {f"{name}_seconds": seconds, f"{name}_after": compile_seconds}


def jax(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the latency of the item's graph in JAX, and JAX's error against torch."""
    # imported here, because only this step needs JAX
    seconds_of = importlib.import_module("gpu.jax_worker").seconds_of
    item = request["item"]
    reference = _reference(request, device)
    inputs = [draw(spec, device.name, 1) for spec in item["inputs"]]
    exact = [x.float() if x.is_floating_point() else x for x in inputs]
    with _tf32(False), torch.inference_mode():
        expected = [x.cpu() for x in reference(*exact)]
    result = seconds_of(request, [x.cpu().numpy() for x in exact], device.seconds)
    outputs = [torch.from_numpy(x.copy()) for x in result.pop("outputs")]
    return {**result, "jax_error": error(outputs, expected)}


def host(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Returns the error and the times of a matmul on the machine's CPU, on 1 to 16 threads.

    "host_seconds" maps the number of threads to the seconds of (tcc, torch). The result has only
    "said" if the artifact needs instructions that the CPU lacks.
    """
    item, cpu = request["item"], Cpu()
    cpu.seconds = _HOST_SECONDS if device.name == "cuda" else cpu.seconds
    inputs = [draw(spec, cpu.name, 1) for spec in item["inputs"]]
    reference, times = _reference(request, cpu), {}
    plain = torch._int_mm if item["precision"] == "i8" else torch.mm
    before, worst = torch.get_num_threads(), 0.0
    try:
        for threads in _host_threads():
            try:
                module = _module(request, cpu, threads=threads)
            except runtime.RuntimeFailure as failure:
                return {"said": str(failure).splitlines()[0]}
            worst = max(worst, _kernel_error(module, reference, inputs, item))
            torch.set_num_threads(threads)
            works = [Work(lambda i, run=f: run(*inputs), 1) for f in (module, plain)]
            times[str(threads)] = [timing.seconds for timing in compare(cpu, works)]
    finally:
        torch.set_num_threads(before)
    return {"error": worst, "host_seconds": times, "host_cpu": _cpu_name()}


def _host_threads() -> list[int]:
    """Returns 1, 2, 4, 8 and 16, as far as this process may use so many CPUs."""
    cpus = len(os.sched_getaffinity(0))
    return [threads for threads in (1, 2, 4, 8, 16) if threads <= cpus]


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "?")


def collectives(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Checks the operations of a comm of one rank, and a model with a collective."""
    del device
    return check(Path(request["folder"]))


TASKS: dict[str, Callable[[Request, MeasuredDevice], dict[str, Any]]] = {
    "device": device, "small": small, "kernel": kernel, "model": model, "steps": steps,
    "compiled": compiled, "autotuned": autotuned, "jax": jax, "collectives": collectives,
    "host": host,
}  # fmt: skip


def answer(request: Request) -> dict[str, Any]:
    """Returns the result of a request, or the reason of its failure."""
    try:
        device = device_of(request["device"])
        result = TASKS[request["task"]](request, device)
        device.forget()
    # A step that fails must not end the process, which other steps will use.
    except Exception as failure:
        traceback.print_exc()
        return {"failed": f"{type(failure).__name__}: {failure}"[:2000]}
    return {"result": result}


def main() -> None:
    # Libraries print to standard output. So answers are written to a copy of its file descriptor,
    # and the descriptor itself then leads to standard error.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        torch.backends.cudnn.benchmark = True  # cuDNN then tries its kernels for each shape
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        answers.write('{"ready": true}\n')
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
