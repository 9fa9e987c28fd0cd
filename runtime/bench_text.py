"""Times of `tcc bench` as a record and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tcc.runtime.interleaved import Times, best_ratio, paired_ratio
from tcc.runtime.terminal import Table


def bench_record(times: Mapping[str, Times], failures: Mapping[str, str]) -> dict[str, Any]:
    """Returns the times of each runtime, the ratios to tcc, and why the runtimes in `failures`
    failed."""
    measured = {
        kind: {**asdict(item), "best": item.best, "scattered": item.scattered}
        for kind, item in times.items()
    }
    failed = {"failed": dict(failures)} if failures else {}
    return {"seconds": measured, **failed, **_ratios(times)}


def bench_lines(
    times: Mapping[str, Times], failures: Mapping[str, str], titles: Mapping[str, str]
) -> Iterator[str | Table]:
    """Yields a table of the times, a line for each disturbed runtime, and the failures' reasons.

    `titles` names each runtime for people.
    """
    yield _table(times, failures, titles)
    yield from _disturbances(times, titles)
    yield from "\n".join(failures.values()).splitlines()


def _table(times: Mapping[str, Times], failures: Iterable[str], titles: Mapping[str, str]) -> Table:
    """Returns a table with a row for each peer; the peers `failures` have no times.

    The last two columns are ratios of the peer's time to tcc's time. In the first of them, a ratio
    is of one round, and the median over rounds is shown. In the second, the peer's best round is
    divided by tcc's best round.
    """
    rows: list[tuple[str, ...]] = [
        ("runtime", "median", "best round", "shortest", "runs", "ratio", "of best")
    ]
    for kind, item in times.items():
        numbers = (f"{value * 1e3:.3f}" for value in (item.median, item.best, item.least))
        ratios = (call(times["tcc"].rounds, [item.rounds]) for call in (paired_ratio, best_ratio))
        texts = (f"{ratio:.2f}x" for ratio in ratios)
        rows.append((titles[kind], *numbers, str(item.runs), *texts))
    rows += [(titles[kind], "failed", *[""] * 5) for kind in failures]
    return Table(rows)


def _ratios(times: Mapping[str, Times]) -> Mapping[str, float]:
    """Returns two ratios of the fastest peer's time to tcc's time, by name.

    The first is `paired_ratio`, from times of the same round. The second is `best_ratio`, from the
    best round of each runtime. The mapping is empty without peers.
    """
    peers = [item.rounds for kind, item in times.items() if kind != "tcc"]
    if not peers:
        return {}
    tcc = times["tcc"].rounds
    return {"ratio": paired_ratio(tcc, peers), "best_ratio": best_ratio(tcc, peers)}


def _disturbances(times: Mapping[str, Times], titles: Mapping[str, str]) -> Iterator[str]:
    """Yields one line per peer whose rounds differ much from each other.

    The median of such rounds is less informative than the best round.
    """
    for kind, item in times.items():
        if item.scattered:
            best, median = (f"{value * 1e3:.3f} ms" for value in (item.best, item.median))
            yield (
                f"{titles[kind]}: {item.scattered} of {len(item.rounds)} rounds took over a "
                f"ninth longer than the best (best {best}, median {median}); the machine was "
                "busy with other work, or not at its usual speed"
            )
