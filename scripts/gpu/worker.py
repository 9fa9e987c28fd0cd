"""Runs single steps on the GPU for `run.py`: reads a line of JSON and writes a line of JSON.

The worker is a process of its own: a step may hang or break the device's context, and then only the
worker has to end.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tcc import runtime
from torch import Tensor

from gpu.carry import unpack
from gpu.collectives import check
from gpu.devices import MeasuredDevice, device_of
from gpu.measure import TYPES, DeviceTiming, Work, compare, draw, error, input_sets, latency
from gpu.names import TORCH_MODES
from gpu.torch_graph import build, draws_of

Request = Mapping[str, Any]


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
    # tcc shall not record CUDA graphs here: `compare` records the runs of all works itself.
    os.environ["TCC_GRAPHS"] = "0"
    item = request["item"]
    module, reference = _module(request, device), _reference(request, device)
    sets = input_sets(item["inputs"], device)
    result: dict[str, Any] = {"error": _kernel_error(module, reference, sets[0], item)}
    works = [
        Work(lambda i: module(*sets[i]), len(sets)),
        # torch may return a view without copying elements. tcc always writes its results, so torch
        # must do so too.
        Work(lambda i: [x.contiguous() for x in reference(*sets[i])], len(sets)),
    ]
    if item["group"] == "memory":
        works.append(_copy(device, item["bytes"]))
    with _tf32(item["precision"] == "tf32"), torch.inference_mode():
        tcc_time, torch_time, *copies = compare(device, works)
    return result | _rates(item, tcc_time, torch_time, copies)


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
    torch_time: DeviceTiming,
    copies: list[DeviceTiming],
) -> dict[str, Any]:
    rates = {
        "seconds": tcc_time.seconds, "timed": tcc_time.how, "torch_seconds": torch_time.seconds,
        "torch_timed": torch_time.how, "bytes_per_second": item["bytes"] / tcc_time.seconds,
        "flops_per_second": item["flops"] / tcc_time.seconds,
    }  # fmt: skip
    if copies:
        rates["share"] = copies[0].seconds / tcc_time.seconds
    elif item["group"] == "matrix":
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
        return error(outputs, reference(*exact))


def _reference(request: Request, device: MeasuredDevice) -> Any:
    return build(_graph(request["folder"], request["item"]["graph"])).to(device.name)


def _module(request: Request, device: MeasuredDevice) -> Any:
    """Returns the loaded artifact of an item after a first run.

    The artifact was carried without the weights that seeds determine; they are drawn here.
    """
    item = request["item"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{item['name']}.so"
        draws = draws_of(_graph(request["folder"], item["graph"]))
        unpack(Path(request["folder"]) / "artifacts" / f"{item['name']}.zip", draws, path)
        module = runtime.load(path)
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
    os.environ.pop("TCC_GRAPHS", None)
    item = request["item"]
    module, reference = _module(request, device), _reference(request, device)
    inputs = [draw(spec, device.name, 1) for spec in item["inputs"]]
    with _tf32(False), torch.inference_mode():
        exact = reference(*inputs)
    result = {"error": error(_tuple(module(*inputs)), exact)}
    result["seconds"] = latency(device, lambda: module(*inputs))
    torch_model, operands = _in_precision(reference, inputs, item)
    with _tf32(False), torch.inference_mode():
        result["torch_error"] = error(torch_model(*operands), exact)
        result["eager_seconds"] = latency(device, lambda: torch_model(*operands))
    return result


def _in_precision(
    reference: Any, inputs: list[Tensor], item: Mapping[str, Any]
) -> tuple[Any, list[Tensor]]:
    """Returns the torch model and its inputs, converted to the item's precision."""
    dtype = TYPES[item["precision"]]
    return reference.to(dtype), [x.to(dtype) if x.is_floating_point() else x for x in inputs]


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
    torch_model, operands = _in_precision(_reference(request, device), inputs, request["item"])
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


def collectives(request: Request, device: MeasuredDevice) -> dict[str, Any]:
    """Checks the operations of a comm of one rank, and a model with a collective."""
    del device
    return check(Path(request["folder"]))


TASKS: dict[str, Callable[[Request, MeasuredDevice], dict[str, Any]]] = {
    "device": device, "small": small, "kernel": kernel, "model": model, "compiled": compiled,
    "autotuned": autotuned, "jax": jax, "collectives": collectives,
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
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        answers.write('{"ready": true}\n')
        answers.flush()
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
