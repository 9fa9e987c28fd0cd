"""Runs single steps on the GPU for `run.py`: a line of JSON in, a line of JSON out.

It is a process of its own, so that a step that hangs or breaks the device's context ends with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tcc import runtime
from torch import Tensor

from gpu.carry import unpack
from gpu.measure import TYPES, device_seconds, draw, error, input_sets, latency
from gpu.torch_graph import build, draws_of

_DEVICE = "cuda"
_SECONDS = 0.4  # of one measurement
_PEAK = 8192
_LARGE = 512 << 20


def _graph(folder: Path, item: Mapping[str, Any]) -> Any:
    return json.loads((folder / "graphs" / f"{item['graph']}.json").read_text())


def device(request: Mapping[str, Any]) -> dict[str, Any]:
    """What this machine is, its copy bandwidth and its bf16 matrix peak."""
    facts, hip = torch.cuda.get_device_properties(0), torch.version.hip
    n = _PEAK
    a, b = (torch.randn(n, n, device=_DEVICE).bfloat16() for _ in range(2))
    seconds, _ = device_seconds(lambda i: torch.mm(a, b), 1, 2 * _SECONDS)
    return {
        "device": facts.name,
        "driver": _driver(),
        "torch": torch.__version__,
        "platform": f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
        "capability": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
        "copy_bytes_per_second": _copy_rate(2 * _LARGE),
        "matrix_flops_per_second": 2 * n**3 / seconds,
        "jax": importlib.util.find_spec("jax") is not None,
    }


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0] if version.exists() else "unknown"


def _copy_rate(moved: int) -> float:
    """Bytes per second of a copy that moves `moved` bytes, half of them read."""
    spec = {"name": "copy", "shape": [moved // 8], "dtype": "f32", "draw": "normal"}
    sets = [tensors[0] for tensors in input_sets([spec], _DEVICE)]
    targets = [torch.empty_like(x) for x in sets]
    seconds, _ = device_seconds(lambda i: targets[i].copy_(sets[i]), len(sets), _SECONDS)
    return moved / seconds


def kernel(request: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's error against torch, its time, and its share of what bounds it."""
    os.environ["TCC_GRAPHS"] = "0"  # the runs are recorded from here
    folder, item = Path(request["folder"]), request["item"]
    module, reference = _module(folder, item), build(_graph(folder, item)).to(_DEVICE)
    sets = input_sets(item["inputs"], _DEVICE)
    result: dict[str, Any] = {"error": _kernel_error(module, reference, sets[0], item)}
    # a run with an array of the host ends before it returns
    least = min(range(len(sets[0])), key=lambda place: sets[0][place].numel())
    mixed = [x.cpu() if place == least else x for place, x in enumerate(sets[0])]
    seconds, how = device_seconds(
        lambda i: module(*sets[i]), len(sets), _SECONDS, settle=lambda: module(*mixed)
    )
    result |= {"seconds": seconds, "timed": how}
    result["bytes_per_second"] = item["bytes"] / seconds
    result["flops_per_second"] = item["flops"] / seconds
    with _tf32(item["precision"] == "tf32"), torch.inference_mode():
        theirs, _ = device_seconds(lambda i: reference(*sets[i]), len(sets), _SECONDS)
    result["torch_seconds"] = theirs
    if item["group"] == "memory":
        result["share"] = item["bytes"] / seconds / _copy_rate(item["bytes"])
    elif item["group"] == "matrix":
        result["share"] = theirs / seconds
    return result


class _tf32:
    """Whether torch may round products of float32 to eleven bits."""

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
    found = _tuple(module(*inputs))
    wider = torch.float64 if item["precision"] in ("f32", "tf32") else torch.float32
    with _tf32(False), torch.inference_mode():
        exact = [x.to(wider) if x.is_floating_point() else x for x in inputs]
        return error(found, reference(*exact))


def _module(folder: Path, item: Mapping[str, Any]) -> Any:
    """The artifact of an item, its weights made from their seeds, loaded."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{item['name']}.so"
        draws = draws_of(_graph(folder, item))
        unpack(folder / "artifacts" / f"{item['name']}.zip", draws, path)
        module = runtime.load(path)
        # the weights are on the device once a run ended; until then the file must be there
        inputs = [draw(spec, _DEVICE, 0) for spec in item["inputs"]]
        module(*inputs)
        torch.cuda.synchronize()
    return module


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


def model(request: Mapping[str, Any]) -> dict[str, Any]:
    """A model's error against torch in float32, and its latency beside torch's eager mode."""
    os.environ.pop("TCC_GRAPHS", None)
    folder, item = Path(request["folder"]), request["item"]
    module = _module(folder, item)
    inputs = [draw(spec, _DEVICE, 1) for spec in item["inputs"]]
    reference = build(_graph(folder, item)).to(_DEVICE)
    with _tf32(False), torch.inference_mode():
        exact = reference(*inputs)
    result = {"error": error(_tuple(module(*inputs)), exact)}
    result["seconds"] = latency(lambda: module(*inputs), _SECONDS, time.perf_counter)
    theirs, given = _in_precision(reference, inputs, item)
    with _tf32(False), torch.inference_mode():
        result["torch_error"] = error(theirs(*given), exact)
        result["eager_seconds"] = latency(lambda: theirs(*given), _SECONDS, time.perf_counter)
    return result


def _in_precision(
    reference: Any, inputs: list[Tensor], item: Mapping[str, Any]
) -> tuple[Any, list[Tensor]]:
    dtype = TYPES[item["precision"]]
    return reference.to(dtype), [x.to(dtype) if x.is_floating_point() else x for x in inputs]


def compiled(request: Mapping[str, Any]) -> dict[str, Any]:
    """The latency of torch.compile with max-autotune, which records CUDA graphs."""
    folder, item = Path(request["folder"]), request["item"]
    inputs = [draw(spec, _DEVICE, 1) for spec in item["inputs"]]
    theirs, given = _in_precision(build(_graph(folder, item)).to(_DEVICE), inputs, item)
    with _tf32(False), torch.inference_mode():
        fast = torch.compile(theirs, mode="max-autotune", fullgraph=True)
        begun = time.perf_counter()
        fast(*given)
        torch.cuda.synchronize()
        spent = time.perf_counter() - begun
        seconds = latency(lambda: fast(*given), _SECONDS, time.perf_counter)
    return {"compiled_seconds": seconds, "compile_took": spent}


TASKS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "device": device, "kernel": kernel, "model": model, "compiled": compiled,
}  # fmt: skip


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one request, or why there is none."""
    try:
        return {"result": TASKS[request["task"]](request)}
    # whatever one step raises is its result; the others go on
    except Exception as failure:
        traceback.print_exc()
        return {"failed": f"{type(failure).__name__}: {failure}"[:2000]}


def main() -> None:
    # libraries print to standard output; answers have a way of their own
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
