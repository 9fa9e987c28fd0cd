"""Plans the steps of a run: their order, and their expected times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu.names import STEPPED
from gpu.news import rank
from gpu.tools import CHECKS, PROFILER, SANITIZER


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long steps of one kind take, in seconds.

    A step takes at most `limit`, and starts only if `minimum` is left. `expected` is an estimate
    for a server's GPU.
    """

    limit: float
    minimum: float
    expected: float


# The time until a new worker process is ready: it imports torch and starts the device. The first
# process may have to read torch's files over a network.
READY = StepSeconds(150.0, 5.0, 10.0)
KINDS = {
    "device": StepSeconds(60.0, 10.0, 5.0),
    "small": StepSeconds(20.0, 5.0, 1.0),
    "collectives": StepSeconds(60.0, 10.0, 10.0),
    "sanitize": StepSeconds(110.0, 20.0, 30.0),
    "profile": StepSeconds(60.0, 20.0, 20.0),
    "model": StepSeconds(75.0, 10.0, 8.0),
    "steps": StepSeconds(40.0, 8.0, 4.0),
    "kernel": StepSeconds(30.0, 5.0, 2.0),
    "compiled": StepSeconds(110.0, 20.0, 25.0),
    "autotuned": StepSeconds(150.0, 40.0, 75.0),
    "jax": StepSeconds(60.0, 15.0, 15.0),
    "host": StepSeconds(40.0, 12.0, 12.0),
}


@dataclass(frozen=True, slots=True)
class GpuStep:
    """A request to the worker: a task of KINDS, on an item.

    `item` is a row of the index, {} for the task "device", or {"name": ..., "of": names of kernels}
    for a tool.
    """

    task: str
    item: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.item.get("name", "device"))


# The profiler gets the first kernel whose name begins with each of these prefixes.
_PROFILED = ("gemm_bf16", "attention_bf16", "decode_bf16", "softmax_f32", "conv3x3_bf16")


def plan(
    items: Sequence[Mapping[str, Any]], tools: Sequence[str] = (), brief: bool = False
) -> Iterator[GpuStep]:
    """Yields all steps, the most important first; if time is short, the last steps are left out.

    `items` are rows of the index, and `tools` the tools that this machine has. Kernels of small
    sizes come before all others: first for their results, then under the sanitizer's first check if
    the sanitizer is among `tools`. Next comes one kernel in Gluon of each group with its twin in
    Triton, to tell early if kernels in Gluon run. Then come the items that no run has measured,
    the items whose code has changed since the last run, and the rest. Peers are timed last. A
    `brief` plan has one step of each tool.
    """
    models = [item for item in items if item["kind"] == "model"]
    kernels = [item for item in items if item["kind"] == "kernel"]
    first = _scouts(kernels)
    compared = [i for i in _newest(models) if i["precision"] == "bf16" and "twin_of" not in i]
    late = [item for item in _newest(models) if item["precision"] != "bf16"]
    small = [item for item in items if item["kind"] == "small"]
    checks = _checks(small)[: 1 if brief else None] if SANITIZER in tools else []
    profiles = list(_profiles(kernels))[: 1 if brief else None] if PROFILER in tools else []
    yield GpuStep("device", {})
    yield from (GpuStep("small", item) for item in small)
    yield from checks[:1]
    yield from (GpuStep("collectives", item) for item in items if item["kind"] == "collectives")
    yield from (GpuStep("kernel", item) for item in first)
    yield from checks[1:]
    ours = _ours(models, [item for item in kernels if item not in first])
    ours += [GpuStep("host", item) for item in items if item["kind"] == "host"]
    yield from sorted(ours, key=lambda step: rank(step.item))
    yield from profiles
    yield from (GpuStep("compiled", item) for item in compared)
    yield from (GpuStep("jax", item) for item in (*compared, *kernels) if _is_for_jax(item))
    yield from (GpuStep("autotuned", item) for item in compared)
    yield from (GpuStep("compiled", item) for item in late)


def _newest(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the items in another order: what no run has measured comes first."""
    return sorted(items, key=rank)


def _ours(
    models: Sequence[Mapping[str, Any]], kernels: Sequence[Mapping[str, Any]]
) -> list[GpuStep]:
    """Returns the steps that time tcc: first items that a speed goal names, models before
    kernels."""
    steps = []
    for urgency in (True, False):
        group = [item for item in models if (item["precision"] == "bf16") == urgency]
        steps += [GpuStep("model", item) for item in group]
        steps += [GpuStep("steps", item) for item in group if item["name"] in STEPPED]
        steps += [GpuStep("kernel", item) for item in kernels if _is_urgent(item) == urgency]
    return steps


def _checks(small: Sequence[Mapping[str, Any]]) -> list[GpuStep]:
    """Returns a step for each check of the sanitizer, on all kernels that the check supports.

    `small` are the rows of the kernels at small sizes.
    """
    doubled = with_twins(small)
    steps = []
    for check in CHECKS:
        blind = doubled if check in _BLIND else ()
        names = [item["name"] for item in small if item["name"] not in blind]
        steps += [GpuStep("sanitize", {"name": check, "of": names})] if names else []
    return steps


# These checks of compute-sanitizer (CUDA 13.0) support neither barriers between specialised warps
# nor stores through tensor maps. For kernels in Gluon they would report only false errors.
_BLIND = ("racecheck", "initcheck")


def _profiles(kernels: Sequence[Mapping[str, Any]]) -> Iterator[GpuStep]:
    """Yields a step for each prefix of _PROFILED; it profiles the first such kernel."""
    for kind in _PROFILED:
        names = [k["name"] for k in kernels if k["name"].startswith(kind) and "twin_of" not in k]
        if names:
            yield GpuStep("profile", {"name": f"ncu_{kind}", "of": names[:1]})


def with_twins(items: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the names of the items with a twin in Triton: they may have kernels in Gluon."""
    return frozenset(item["twin_of"] for item in items if "twin_of" in item)


def _scouts(kernels: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns, for each group of kernels, the first kernel that has a twin, and its twin."""
    doubled = with_twins(kernels)
    first_of_group: dict[str, Mapping[str, Any]] = {}
    for item in kernels:
        if item["name"] in doubled:
            first_of_group.setdefault(item["group"], item)
    names = {item["name"] for item in first_of_group.values()}
    return [k for k in kernels if k["name"] in names or k.get("twin_of") in names]


def _is_urgent(item: Mapping[str, Any]) -> bool:
    """Returns True if a speed goal names the kernel."""
    return bool(item["precision"] == "bf16" or item["group"] == "memory")


def _is_for_jax(item: Mapping[str, Any]) -> bool:
    compared = item["name"].startswith(("attention", "gemm_bf16")) and "twin_of" not in item
    return item["kind"] == "model" or compared


def forecast(steps: Sequence[GpuStep], seconds: float) -> str:
    """Returns a text with the expected time of each kind of step and the `seconds` available."""
    lines, expected, first = [], 0.0, 0
    while first < len(steps):
        task = steps[first].task
        count = next((i for i, s in enumerate(steps[first:]) if s.task != task), len(steps) - first)
        expected += count * KINDS[task].expected
        late = "" if expected <= seconds else "  (where time is left)"
        lines.append(f"  {task:10}{count:4} steps, until {expected:5.0f} s{late}")
        first += count
    return "\n".join([f"{len(steps)} steps in {seconds:.0f} s:", *lines])
