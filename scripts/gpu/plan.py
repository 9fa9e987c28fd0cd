"""Which steps a run takes, in which order, and how long they should take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu.tools import CHECKS, PROFILER, SANITIZER


@dataclass(frozen=True, slots=True)
class Kind:
    """A step's time in seconds: at most `most`, not begun with less than `least`, and `expected`,
    which is a guess for a GPU of a server."""

    most: float
    least: float
    expected: float


# Reading torch and opening the device, for each process anew; the first time files may come over a
# network.
READY = Kind(150.0, 5.0, 10.0)
KINDS = {
    "device": Kind(60.0, 10.0, 5.0),
    "small": Kind(20.0, 5.0, 1.0),
    "collectives": Kind(60.0, 10.0, 10.0),
    "sanitize": Kind(75.0, 20.0, 30.0),
    "profile": Kind(60.0, 20.0, 20.0),
    "model": Kind(75.0, 10.0, 8.0),
    "kernel": Kind(30.0, 5.0, 2.0),
    "compiled": Kind(110.0, 20.0, 25.0),
    "autotuned": Kind(150.0, 40.0, 75.0),
    "jax": Kind(60.0, 15.0, 15.0),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the worker; `item` is a row of the index, empty for the device."""

    task: str
    item: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.item.get("name", "device"))


# What is profiled, by the start of names.
_PROFILED = ("gemm_bf16", "attention_bf16", "decode_bf16", "softmax_f32", "conv3x3_bf16")


def plan(items: Sequence[Mapping[str, Any]], tools: Sequence[str] = ()) -> Iterator[Step]:
    """All steps, the most important first: what may be left out when time is short comes last.

    Kernels of small sizes go before all others, for results and under the first check of the
    sanitizer where it is among `tools`.  Of kernels in Gluon, and of their twins in Triton, one of
    each group comes next: they tell early whether such kernels run.
    """
    models = [item for item in items if item["kind"] == "model"]
    kernels = [item for item in items if item["kind"] == "kernel"]
    urgent, others = (
        [i for i in models if (i["precision"] == "bf16") == wanted] for wanted in (True, False)
    )
    first = _scouts(kernels)
    rest = [item for item in kernels if item not in first]
    compared = [item for item in urgent if "twin_of" not in item]
    small = [item for item in items if item["kind"] == "small"]
    checks = _checks(small) if SANITIZER in tools else []
    yield Step("device", {})
    yield from (Step("small", item) for item in small)
    yield from checks[:1]
    yield from (Step("collectives", item) for item in items if item["kind"] == "collectives")
    yield from (Step("kernel", item) for item in first)
    yield from checks[1:]
    yield from (Step("model", item) for item in urgent)
    yield from (Step("kernel", item) for item in rest if _is_urgent(item))
    yield from (Step("model", item) for item in others)
    yield from (Step("kernel", item) for item in rest if not _is_urgent(item))
    yield from _profiles(kernels) if PROFILER in tools else ()
    yield from (Step("compiled", item) for item in compared)
    yield from (Step("jax", item) for item in (*compared, *kernels) if _is_for_jax(item))
    yield from (Step("autotuned", item) for item in compared)
    yield from (Step("compiled", item) for item in others)


def _checks(small: Sequence[Mapping[str, Any]]) -> list[Step]:
    """The sanitizer's checks, each of the kernels that it understands."""
    doubled = with_twins(small)
    steps = []
    for check in CHECKS:
        blind = doubled if check in _BLIND else ()
        names = [item["name"] for item in small if item["name"] not in blind]
        steps += [Step("sanitize", {"name": check, "of": names})] if names else []
    return steps


# Checks that do not see the barriers between warps with roles of their own, and what tensor maps
# store (compute-sanitizer of CUDA 13.0): kernels in Gluon would have only false reports.
_BLIND = ("racecheck", "initcheck")


def _profiles(kernels: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    """One kernel of each kind whose speed has a goal."""
    for kind in _PROFILED:
        names = [k["name"] for k in kernels if k["name"].startswith(kind) and "twin_of" not in k]
        if names:
            yield Step("profile", {"name": f"ncu_{kind}", "of": names[:1]})


def with_twins(items: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of items that have a twin without the kernels that are new: those in Gluon."""
    return frozenset(item["twin_of"] for item in items if "twin_of" in item)


def _scouts(kernels: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first kernel of each group that has a twin, and these."""
    doubled = with_twins(kernels)
    found: dict[str, Mapping[str, Any]] = {}
    for item in kernels:
        if item["name"] in doubled:
            found.setdefault(item["group"], item)
    names = {item["name"] for item in found.values()}
    return [k for k in kernels if k["name"] in names or k.get("twin_of") in names]


def _is_urgent(item: Mapping[str, Any]) -> bool:
    """Whether a goal of speed names the kernel."""
    return bool(item["precision"] == "bf16" or item["group"] == "memory")


def _is_for_jax(item: Mapping[str, Any]) -> bool:
    compared = item["name"].startswith(("attention", "gemm_bf16")) and "twin_of" not in item
    return item["kind"] == "model" or compared


def forecast(steps: Sequence[Step], seconds: float) -> str:
    """How long the steps should take beside the `seconds` there are, for people."""
    lines, spent, first = [], 0.0, 0
    while first < len(steps):
        task = steps[first].task
        count = next((i for i, s in enumerate(steps[first:]) if s.task != task), len(steps) - first)
        spent += count * KINDS[task].expected
        late = "" if spent <= seconds else "  (where time is left)"
        lines.append(f"  {task:10}{count:4} steps, until {spent:5.0f} s{late}")
        first += count
    return "\n".join([f"{len(steps)} steps in {seconds:.0f} s:", *lines])
