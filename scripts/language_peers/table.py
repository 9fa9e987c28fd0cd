"""The table of `scripts/language`: tokens per second, ratios, load times and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from language_peers.process import LanguageCase
from tcc.runtime.interleaved import best_ratio, paired_ratio

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


Ratio = Callable[[Sequence[float], Sequence[Sequence[float]]], float]


def ratio(
    runtimes: Mapping[str, Measured], case: LanguageCase, of: Ratio = paired_ratio, peer: str = ""
) -> float | None:
    """Returns a ratio of a peer's time to that of tcc's faster mode; above 1 tcc is faster.

    The default `of` pairs the fastest peer of each round with tcc. If `peer` is the name of a
    runtime, no other peer counts. Returns None if tcc or all peers have no figures for the case.
    """
    rounds = {n: m.rounds[case.title] for n, m in runtimes.items() if case.title in m.rounds}
    modes = [seconds for name, seconds in rounds.items() if name.startswith(OURS)]
    peers = [s for name, s in rounds.items() if not name.startswith(OURS) and peer in (name, "")]
    if not modes or not peers:
        return None
    return of(min(modes, key=statistics.median), peers)


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
    for title, of, peer in (
        ("ratio", paired_ratio, ""),
        ("of best rounds", best_ratio, ""),
        *((f"ratio, {m.title}", paired_ratio, n) for n, m in runtimes.items() if _is_peer(n, m)),
    ):
        ratios = [ratio(runtimes, case, of, peer) for case in cases]
        lines.append(_row(title, ["-" if value is None else f"{value:.2f}" for value in ratios]))
    lines += [f"no {m.title}: {m.absent}" for m in runtimes.values() if m.absent]
    return [*lines, ""]


def _is_peer(name: str, measured: Measured) -> bool:
    return not name.startswith(OURS) and not measured.absent


def _speed(measured: Measured, case: LanguageCase) -> str:
    seconds = measured.rounds.get(case.title)
    return f"{case.rows / statistics.median(seconds):.0f}" if seconds else "-"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<26}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
