"""Describes an artifact on a page for a terminal: `tcc inspect ARTIFACT`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tcc.runtime.kernel_facts import KernelFacts, kernel_facts
from tcc.runtime.summary_text import code_text, memory_text, narrow_rows
from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text

# The kernels, the ports and the states that a page lists.
_KERNELS, _PORTS, _STATES = 5, 20, 4
# The keys of a plan's record that do not count a kind of collectives.
_PLAN = {"variant", "target", "ranks", "weight_bytes_of_a_rank", "collectives"}
_NARROW = ("bf16", "f16")


def page(manifest: Mapping[str, Any], path: Path, size: int, needs: str) -> Iterator[str | Table]:
    """Yields the page: the code, the memory, the ports, the slowest kernels, and further commands.

    `size` is the size of the file in bytes, and `needs` names the C library that it needs.
    Raises LookupError, TypeError or ValueError where the manifest is malformed.
    """
    compiler = f", compiled by tcc {manifest['tcc']}" if "tcc" in manifest else ""
    yield f"{path}: {bytes_text(size)}{compiler}"
    yield Table([*_facts(manifest, needs)], has_heads=False)
    yield ""
    yield Table([*_ports(manifest)])
    variants = manifest["variants"]
    if len(variants) == 1 and "kernels" in variants[0]:
        yield ""
        yield Table([*_kernels(kernel_facts(variants[0]))])
    yield ""
    yield f"more: tcc inspect {shlex.quote(str(path))} --kernels, --measure or --json"


def _facts(manifest: Mapping[str, Any], needs: str) -> Iterator[tuple[str, str]]:
    """Yields (label, text) for the code and the memory of each variant, and for what inputs get."""
    precision = str(manifest.get("precision", "f32"))
    record = {
        "ops": manifest.get("ops", 0),
        "precision": precision,
        "specialisations": 0,
        "needs": needs,
    }
    narrow = manifest.get("quantized") or (precision if precision in _NARROW else "")
    for variant in manifest["variants"]:
        images = variant.get("gpu", {}).get("images", ())
        summary = {
            "target": variant.get("target", manifest.get("target", {}).get("text", "")),
            "kernels": variant.get("kernel_count", 0),
            "arena": variant.get("arena_bytes"),
            "weights": variant["weights"]["bytes"],
            "growth": None,
            "needs": max((image["needs"] for image in images), default=""),
        }
        yield "target", code_text(record, summary)
        yield "memory", memory_text(record, summary)
        yield from narrow_rows(narrow, variant.get("weight_types", {}), variant.get("wide", ()))
        buckets = (", ".join(f"{k}={v}" for k, v in b.items()) for b in variant.get("buckets", ()))
        if sizes := "; ".join(buckets):
            yield "sizes", f"own kernels for {sizes}"
    states = manifest.get("appends", ())
    for item in states[:_STATES]:
        yield "state", f"{item['input']} grows by {item['rows']} along axis {item['axis']}"
    if len(states) > _STATES:
        yield "state", f"{len(states) - _STATES} more grow"
    for asset in manifest.get("assets", ()):
        yield "asset", f"{asset['name']}, {bytes_text(asset['bytes'])}"
    for name, table in manifest.get("preprocess", {}).get("inputs", {}).items():
        settings = ", ".join(f"{key}={value}" for key, value in table.items())
        yield "input", f"{name} is read with {settings}"
    for plan in manifest.get("plans", ()):
        weights = bytes_text(plan["weight_bytes_of_a_rank"])
        kinds = (f"{plan[kind]} {kind}" for kind in sorted(plan.keys() - _PLAN))
        text = ", ".join((f"weights {weights} a rank", *kinds))
        yield "plan", f"{plan['ranks']} ranks: {text}"


def _ports(manifest: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield "", "type", "shape", "name"
    for kind in ("input", "output"):
        ports = manifest[f"{kind}s"]
        for port in ports[:_PORTS]:
            yield kind, str(port["dtype"]), str(port["text"]), str(port["name"])
        if len(ports) > _PORTS:
            yield f"{kind}s", "", "", f"and {len(ports) - _PORTS} more"


def _kernels(facts: KernelFacts) -> Iterator[Sequence[str]]:
    """Yields the kernels whose launches in a run are predicted to take longest together."""
    seconds: dict[int, float] = {}
    for step in facts.steps:
        if isinstance(step, int):
            seconds[step] = seconds.get(step, 0.0) + facts.kernels[step].seconds
    run_seconds = sum(seconds.values())
    yield "us", "share", "limit", "slowest kernels as predicted"
    for number in sorted(seconds, key=lambda n: -seconds[n])[:_KERNELS]:
        kernel, share = facts.kernels[number], seconds[number] / run_seconds if run_seconds else 0.0
        limit = kernel.limit or ""
        yield f"{seconds[number] * 1e6:.1f}", f"{share:.1%}", limit, kernel.source
    yield f"{run_seconds * 1e6:.1f}", "", "", f"all {len(seconds)} kernels"
