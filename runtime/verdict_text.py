"""Verdicts of `tcc verify` on an artifact's outputs, and the lines that say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from tcc.runtime.terminal import Table

_AGREEMENT = (
    1e-3  # the largest error of f32 that counts as agreement, relative to the largest value
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one output; differences are relative to the largest expected value.

    `error` is the difference from the reference that rounds as the artifact does; a difference of
    up to `allowed` may be noise. `cost` is the difference from the unrounded reference. For types
    other than floats, `error` and `cost` are the share of elements that differ. `top1` and `top5`
    are the shares of rows that agree with the unrounded reference (`Scores`), None without classes.
    """

    output: str
    error: float
    allowed: float
    cost: float
    ok: bool
    why: str = ""
    top1: float | None = None
    top5: float | None = None

    def within(self, tolerance: float | None, top1: float | None) -> Verdict:
        """Returns the verdict; it is wrong if the precision costs more than the bounds allow.

        None is no bound, and `top1` bounds only outputs with classes.
        """
        if self.ok and tolerance is not None and self.cost > tolerance:
            return replace(self, ok=False, why=f"more than --tolerance {tolerance:g}")
        if self.ok and top1 is not None and (self.top1 or top1) < top1:
            return replace(self, ok=False, why=f"{self.top1:.2%} is less than --top1 {top1:g}")
        return self

    def with_equal_bits(self, different: Sequence[str]) -> Verdict:
        """Returns the verdict; it is wrong if `different` names the output, of which ranks have
        different bits."""
        if not self.ok or self.output not in different:
            return self
        return replace(self, ok=False, why="ranks have different bits")


def verdict_line(verdict: Verdict, precision: str, on_data: bool) -> str:
    """Returns the line of an output: right or wrong, its error, and the cost of the precision.

    With `on_data`, the inputs come from files, and the line has the agreement of classes too.
    """
    text = f"{verdict.output}: {'ok' if verdict.ok else 'WRONG'}, error {verdict.error:.1e}"
    if verdict.error < inf:
        text += f" of {verdict.allowed:.1e} allowed"
    if precision == "f32":
        return text
    text += f"; the precision costs {verdict.cost:.1e}"
    if not on_data or verdict.top1 is None:
        return text
    text += f", top-1 agreement {verdict.top1:.2%}"
    return text if verdict.top5 is None else f"{text}, top-5 {verdict.top5:.2%}"


def count_line(verdicts: Sequence[Verdict], precision: str, reference: str) -> str:
    """Returns the line that counts the right outputs.

    It does not speak of agreement where rounding moves the outputs far from the unrounded model.
    """
    right = f"{sum(item.ok for item in verdicts)} of {len(verdicts)} outputs"
    cost = max((item.cost for item in verdicts if item.ok), default=0.0)
    if precision == "f32" and cost <= _AGREEMENT:
        return f"{right} agree with {reference}"
    return f"{right} differ from the model by rounding alone"


def refusal_line(values: Mapping[str, Any], what: str, where: str) -> str:
    """Returns the line about random inputs with which the artifact refuses to run.

    `what` and `where` are parts of the error.
    """
    sizes = (f"{n}={'x'.join(map(str, np.shape(a)))}" for n, a in values.items() if np.ndim(a))
    return f"not compared: the artifact refuses {', '.join(sizes)} ({what}: {where})"


def is_unchanging(
    output: str, draws: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
) -> bool:
    """True if all draws (sets of random inputs) of equal shapes give equal values of the output.

    False if no two draws have equal shapes.
    """
    groups: dict[Any, list[Any]] = {}
    for draw, outputs in zip(draws, results, strict=False):
        shapes = tuple(array.shape for array in draw.values())
        groups.setdefault(shapes, []).append(outputs[output])
    return any(len(group) > 1 for group in groups.values()) and all(
        np.array_equal(group[0], other) for group in groups.values() for other in group
    )


def rank_lines(reports: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
    """Yields a table with the errors of each rank, and lines that say if ranks have equal bits.

    `reports` has the record that `tcc verify --json` prints on each rank.
    """
    rows = [("output", "rank", "error", "allowed", "")]
    for items in zip(*(report["outputs"] for report in reports), strict=True):
        for rank, item in enumerate(items):
            errors = (f"{item[name]:.1e}" for name in ("error", "allowed"))
            rows.append((item["output"], str(rank), *errors, "ok" if item["ok"] else "WRONG"))
    yield Table(rows)
    different = reports[0]["different"]
    yield from (f"{name}: the bits of ranks DIFFER" for name in different)
    if not different:
        yield f"the bits of all outputs are equal on all {len(reports)} ranks"
