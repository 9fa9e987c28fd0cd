"""Runs single steps on the GPU for `run.py`: a line of JSON in, a line of JSON out.

It is a process of its own, so that a step that hangs or breaks the device's context ends with it.
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
from gpu.devices import Device, device_of
from gpu.measure import TYPES, Timing, Work, compare, draw, error, input_sets, latency
from gpu.names import TORCH_MODES
from gpu.torch_graph import build, draws_of

Request = Mapping[str, Any]


@cache
def _graph(folder: str, name: str) -> Any:
    return json.loads((Path(folder) / "graphs" / f"{name}.json").read_text())


def device(request: Request, where: Device) -> dict[str, Any]:
    """What this machine is, its copy bandwidth and its bf16 matrix peak."""
    n = where.peak
    a, b = (torch.randn(n, n, device=where.name).bfloat16() for _ in range(2))
    product, copied = compare(where, [Work(lambda i: torch.mm(a, b), 1), _copy(where, where.large)])
    return {
        **where.facts(),
        "torch": torch.__version__,
        "copy_bytes_per_second": where.large / copied.seconds,
        "matrix_flops_per_second": 2 * n**3 / product.seconds,
        "jax": importlib.util.find_spec("jax") is not None,
    }


def _copy(where: Device, moved: int) -> Work:
    """A copy that moves `moved` bytes, half of them read."""
    spec = {"name": "copy", "shape": [moved // 8], "dtype": "f32", "draw": "normal"}
    sets = [tensors[0] for tensors in input_sets([spec], where)]
    targets = [torch.empty_like(x) for x in sets]
    return Work(lambda i: targets[i].copy_(sets[i]), len(sets))


def kernel(request: Request, where: Device) -> dict[str, Any]:
    """A kernel's error against torch, its time, and its share of what bounds it."""
    os.environ["TCC_GRAPHS"] = "0"  # the runs are recorded from here
    item = request["item"]
    module, reference = _module(request, where), _reference(request, where)
    sets = input_sets(item["inputs"], where)
    result: dict[str, Any] = {"error": _kernel_error(module, reference, sets[0], item)}
    works = [
        Work(lambda i: module(*sets[i]), len(sets)),
        # what torch returns as a view must be written, as it is here
        Work(lambda i: [x.contiguous() for x in reference(*sets[i])], len(sets)),
    ]
    if item["group"] == "memory":
        works.append(_copy(where, item["bytes"]))
    with _tf32(item["precision"] == "tf32"), torch.inference_mode():
        ours, theirs, *copied = compare(where, works)
    return result | _rates(item, ours, theirs, copied)


def small(request: Request, where: Device) -> dict[str, Any]:
    """The error of a kernel of small sizes, which is run twice."""
    item = request["item"]
    module, reference = _module(request, where), _reference(request, where)
    inputs = [draw(spec, where.name, 0) for spec in item["inputs"]]
    errors = [_kernel_error(module, reference, inputs, item) for _ in range(2)]
    where.synchronize()
    return {"error": max(errors)}


def _rates(
    item: Mapping[str, Any], ours: Timing, theirs: Timing, copied: list[Timing]
) -> dict[str, Any]:
    found = {
        "seconds": ours.seconds, "timed": ours.how, "torch_seconds": theirs.seconds,
        "torch_timed": theirs.how, "bytes_per_second": item["bytes"] / ours.seconds,
        "flops_per_second": item["flops"] / ours.seconds,
    }  # fmt: skip
    if copied:
        found["share"] = copied[0].seconds / ours.seconds
    elif item["group"] == "matrix":
        found["share"] = theirs.seconds / ours.seconds
    return found


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


def _reference(request: Request, where: Device) -> Any:
    return build(_graph(request["folder"], request["item"]["graph"])).to(where.name)


