"""Computes statistics of prices and measured times of schedules, and writes a table.

Results are JSON as `scripts/price_check --json` prints it. The first schedule of a kernel is the
schedule that tcc chose. `prices` and `seconds` map the number of threads, as text, to a list with
an element for each schedule of the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bench_table import aligned
from numpy.typing import NDArray

# A kernel's price holds if HOLDS[0] <= time / price <= HOLDS[1]. The price of at least the share
# GOAL_HOLD of the kernels should hold. The rank correlation should be at least GOAL_RANK.
HOLDS = (0.8, 1.25)
GOAL_HOLD, GOAL_RANK = 0.9, 0.6
MIN_PAIRS = 3  # a rank correlation needs at least this many schedules
LEGEND = (
    "us: median over rounds of the chosen schedule; share: part of the model's time",
    "/price: time / price; rank: Spearman's correlation of price and time over the sample",
    "regret: time of the chosen / of the best schedule; first: regret of the lowest price",
    "of: measured schedules and all schedules; calm: rounds on an undisturbed machine",
)
HEAD = ("kernel", "runs", "us", "share", "/price", "rank", "regret", "first", "of", "calm")


# ---- statistics ---------------------------------------------------------------------------------


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Returns ranks, counted from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Returns Spearman's rank correlation of `a` and `b`.

    Returns None for fewer than MIN_PAIRS pairs, and if all values of `a` or of `b` are equal.
    """
    x, y = ranks(a), ranks(b)
    if len(x) < MIN_PAIRS or not x.std() or not y.std():
        return None
    return float(np.corrcoef(x, y)[0, 1])


def kernel_figures(kernel: Mapping[str, Any], threads: str) -> dict[str, Any]:
    """Returns the figures of a kernel on `threads` threads, a number as text.

    "ratio" is the chosen schedule's time over its price. "regret" is the chosen schedule's time
    over the best time, and "first_regret" the time of the schedule with the least price over the
    best time. "rank" is the rank correlation of prices and times (None: too few schedules).
    """
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
    """Returns the figures of a model on `threads` threads; each kernel counts once.

    They are the medians of the kernels' figures, the least and the largest ratio, "hold" (share of
    kernels whose price holds), "seconds" (all launches of a run), and "best_seconds" (the same with
    the best measured schedule of each kernel).
    """
    figures = [k["figures"][threads] for k in kernels]
    rank_values = [f["rank"] for f in figures if f["rank"] is not None]
    ratios = [f["ratio"] for f in figures]
    seconds = sum(k["launches"] * k["seconds"][threads][0] for k in kernels)
    best = sum(k["launches"] * min(k["seconds"][threads]) for k in kernels)
    return {
        "kernels": len(kernels),
        "hold": sum(HOLDS[0] <= ratio <= HOLDS[1] for ratio in ratios) / len(ratios),
        "ratio": float(np.median(ratios)),
        "ratios": [min(ratios), max(ratios)],
        "rank": float(np.median(rank_values)) if rank_values else None,
        "regret": float(np.median([f["regret"] for f in figures])),
        "first_regret": float(np.median([f["first_regret"] for f in figures])),
        "seconds": seconds,
        "best_seconds": best,
    }


def completed(results: dict[str, Any]) -> dict[str, Any]:
    """Returns `results` with the figures of kernels and of the model added."""
    threads = [str(n) for n in results["threads"]]
    for kernel in results["kernels"]:
        kernel["figures"] = {n: kernel_figures(kernel, n) for n in threads}
    measured = threads if results["kernels"] else []
    results["figures"] = {n: model_figures(results["kernels"], n) for n in measured}
    return results


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Maps each number of threads (as text) to the figures of all kernels of several models."""
    kernels = [kernel for result in results for kernel in result["kernels"]]
    threads = list(results[0]["figures"]) if kernels else []
    return {n: model_figures(kernels, n) for n in threads}


def met(figures: Mapping[str, Any]) -> bool:
    """Returns True if prices reach both goals on every number of threads."""
    return bool(figures) and all(
        f["hold"] >= GOAL_HOLD and f["rank"] is not None and f["rank"] >= GOAL_RANK
        for f in figures.values()
    )


# ---- the table ----------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    """Returns the complete report of a model as text."""
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
    reasons = Counter(results["left_out"].values())
    lines += ["", *(f"not timed: {count} kernels, {why}" for why, count in reasons.items())]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the summary of all models together, or "" for a single model."""
    if len(results) < 2:
        return ""
    lines = (f"all, threads: {n}: {_summary(f)}" for n, f in together(results).items())
    return "\n".join((*lines, ""))


def _cells(kernel: Mapping[str, Any], threads: str, model: Mapping[str, Any]) -> list[str]:
    figures, seconds, calm = kernel["figures"][threads], kernel["seconds"][threads], kernel["calm"]
    return [
        kernel["name"][:48],
        str(kernel["launches"]),
        f"{seconds[0] * 1e6:.1f}",
        f"{kernel['launches'] * seconds[0] / model['seconds']:.0%}",
        f"{figures['ratio']:.2f}",
        _number(figures["rank"]),
        f"{figures['regret']:.2f}",
        f"{figures['first_regret']:.2f}",
        f"{len(seconds)}/{kernel['space']}",
        f"{sum(calm[threads])}/{len(calm[threads])}",
    ]


def _summary(figures: Mapping[str, Any]) -> str:
    lowest, highest = figures["ratios"]
    saved_share = 1 - figures["best_seconds"] / figures["seconds"]
    return (
        f"{figures['hold']:.0%} of {figures['kernels']} kernels within {HOLDS[0]} to {HOLDS[1]} "
        f"(wanted: {GOAL_HOLD:.0%}); medians: /price {figures['ratio']:.2f} ({lowest:.2f} to "
        f"{highest:.2f}), rank {_number(figures['rank'])} (wanted: {GOAL_RANK}), regret "
        f"{figures['regret']:.2f}, first {figures['first_regret']:.2f}; the best schedules save "
        f"{saved_share:.1%} of {figures['seconds'] * 1e3:.3f} ms"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
