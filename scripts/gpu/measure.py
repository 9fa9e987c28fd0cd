"""Inputs, times and errors on the device, in torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gpu.draws import seed_of

TYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "f64": torch.float64,
}  # fmt: skip
# What runs take turns through, so that no run finds its arrays in a cache.
_ROTATED_BYTES = 256 << 20
_MOST_SETS = 32
_BATCHES = 7

Run = Callable[[int], Any]  # starts the work on input set i


def draw(spec: Mapping[str, Any], device: str, seed: int) -> Tensor:
    """An input as its row of the index says; equal seeds give equal arrays on one device."""
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
        case "normal":
            return torch.randn(shape, generator=generator, device=device).to(dtype)
    raise ValueError(f"inputs cannot be drawn as {spec['draw']!r}")


def input_sets(specs: Sequence[Mapping[str, Any]], device: str) -> list[list[Tensor]]:
    """Equal shapes, other values; as many as are larger than any cache together."""
    size = sum(prod(s["shape"]) * TYPES[s["dtype"]].itemsize for s in specs)
    count = max(1, min(_MOST_SETS, -(-_ROTATED_BYTES // max(size, 1))))
    return [[draw(spec, device, number) for spec in specs] for number in range(count)]


def error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of an output, relative to its largest value; inf for NaN."""
    if len(found) != len(wanted):
        return float("inf")
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a.shape != b.shape:
            return float("inf")
        exact = b.to(torch.float64) if b.numel() < 1 << 28 else b.float()
        difference = (a.to(exact.dtype) - exact).abs().max().item()
        share = difference / max(exact.abs().max().item(), 1e-30)
        worst = max(worst, share) if share == share else float("inf")
    return worst


def device_seconds(
    run: Run, sets: int, seconds: float, settle: Callable[[], Any] = lambda: None
) -> tuple[float, str]:
    """Seconds of one run on the device, the median of batches, and how it was taken.

    A batch is one graph of runs over all input sets where they can be recorded, else the runs one
    after the other: then the time of launching counts where it is longer.  After `settle` no run
    may have to wait for an earlier one: what is recorded cannot wait for what is not.
    """
    for i in range(3):
        run(i % sets)
    torch.cuda.synchronize()
    once = _events(lambda: run(0), 3) / 3
    calls = max(1, min(200, int(seconds / _BATCHES / max(once, 1e-6))))
    calls = max(calls // sets, 1) * sets if calls > sets else calls

    def batch() -> None:
        for i in range(calls):
            run(i % sets)

    settle()
    how, start = "graph", _recorded(batch)
    if start is None:
        _settle_again(settle)
        how, start = "events", batch
    start()
    return statistics.median(_events(start, 1) for _ in range(_BATCHES)) / calls, how


def _recorded(batch: Callable[[], None]) -> Callable[[], None] | None:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            batch()
    except RuntimeError:  # something in it waits, or allocates in a way that cannot be recorded
        torch.cuda.synchronize()
        return None
    return graph.replay


def _settle_again(settle: Callable[[], Any]) -> None:
    """After a recording that failed: a run that cannot wait for it fails, and forgets it."""
    try:
        settle()
    except RuntimeError:
        settle()


def _events(start: Callable[[], Any], times: int) -> float:
    """Seconds between two events around `times` starts."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(times):
        start()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


def latency(start: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Median seconds from the call until the result is there, over at least five runs."""
    for _ in range(3):
        start()
    torch.cuda.synchronize()
    times: list[float] = []
    begun = clock()
    while len(times) < 5 or (clock() - begun < seconds and len(times) < 1000):
        before = clock()
        start()
        torch.cuda.synchronize()
        times.append(clock() - before)
    return statistics.median(times)
