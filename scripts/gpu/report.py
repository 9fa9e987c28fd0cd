"""Writes results as a table, and lists failures and missed goals; needs only the standard
library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu.names import TORCH_MODES

# The speed goals of kernels. A kernel of the group "memory" must reach this share of the bandwidth
# of a copy, and a kernel of the group "matrix" this share of the speed of the vendor's matmul.
# ATTENTION is the name of a kernel and its goal in FLOP per second.
GOALS = {"memory": 0.85, "matrix": 0.95}
ATTENTION = ("attention_bf16", 500e12)
# The tasks that check or time tcc, and the tasks that profile it or time its peers: the frameworks
# to which it is compared.
OURS = ("device", "small", "sanitize", "collectives", "model", "steps", "kernel", "host")
OTHERS = ("compiled", "autotuned", "jax", "profile")
_MISSING = "-"
# A price holds if HOLDS[0] <= time / price <= HOLDS[1]. Of a model's steps, the table has the
# _LONGEST.
HOLDS = (0.7, 1.4)
_LONGEST = 20


def failures(results: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each wrong or missing result of tcc.

    A result is wrong if its error exceeds both the tolerance and torch's error in the same
    precision.
    """
    sentences = [f"{name}: not compiled: {why}" for name, why in results["refused"].items()]
    sentences += _failed(results, OURS)
    for name, item in results["items"].items():
        limit = max(item["facts"]["tolerance"], item.get("torch_error", 0.0))
        if "error" in item and not item["error"] <= limit:
            sentences.append(f"{name}: error {item['error']:.2g} > {limit:.2g}")
    return sentences + [
        f"{s}: no time was left" for s in results["skipped"] if s.split()[0] in OURS
    ]


def absent(results: Mapping[str, Any]) -> list[str]:
    """Returns a sentence with the reason for each missing measurement that is not one of tcc.

    Missing are times of peers (torch and JAX, to which tcc is compared), or profiles.
    """
    late = [s for s in results["skipped"] if s.split()[0] in OTHERS]
    return _failed(results, OTHERS) + [f"{step}: no time was left" for step in late]


def _failed(results: Mapping[str, Any], tasks: tuple[str, ...]) -> list[str]:
    places = {"device": results["device"], **results.get("tools", {}), **results["items"]}
    return [
        f"{name}: {task} failed: {why}"
        for name, place in places.items()
        for task, why in place.get("failed", {}).items()
        if task in tasks
    ]


