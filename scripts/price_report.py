"""What prices and measured times of schedules say: statistics of kernels and models, and a table.

Results are JSON as `scripts/price_check --json` prints it.  A kernel's first schedule is the chosen
one; `prices` and `seconds` are lists over its schedules, by the number of threads as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bench_table import aligned
from numpy.typing import NDArray

# Time over price of a kernel whose price holds; the part of kernels for which it is to hold, and
# the least rank correlation.
HOLDS = (0.8, 1.25)
WANTED_HOLD, WANTED_RANK = 0.9, 0.6
FEWEST = 3  # schedules that can be correlated
LEGEND = (
    "us: median over rounds of the chosen schedule; share: of the model's time in these kernels",
    "/price: time over price; rank: Spearman's correlation of price and time over the sample",
    "regret: the chosen schedule's time over the best one's; first: that of the least price",
    "of: schedules measured, of the kernel's whole space; calm: rounds on an undisturbed machine",
)
HEAD = ("kernel", "runs", "us", "share", "/price", "rank", "regret", "first", "of", "calm")


# ---- statistics ---------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """From 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The rank correlation; None for fewer than `FEWEST` pairs, and where one side is all equal."""
    x, y = ranks(a), ranks(b)
    if len(x) < FEWEST or not x.std() or not y.std():
        return None
    return float(np.corrcoef(x, y)[0, 1])


def kernel_figures(kernel: Mapping[str, Any], threads: str) -> dict[str, Any]:
    """Of one kernel: `ratio` of time and price and `regret` of the chosen schedule, `first_regret`
    of the one with the least price, and the `rank` correlation (None: not known)."""
    prices, seconds = kernel["prices"][threads], kernel["seconds"][threads]
    best = min(seconds)
    first = min(range(len(prices)), key=prices.__getitem__)
    return {
        "ratio": seconds[0] / prices[0],
        "rank": spearman(prices, seconds),
        "regret": seconds[0] / best,
        "first_regret": seconds[first] / best,
    }


def model_figures(kernels: Sequence[Mapping[str, Any]], threads: str) -> dict[str, Any]:
    """Of a model, over its kernels, each once: medians, the part whose price holds, and the
    `seconds` of all launches with what the best schedules would take of them."""
    figures = [k["figures"][threads] for k in kernels]
    known = [f["rank"] for f in figures if f["rank"] is not None]
    ratios = [f["ratio"] for f in figures]
    seconds = sum(k["launches"] * k["seconds"][threads][0] for k in kernels)
    best = sum(k["launches"] * min(k["seconds"][threads]) for k in kernels)
    return {
        "kernels": len(kernels),
        "hold": sum(HOLDS[0] <= ratio <= HOLDS[1] for ratio in ratios) / len(ratios),
        "ratio": float(np.median(ratios)),
        "ratios": [min(ratios), max(ratios)],
        "rank": float(np.median(known)) if known else None,
        "regret": float(np.median([f["regret"] for f in figures])),
        "first_regret": float(np.median([f["first_regret"] for f in figures])),
        "seconds": seconds,
        "best_seconds": best,
    }


def completed(results: dict[str, Any]) -> dict[str, Any]:
    """`results` with the figures of kernels and of the model beside what was measured."""
    threads = [str(n) for n in results["threads"]]
    for kernel in results["kernels"]:
        kernel["figures"] = {n: kernel_figures(kernel, n) for n in threads}
    measured = threads if results["kernels"] else []
    results["figures"] = {n: model_figures(results["kernels"], n) for n in measured}
    return results


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all kernels of several models, by the number of threads as text."""
    kernels = [kernel for each in results for kernel in each["kernels"]]
    threads = list(results[0]["figures"]) if kernels else []
    return {n: model_figures(kernels, n) for n in threads}


def met(figures: Mapping[str, Any]) -> bool:
    """Whether prices hold and order schedules as they are to, on every number of threads."""
    return bool(figures) and all(
        f["hold"] >= WANTED_HOLD and f["rank"] is not None and f["rank"] >= WANTED_RANK
        for f in figures.values()
    )


# ---- the table ----------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    """The whole report of a model as text."""
    lines = [
        results["processor"],
        f"prices: the row {results['machine']}; {results['date']}",
        f"{results['model']}, {results['precision']}; up to {results['sample']} schedules a kernel "
        f"beside the chosen one, seed {results['seed']}; {results['rounds']} rounds",
        *LEGEND,
    ]
    for threads, figures in results["figures"].items():
        rows = [HEAD, *(_cells(k, threads, figures) for k in results["kernels"])]
        lines += ["", f"threads: {threads}", *aligned(rows), _summary(figures)]
    left = Counter(results["left_out"].values())
    lines += ["", *(f"not timed: {count} kernels, {why}" for why, count in left.items())]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Of all models together; nothing for a single one."""
    if len(results) < 2:
        return ""
    lines = (f"all, threads: {n}: {_summary(f)}" for n, f in together(results).items())
    return "\n".join((*lines, ""))


def _cells(kernel: Mapping[str, Any], threads: str, model: Mapping[str, Any]) -> list[str]:
    own, seconds, calm = kernel["figures"][threads], kernel["seconds"][threads], kernel["calm"]
    return [
        kernel["name"][:48],
        str(kernel["launches"]),
        f"{seconds[0] * 1e6:.1f}",
        f"{kernel['launches'] * seconds[0] / model['seconds']:.0%}",
        f"{own['ratio']:.2f}",
        _number(own["rank"]),
        f"{own['regret']:.2f}",
        f"{own['first_regret']:.2f}",
        f"{len(seconds)}/{kernel['space']}",
        f"{sum(calm[threads])}/{len(calm[threads])}",
    ]


def _summary(figures: Mapping[str, Any]) -> str:
    least, most = figures["ratios"]
    lost = 1 - figures["best_seconds"] / figures["seconds"]
    return (
        f"{figures['hold']:.0%} of {figures['kernels']} kernels within {HOLDS[0]} to {HOLDS[1]} "
        f"(wanted: {WANTED_HOLD:.0%}); medians: /price {figures['ratio']:.2f} ({least:.2f} to "
        f"{most:.2f}), rank {_number(figures['rank'])} (wanted: {WANTED_RANK}), regret "
        f"{figures['regret']:.2f}, first {figures['first_regret']:.2f}; the best schedules save "
        f"{lost:.1%} of {figures['seconds'] * 1e3:.3f} ms"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
