"""Results as a table, and what of them is wrong.  Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What is to be reached: shares of the copy bandwidth and of the vendor's product, FLOP per second.
GOALS = {"memory": 0.85, "matrix": 0.95}
ATTENTION = ("attention_bf16", 500e12)
_MISSING = "-"


def failures(results: Mapping[str, Any]) -> list[str]:
    """Wrong and missing results, one sentence each."""
    found = [f"{name}: not compiled: {why}" for name, why in results["refused"].items()]
    found += [f"device: {why}" for why in results["device"].get("failed", {}).values()]
    for name, item in results["items"].items():
        found += [f"{name}: {task} failed: {w}" for task, w in item.get("failed", {}).items()]
        if "error" in item and not item["error"] <= item["facts"]["tolerance"]:
            found.append(f"{name}: error {item['error']:.2g} > {item['facts']['tolerance']:.2g}")
    return found + [f"{step}: no time was left" for step in results["skipped"]]


def missed(results: Mapping[str, Any]) -> list[str]:
    """Goals of speed that were measured and not reached, one sentence each."""
    found = []
    for name, item in results["items"].items():
        goal = GOALS.get(item["facts"]["group"])
        if _judged(name) and goal is not None and item.get("share", goal) < goal:
            found.append(f"{name}: {item['share']:.0%} of {goal:.0%}")
        if name == ATTENTION[0] and item.get("flops_per_second", ATTENTION[1]) < ATTENTION[1]:
            found.append(f"{name}: {item['flops_per_second'] / 1e12:.0f} TFLOP/s of 500")
        ours, theirs = item.get("seconds", 0.0), item.get("compiled_seconds")
        if item["facts"]["precision"] == "bf16" and theirs is not None and ours > theirs:
            found.append(f"{name}: {ours / theirs:.2f} times torch.compile's time")
    return found


def _judged(name: str) -> bool:
    """Whether a goal names the kernel: of products, those in bf16 with many rows."""
    return name.startswith("gemm_bf16") or not name.startswith(("gemm", "decode"))


def table(results: Mapping[str, Any]) -> str:
    """The results for people."""
    lines = [*_device(results), "", *_kernels(results), "", *_models(results)]
    for title, rows in (("wrong or missing", failures(results)), ("goals missed", missed(results))):
        lines += ["", f"{title}: {len(rows)}", *(f"  {row}" for row in rows)]
    return "\n".join(lines) + "\n"


def _device(results: Mapping[str, Any]) -> Iterator[str]:
    facts = results["device"]
    yield f"{results['date']}  {facts.get('device', 'no device')}  ({', '.join(results['archs'])})"
    if "copy_bytes_per_second" in facts:
        yield f"{facts['driver']}; torch {facts['torch']}, {facts['platform']}"
        yield (
            f"copy {facts['copy_bytes_per_second'] / 1e9:.0f} GB/s, "
            f"bf16 products {facts['matrix_flops_per_second'] / 1e12:.0f} TFLOP/s"
        )
        if facts["jax"]:
            yield "JAX is installed; it is not timed"


def _kernels(results: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{'kernel':28}{'error':>10}{'us':>10}{'torch us':>10}{'GB/s':>8}{'TFLOP/s':>9}{'share':>8}"
    )
    for name, item in results["items"].items():
        if item["facts"]["kind"] == "kernel":
            yield (
                f"{name:28}{_number(item, 'error', 1, '.1e'):>10}"
                f"{_number(item, 'seconds', 1e6, '.1f'):>10}"
                f"{_number(item, 'torch_seconds', 1e6, '.1f'):>10}"
                f"{_number(item, 'bytes_per_second', 1e-9, '.0f'):>8}"
                f"{_number(item, 'flops_per_second', 1e-12, '.1f'):>9}"
                f"{_number(item, 'share', 1, '.0%'):>8}"
                f"{'  not as a graph' if item.get('timed') == 'events' else ''}"
            )


def _models(results: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{'model':28}{'error':>10}{'torch err':>10}{'tcc ms':>10}{'eager ms':>10}"
        f"{'compile ms':>11}"
    )
    for name, item in results["items"].items():
        if item["facts"]["kind"] == "model":
            yield (
                f"{name:28}{_number(item, 'error', 1, '.1e'):>10}"
                f"{_number(item, 'torch_error', 1, '.1e'):>10}"
                f"{_number(item, 'seconds', 1e3, '.3f'):>10}"
                f"{_number(item, 'eager_seconds', 1e3, '.3f'):>10}"
                f"{_number(item, 'compiled_seconds', 1e3, '.3f'):>11}"
            )


def _number(item: Mapping[str, Any], key: str, factor: float, form: str) -> str:
    value = item.get(key)
    return _MISSING if not isinstance(value, float) else format(value * factor, form)
