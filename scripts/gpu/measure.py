"""Draws inputs, and measures times and errors on the device, in torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from gpu.devices import MeasuredDevice, Start
from gpu.draws import seed_of

TYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "f64": torch.float64, "i8": torch.int8, "f8": torch.float8_e4m3fn,
}  # fmt: skip
_MOST_SETS = 64
_BATCHES = 7

Run = Callable[[int], Any]  # run(i) starts a run on input set number i


@dataclass(frozen=True, slots=True)
class Work:
    """Work to time: call(0), ..., call(sets - 1) in turn, each on another set of inputs."""

    call: Run
    sets: int


@dataclass(frozen=True, slots=True)
class DeviceTiming:
    """The seconds of a run on the device.

    `how` is "graph" if the runs were recorded (as a CUDA graph), else "events".
    """

    seconds: float
    how: str


def draw(spec: Mapping[str, Any], device: str, seed: int) -> Tensor:
    """Returns an input as `spec`, a row of the index, describes it.

    Equal seeds give equal arrays on a device.
    """
    generator = torch.Generator(device).manual_seed(seed_of(f"{spec['name']}/{seed}"))
    shape, dtype = tuple(spec["shape"]), TYPES[spec["dtype"]]
    match spec["draw"]:
        case "integers":
            bounds = spec["low"], spec["high"] + 1
            return torch.randint(*bounds, shape, generator=generator, device=device, dtype=dtype)
        case "mask":
            row = torch.arange(shape[-1], device=device) < spec["low"]
            return row.to(dtype).expand(shape).contiguous()
        case "image":
            return torch.rand(shape, generator=generator, device=device).to(dtype)
        case "normal" | "latent":
            return torch.randn(shape, generator=generator, device=device).to(dtype)
    raise ValueError(f"inputs cannot be drawn as {spec['draw']!r}")


def input_sets(specs: Sequence[Mapping[str, Any]], device: MeasuredDevice) -> list[list[Tensor]]:
    """Returns sets of inputs with equal shapes and different values.

    Together they are larger than any cache, so that no run finds its arrays in a cache.
    """
    size = sum(prod(s["shape"]) * TYPES[s["dtype"]].itemsize for s in specs)
    count = max(1, min(_MOST_SETS, -(-device.cache_bytes // max(size, 1))))
    return [[draw(spec, device.name, number) for spec in specs] for number in range(count)]


def error(results: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """Returns the largest difference of an output, divided by the largest value of its reference.

    Returns infinity for NaN, and for another number or shape of outputs.
    """
    if len(results) != len(references):
        return float("inf")
    worst = 0.0
    for a, b in zip(results, references, strict=True):
        if a.shape != b.shape:
            return float("inf")
        exact = b.to(torch.float64) if b.numel() < 1 << 28 else b.float()
        difference = (a.to(exact.dtype) - exact).abs().max().item()
        share = difference / max(exact.abs().max().item(), 1e-30)
        worst = max(worst, share) if share == share else float("inf")
    return worst


def compare(device: MeasuredDevice, works: Sequence[Work]) -> list[DeviceTiming]:
    """Returns the median time of a run of each work.

    The works take turns, so that clock rates and heat affect all equally. A turn is a sequence of
    runs over all input sets. If possible, it is recorded as one graph; otherwise a launch that
    takes longer than its run counts in the time.
    """
    prepared = [_prepare(device, work) for work in works]
    times: list[list[float]] = [[] for _ in works]
    for _ in range(_BATCHES):
        for (start, calls, _how), samples in zip(prepared, times, strict=True):
            samples.append(device.timed(start, 1) / calls)
    return [
        DeviceTiming(statistics.median(samples), how)
        for (_start, _calls, how), samples in zip(prepared, times, strict=True)
    ]


def _prepare(device: MeasuredDevice, work: Work) -> tuple[Start, int, str]:
    """Prepares a turn of `work` and runs it once.

    Returns (function that starts a turn, number of runs in a turn, "graph" or "events").
    """
    for i in range(3):
        work.call(i % work.sets)
    device.synchronize()
    once = device.timed(lambda: work.call(0), 3) / 3
    calls = max(1, min(200, int(device.seconds / _BATCHES / max(once, 1e-6))))
    calls = max(calls // work.sets, 1) * work.sets if calls > work.sets else calls
    # Keep each result until the next run on the same inputs. So the results of a turn have
    # different addresses, and a cache cannot hold all of them.
    results: list[Any] = [None] * work.sets

    def batch() -> None:
        for i in range(calls):
            results[i % work.sets] = work.call(i % work.sets)

    recorded = device.recorded(batch)
    start, how = (batch, "events") if recorded is None else (recorded, "graph")
    start()
    device.synchronize()
    return start, calls, how


def latency(device: MeasuredDevice, start: Start) -> float:
    """Returns the median seconds from a call to its result, over at least five runs."""
    for _ in range(3):
        start()
    device.synchronize()
    times: list[float] = []
    start_time = time.perf_counter()
    while len(times) < 5 or (
        time.perf_counter() - start_time < device.seconds and len(times) < 1000
    ):
        before = time.perf_counter()
        start()
        device.synchronize()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
