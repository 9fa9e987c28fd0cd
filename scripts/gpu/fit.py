"""Fits the constants of GPU prices to measured times; needs only NumPy.

    price of a kernel = launch + (max(compute, latency)**4 + dram**4 + l2**4) ** (1/4)

The parts come from the compile, in seconds. The fit multiplies each part by a factor that is common
to all kernels, so that the logarithms of time / price become small. A factor stands for constants
of `compiler/schedule/gpu/cost.py`, see CONSTANTS. The part `compute` has two factors: `units` for
kernels with matrix units, and `lanes` for all others. Since `latency` includes a tile's arithmetic,
its factor is that of the waits only where waits are most of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpu.report import HOLDS

Vector: TypeAlias = NDArray[np.float64]

FACTORS = ("launch", "units", "lanes", "latency", "dram", "l2")
# The constants that a factor multiplies (power 1) or divides (power -1).
CONSTANTS: dict[str, tuple[tuple[str, int], ...]] = {
    "launch": (("LAUNCH", 1),),
    "units": (("_MATRIX_SHARE", -1),),
    "lanes": (("_LANE_SHARE", -1),),
    "latency": (("_FAR", 1), ("_NEAR", 1), ("_BARRIER", 1), ("_ACROSS", 1)),
    "dram": (("_MEMORY_SHARE", -1),),
    "l2": (("_LINK_BYTES", -1), ("_CACHE_BYTES", -1)),
}
# Residuals (logarithms) above this count linearly, so that a kernel whose price lacks a cause does
# not decide the constants of all others.
_OUTLIER = 0.25
# Pulls each factor towards one, so that a factor that no time depends on stays one.
_PULL = 1e-3
_STEPS, _SMALL = 200, 1e-9


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured time: `seconds` of launches of kernels with these `parts` one after another."""

    name: str
    seconds: float
    parts: tuple[Mapping[str, Any], ...]


def timed_rows(results: Mapping[str, Any]) -> list[Timed]:
    """Returns the times in the results of a run: of single kernels, and of steps in models.

    An item with a step that is no kernel has no row of its own.
    """
    rows = []
    for name, item in results["items"].items():
        steps = item["facts"].get("priced", ())
        is_timed = item["facts"]["kind"] == "kernel" and bool(item.get("seconds"))
        if is_timed and steps and all("parts" in step for step in steps):
            rows.append(Timed(name, item["seconds"], tuple(step["parts"] for step in steps)))
        for step, seconds in zip(steps, item.get("step_seconds", ()), strict=False):
            if "parts" in step and seconds > 0:
                rows.append(Timed(f"{name}: {step['source']}", seconds, (step["parts"],)))
    return rows


def price(parts: Mapping[str, Any], factors: Mapping[str, float]) -> float:
    """Returns the price of a kernel in seconds under the `factors` of FACTORS."""
    compute = parts["compute"] * factors["units" if parts["units"] else "lanes"]
    tile = max(compute, parts["latency"] * factors["latency"])
    memory, cache = parts["dram"] * factors["dram"], parts["l2"] * factors["l2"]
    together = (tile**4 + memory**4 + cache**4) ** 0.25
    return float(parts["launch"] * factors["launch"] + together)


def fitted(rows: Sequence[Timed]) -> dict[str, float]:
    """Returns the factors that fit the times best, by the method of Levenberg and Marquardt.

    Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("no time has a price")
    logs, damping = np.zeros(len(FACTORS)), 1e-3
    best = _cost(rows, logs)
    for _ in range(_STEPS):
        residuals = _residuals(rows, logs)
        slopes = np.stack(
            [
                (_residuals(rows, logs + step) - residuals) / 1e-6
                for step in 1e-6 * np.eye(len(logs))
            ],
            1,
        )
        weights = np.minimum(1.0, _OUTLIER / np.maximum(np.abs(residuals), 1e-12))
        normal = slopes.T @ (weights[:, None] * slopes) + _PULL * np.eye(len(logs))
        gradient = slopes.T @ (weights * residuals) + _PULL * logs
        while damping < 1e9:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            cost = _cost(rows, logs + step)
            if cost < best:
                break
            damping *= 4
        else:
            break
        gain, best, logs, damping = best - cost, cost, logs + step, max(damping / 8, 1e-12)
        if gain < _SMALL * best:
            break
    return dict(zip(FACTORS, np.exp(logs).tolist(), strict=True))


def _residuals(rows: Sequence[Timed], logs: Vector) -> Vector:
    factors = dict(zip(FACTORS, np.exp(logs), strict=True))
    prices = [sum(price(parts, factors) for parts in row.parts) for row in rows]
    return np.log(np.array(prices)) - np.log([row.seconds for row in rows])


def _cost(rows: Sequence[Timed], logs: Vector) -> float:
    """Returns Huber's loss of the residuals, plus the pull towards one."""
    sizes = np.abs(_residuals(rows, logs))
    losses = np.where(sizes < _OUTLIER, sizes**2 / 2, _OUTLIER * (sizes - _OUTLIER / 2))
    return float(losses.sum() + _PULL * (logs**2).sum() / 2)


def holding(rows: Sequence[Timed], factors: Mapping[str, float]) -> float:
    """Returns the share of the rows whose price holds."""
    logs = np.log([factors[name] for name in FACTORS])
    ratios = np.exp(-_residuals(rows, logs))
    return float(np.mean((ratios >= HOLDS[0]) & (ratios <= HOLDS[1])))


def fit_table(rows: Sequence[Timed], constants: Mapping[str, float], worst: int = 10) -> str:
    """Returns the fitted constants, and the rows whose price holds least, as text.

    `constants` maps the names in CONSTANTS to their values in the compiler.
    """
    factors, plain = fitted(rows), dict.fromkeys(FACTORS, 1.0)
    lines = [f"{'constant':16}{'now':>12}{'fitted':>12}{'factor':>9}"]
    for name, places in CONSTANTS.items():
        for constant, power in places:
            value = constants[constant]
            new = value * factors[name] ** power
            lines.append(f"{constant:16}{value:12.4g}{new:12.4g}{factors[name]:9.3f}")
    lines += ["", f"{len(rows)} times; prices within {HOLDS[0]} to {HOLDS[1]} of the time:"]
    lines.append(f"  now {holding(rows, plain):.0%}, fitted {holding(rows, factors):.0%}")
    lines += ["", f"{'time / price':>12}{'fitted':>8}  the worst after the fit"]
    before, after = (
        np.exp(-_residuals(rows, np.log([scales[name] for name in FACTORS])))
        for scales in (plain, factors)
    )
    order = np.argsort(-np.abs(np.log(after)))[:worst]
    lines += [f"{before[i]:12.2f}{after[i]:8.2f}  {rows[i].name}" for i in order]
    return "\n".join(lines) + "\n"