def _module(request: Request, where: Device) -> Any:
    """The artifact of an item, its weights made from their seeds, loaded."""
    item = request["item"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{item['name']}.so"
        draws = draws_of(_graph(request["folder"], item["graph"]))
        unpack(Path(request["folder"]) / "artifacts" / f"{item['name']}.zip", draws, path)
        module = runtime.load(path)
        # the weights are on the device once a run ended; until then the file must be there
        inputs = [draw(spec, where.name, 0) for spec in item["inputs"]]
        module(*inputs)
        where.synchronize()
    return module


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return tuple(found) if isinstance(found, tuple) else (found,)


def model(request: Request, where: Device) -> dict[str, Any]:
    """A model's error against torch in float32, and its latency beside torch's eager mode."""
    os.environ.pop("TCC_GRAPHS", None)
    item = request["item"]
    module, reference = _module(request, where), _reference(request, where)
    inputs = [draw(spec, where.name, 1) for spec in item["inputs"]]
    with _tf32(False), torch.inference_mode():
        exact = reference(*inputs)
    result = {"error": error(_tuple(module(*inputs)), exact)}
    result["seconds"] = latency(where, lambda: module(*inputs))
    theirs, given = _in_precision(reference, inputs, item)
    with _tf32(False), torch.inference_mode():
        result["torch_error"] = error(theirs(*given), exact)
        result["eager_seconds"] = latency(where, lambda: theirs(*given))
    return result


def _in_precision(
    reference: Any, inputs: list[Tensor], item: Mapping[str, Any]
) -> tuple[Any, list[Tensor]]:
    dtype = TYPES[item["precision"]]
    return reference.to(dtype), [x.to(dtype) if x.is_floating_point() else x for x in inputs]


def compiled(request: Request, where: Device) -> dict[str, Any]:
    """The latency of torch.compile, which records CUDA graphs; it tunes little."""
    return _compiled(request, where, "compiled")


def autotuned(request: Request, where: Device) -> dict[str, Any]:
    """The latency of torch.compile at its best, which takes long to compile."""
    return _compiled(request, where, "autotuned")


def _compiled(request: Request, where: Device, name: str) -> dict[str, Any]:
    inputs = [draw(spec, where.name, 1) for spec in request["item"]["inputs"]]
    theirs, given = _in_precision(_reference(request, where), inputs, request["item"])
    torch._dynamo.reset()
    with _tf32(False), torch.inference_mode():
        fast = torch.compile(theirs, fullgraph=True, **where.compile_options(TORCH_MODES[name]))
        begun = time.perf_counter()
        fast(*given)
        where.synchronize()
        spent = time.perf_counter() - begun
        seconds = latency(where, lambda: fast(*given))
    torch._dynamo.reset()
    return {f"{name}_seconds": seconds, f"{name}_after": spent}


def jax(request: Request, where: Device) -> dict[str, Any]:
    """The latency of the item's graph in JAX, and that it is the same graph."""
    # it needs jax, which the other steps do not
    seconds_of = importlib.import_module("gpu.jax_worker").seconds_of
    item = request["item"]
    reference = _reference(request, where)
    inputs = [draw(spec, where.name, 1) for spec in item["inputs"]]
    exact = [x.float() if x.is_floating_point() else x for x in inputs]
    with _tf32(False), torch.inference_mode():
        wanted = [x.cpu() for x in reference(*exact)]
    found = seconds_of(request, [x.cpu().numpy() for x in exact], where.seconds)
    outputs = [torch.from_numpy(x.copy()) for x in found.pop("outputs")]
    return {**found, "jax_error": error(outputs, wanted)}


def collectives(request: Request, where: Device) -> dict[str, Any]:
    """Operations of a comm of one rank, and a model with one."""
    del where
    return check(Path(request["folder"]))


TASKS: dict[str, Callable[[Request, Device], dict[str, Any]]] = {
    "device": device, "small": small, "kernel": kernel, "model": model, "compiled": compiled,
    "autotuned": autotuned, "jax": jax, "collectives": collectives,
}  # fmt: skip


def answer(request: Request) -> dict[str, Any]:
    """The result of one request, or why there is none."""
    try:
        where = device_of(request["device"])
        result = TASKS[request["task"]](request, where)
        where.forget()
    # whatever one step raises is its result; the others go on
    except Exception as failure:
        traceback.print_exc()
        return {"failed": f"{type(failure).__name__}: {failure}"[:2000]}
    return {"result": result}


def main() -> None:
    # libraries print to standard output; answers have a way of their own
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