def missed(results: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each speed goal that was measured and missed."""
    sentences = []
    for name, item in results["items"].items():
        goal = GOALS.get(item["facts"]["group"])
        if _judged(name, item["facts"]) and goal is not None and item.get("share", goal) < goal:
            sentences.append(f"{name}: {item['share']:.0%} of {goal:.0%}")
        if name == ATTENTION[0] and item.get("flops_per_second", ATTENTION[1]) < ATTENTION[1]:
            sentences.append(f"{name}: {item['flops_per_second'] / 1e12:.0f} TFLOP/s of 500")
        tcc_seconds, torch_seconds = item.get("seconds", 0.0), _best_of_torch(item)
        if (
            item["facts"]["precision"] == "bf16"
            and torch_seconds is not None
            and tcc_seconds > torch_seconds
        ):
            sentences.append(
                f"{name}: {tcc_seconds / torch_seconds:.2f} times torch.compile's time"
            )
    return sentences


def _best_of_torch(item: Mapping[str, Any]) -> float | None:
    """Returns the seconds of torch.compile in the fastest of its measured modes."""
    seconds = [item[f"{mode}_seconds"] for mode in TORCH_MODES if f"{mode}_seconds" in item]
    return min(seconds, default=None)


def _judged(name: str, facts: Mapping[str, Any]) -> bool:
    """Returns True if GOALS apply to the kernel `name`.

    They do not apply to twins. Among the matmuls, they apply only to those in bf16 with many rows
    ("gemm_bf16...").
    """
    if "twin_of" in facts:
        return False
    return name.startswith("gemm_bf16") or not name.startswith(("gemm", "decode"))


def table(results: Mapping[str, Any]) -> str:
    """Returns the report as text: device, kernels, models, failures and missed goals."""
    lines = [*_device(results), *_tools(results), "", *_kernels(results), "", *_models(results)]
    lines += [*_steps(results), *_hosts(results)]
    sections = {"wrong or missing": failures(results), "not had of others": absent(results)}
    if not results["rehearsal"]:
        sections["goals missed"] = missed(results)
    for title, rows in sections.items():
        lines += ["", f"{title}: {len(rows)}", *(f"  {row}" for row in rows)]
    return "\n".join(lines) + "\n"


def _device(results: Mapping[str, Any]) -> Iterator[str]:
    facts = results["device"]
    if results["rehearsal"]:
        yield "REHEARSAL on this CPU with small sizes: no figure here holds for a GPU"
    yield f"{results['date']}  {facts.get('device', 'no device')}  ({', '.join(results['archs'])})"
    if "copy_bytes_per_second" in facts:
        yield f"{facts['driver']}; torch {facts['torch']}, {facts['platform']}"
        yield (
            f"copy {facts['copy_bytes_per_second'] / 1e9:.0f} GB/s, "
            f"bf16 matmuls {facts['matrix_flops_per_second'] / 1e12:.0f} TFLOP/s"
        )
        if not facts["jax"]:
            yield "JAX is not installed there: not timed"


def _tools(results: Mapping[str, Any]) -> Iterator[str]:
    yield from _structure(results)
    small = [item for item in results["items"].values() if item["facts"]["kind"] == "small"]
    if small:
        worst = max((item["error"] for item in small if "error" in item), default=float("nan"))
        passed = sum("error" in item for item in small)
        yield f"small sizes: {passed} of {len(small)} kernels ran, largest error {worst:.1e}"
    for name, item in results["items"].items():
        if item["facts"]["kind"] == "collectives":
            yield f"{name}: {item.get('said', 'failed')}"
    for name, tool in results.get("tools", {}).items():
        yield f"{name}: {tool.get('said', 'failed')}"


def _kernels(results: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{'kernel':28}{'error':>9}{'us':>10}{'price us':>10}{'torch us':>10}{'jax us':>10}"
        f"{'GB/s':>8}{'TFLOP/s':>9}{'of peak':>8}{'share':>7}"
    )
    for name, item in results["items"].items():
        if item["facts"]["kind"] == "kernel":
            yield (
                f"{name:28}{_number(item, 'error', 1, '.1e'):>9}"
                f"{_number(item, 'seconds', 1e6, '.1f'):>10}"
                f"{_number(item['facts'], 'price', 1e6, '.1f'):>10}"
                f"{_number(item, 'torch_seconds', 1e6, '.1f'):>10}"
                f"{_number(item, 'jax_seconds', 1e6, '.1f'):>10}"
                f"{_number(item, 'bytes_per_second', 1e-9, '.0f'):>8}"
                f"{_number(item, 'flops_per_second', 1e-12, '.1f'):>9}"
                f"{_of_peak(item, results['device']):>8}"
                f"{_number(item, 'share', 1, '.0%'):>7}"
                f"{'  not as a graph' if item.get('timed') == 'events' else ''}{_form(item)}"
            )
    yield "of peak: of the copy bandwidth or of the bf16 matmuls above, the larger share;"
    yield "share: of a copy of as many bytes, or of torch's speed for matmuls, timed in turns;"
    yield "torch: a function of its own, or images whose channels come last, if that is faster"


def _form(item: Mapping[str, Any]) -> str:
    """Returns the form in which torch is fastest unless it is the model's own operators."""
    refused = "".join(f"  torch refuses {name}" for name in item.get("torch_refused", {}))
    form = item.get("torch_form", "eager")
    return ("" if form == "eager" else f"  torch: {form}") + refused


def _of_peak(item: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    shares = [
        item[rate] / device[peak]
        for rate, peak in (
            ("bytes_per_second", "copy_bytes_per_second"),
            ("flops_per_second", "matrix_flops_per_second"),
        )
        if rate in item and peak in device
    ]
    return f"{max(shares):.0%}" if shares else _MISSING


def _models(results: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{'model':24}{'error':>9}{'torch err':>10}{'tcc ms':>9}{'price ms':>9}{'eager ms':>9}"
        f"{'compile ms':>11}{'tuned ms':>9}{'jax ms':>9}"
    )
    for name, item in results["items"].items():
        if item["facts"]["kind"] == "model":
            yield (
                f"{name:24}{_number(item, 'error', 1, '.1e'):>9}"
                f"{_number(item, 'torch_error', 1, '.1e'):>10}"
                f"{_number(item, 'seconds', 1e3, '.3f'):>9}"
                f"{_number(item['facts'], 'price', 1e3, '.3f'):>9}"
                f"{_number(item, 'eager_seconds', 1e3, '.3f'):>9}"
                f"{_number(item, 'compiled_seconds', 1e3, '.3f'):>11}"
                f"{_number(item, 'autotuned_seconds', 1e3, '.3f'):>9}"
                f"{_number(item, 'jax_seconds', 1e3, '.3f'):>9}"
            )
    for column, mode in zip(("compile", "tuned"), TORCH_MODES.values(), strict=True):
        yield f"{column}: torch.compile in mode {mode}, which records CUDA graphs"


def _steps(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the longest steps of each model whose steps were timed, beside their prices."""
    for name, item in results["items"].items():
        times = item.get("step_seconds", [])
        if not times:
            continue
        rows = list(zip(times, item["facts"]["priced"], strict=True))
        priced = [(t, step["seconds"]) for t, step in rows if "seconds" in step and t > 0]
        holds = sum(HOLDS[0] <= t / price <= HOLDS[1] for t, price in priced if price)
        yield ""
        yield (
            f"{name}: {len(rows)} steps in {sum(times) * 1e6:.1f} us, "
            f"{holds} of {len(priced)} within {HOLDS[0]} to {HOLDS[1]} of their price"
        )
        yield f"  {'us':>8}{'price us':>10}  {'limit':10}source"
        for seconds, step in sorted(rows, key=lambda row: -row[0])[:_LONGEST]:
            yield (
                f"  {seconds * 1e6:8.1f}{_number(step, 'seconds', 1e6, '.1f'):>10}  "
                f"{step.get('limit') or _MISSING:10}{step['source'][:60]}"
            )


def _structure(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the compile says of the kernels' code, before any of it runs."""
    steps = [s for item in results["items"].values() for s in item["facts"].get("priced", ())]
    kernels = [step for step in steps if "registers" in step]
    if kernels:
        gluon = sum(step["language"] == "gluon" for step in kernels)
        spilling = sum(step["private"] > 0 for step in kernels)
        yield (
            f"structure: {len(kernels)} kernels, {gluon} of them in Gluon, {spilling} spill, "
            f"at most {max(step['registers'] for step in kernels)} registers a lane"
        )


def _hosts(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the times of matmuls on the machine's CPU."""
    items = {n: i for n, i in results["items"].items() if i["facts"]["kind"] == "host"}
    if not items:
        return
    yield ""
    cpu = next((i["host_cpu"] for i in items.values() if "host_cpu" in i), "not measured")
    yield f"CPU of this machine: {cpu}; ms of tcc / ms of torch by threads"
    for name, item in items.items():
        times = "  ".join(
            f"{threads}: {ours * 1e3:.3f} / {theirs * 1e3:.3f}"
            for threads, (ours, theirs) in item.get("host_seconds", {}).items()
        )
        yield f"  {name:26}{_number(item, 'error', 1, '.1e'):>9}  {times or item.get('said', '-')}"


def _number(item: Mapping[str, Any], key: str, factor: float, form: str) -> str:
    value = item.get(key)
    return _MISSING if not isinstance(value, float) else format(value * factor, form)
