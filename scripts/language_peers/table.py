"""The table of `scripts/language`: tokens per second, ratios, load times and memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from language_peers.process import LanguageCase
from tcc.runtime.interleaved import paired_ratio

OURS = "tcc"  # how the names of tcc's modes begin
_WIDTH = 11


@dataclass(slots=True)
class Measured:
    """A runtime's figures for one model.

    `rounds` has by a case's title the median seconds of a run in each round. `absent` is "" or the
    reason why there are no figures. `disturbed` counts turns during which other work used the
    machine.
    """

    title: str
    load_seconds: float = 0.0
    peak_bytes: int = 0
    rounds: dict[str, Sequence[float]] = field(default_factory=dict)
    disturbed: int = 0
    absent: str = ""


def ratio(runtimes: Mapping[str, Measured], case: LanguageCase) -> float | None:
    """Returns the paired ratio of the fastest peer to tcc's faster mode; above 1 tcc is faster.

    Returns None if tcc or all peers have no figures for the case.
    """
    rounds = {n: m.rounds[case.title] for n, m in runtimes.items() if case.title in m.rounds}
    ours = [seconds for name, seconds in rounds.items() if name.startswith(OURS)]
    peers = [seconds for name, seconds in rounds.items() if not name.startswith(OURS)]
    if not ours or not peers:
        return None
    return paired_ratio(min(ours, key=statistics.median), peers)


def model_table(
    heading: str, runtimes: Mapping[str, Measured], cases: Sequence[LanguageCase]
) -> list[str]:
    """Returns the lines of a model: a row for each runtime, ratios, and absent runtimes."""
    titles = [case.title for case in cases]
    lines = [heading, _row("tokens per second", [*titles, "load s", "peak MB", "disturbed"])]
    for measured in runtimes.values():
        if not measured.absent:
            cells = [_speed(measured, case) for case in cases]
            cells += [f"{measured.load_seconds:.2f}", f"{measured.peak_bytes / 1e6:.0f}"]
            lines.append(_row(measured.title, [*cells, str(measured.disturbed)]))
    ratios = [ratio(runtimes, case) for case in cases]
    lines.append(_row("ratio", ["-" if value is None else f"{value:.2f}" for value in ratios]))
    lines += [f"no {m.title}: {m.absent}" for m in runtimes.values() if m.absent]
    return [*lines, ""]


def _speed(measured: Measured, case: LanguageCase) -> str:
    seconds = measured.rounds.get(case.title)
    return f"{case.rows / statistics.median(seconds):.0f}" if seconds else "-"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<20}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
