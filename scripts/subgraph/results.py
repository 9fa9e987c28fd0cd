"""Stores the results of graphs, one file for each graph, and shows them as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_table import aligned
from beside import PairSettings
from goals import geometric_mean
from subgraph.families import SubgraphCase
from whole import write_whole

# The least acceptable speed of a graph, as a share of ONNX Runtime's speed.
FLOOR = 0.97

# A graph below FLOOR is timed again with LONGER times as many rounds; the second result counts.
LONGER = 3

# The outcomes of a graph, each with its text in reports. FAULTS are the outcomes that are failures
# of tcc.
OUTCOMES: Mapping[str, str] = {
    "timed": "timed",
    "memory": "there was not enough memory free",
    "reference": "ONNX Runtime did not run it",
    "compile": "tcc did not compile it",
    "run": "its artifact did not run",
    "differs": "its results are not those of ONNX Runtime without optimisations",
}
FAULTS = ("compile", "run", "differs")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement; a stored result counts only if all of them are equal now.

    `target` names the CPU, `sources` is a hash of tcc's sources, and `plan` says how graphs are
    timed.
    """

    target: str
    sources: str
    plan: PairSettings


@dataclass(frozen=True, slots=True)
class SubgraphResult:
    """The result of a graph.

    `outcome` is a key of OUTCOMES. `why` says what prevented a measurement, and `command` is the
    command that failed. For a timed graph whose error is above the tolerance, `why` is the verdict
    of `tcc verify`. `tcc` and `ort` are seconds, the medians of all runs. `ratio` is the median
    over rounds of ONNX Runtime's time over tcc's. `best` is ONNX Runtime's time in its best round
    over tcc's time in its best round. `ratio` and `best` are None if nothing was timed.

    `error` is the largest difference over the largest expected value. `disturbed` counts the timed
    runs of one runtime during which other work disturbed the machine. `kernels` are tcc's kernels,
    the slowest first, if the ratio is below FLOOR. `artifact` is a hash of the file that was timed.
    """

    outcome: str
    why: str = ""
    command: str = ""
    tcc: float = 0.0
    ort: float = 0.0
    ratio: float | None = None
    best: float | None = None
    error: float = 0.0
    disturbed: int = 0
    date: str = ""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    artifact: str = ""

    @property
    def below(self) -> bool:
        return self.ratio is not None and self.ratio < FLOOR


class ResultStore:
    """Stores results that are measured under `conditions` in a folder, with a file per graph."""

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        self._folder = folder
        self._conditions = asdict(conditions)
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, case: SubgraphCase) -> SubgraphResult | None:
        """Returns the stored result of this graph if its conditions are equal, or else None.

        Returns None for the outcome "memory" too, because more memory may be free the next time.
        """
        result = self._load(case, self._conditions)
        return None if result is None or result.outcome == "memory" else result

    def earlier(self, case: SubgraphCase) -> SubgraphResult | None:
        """Returns the stored result of this graph with times, from any sources of tcc, or None.

        All other conditions must be equal. The times count if tcc still compiles an equal artifact.
        """
        result = self._load(case, {k: v for k, v in self._conditions.items() if k != "sources"})
        return result if result is not None and result.ratio is not None else None

    def _load(self, case: SubgraphCase, conditions: Mapping[str, Any]) -> SubgraphResult | None:
        path = self._path(case)
        if not path.is_file():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        matches = all(record["conditions"][name] == value for name, value in conditions.items())
        return (
            SubgraphResult(**record["result"])
            if matches and record["digest"] == case.graph.digest
            else None
        )

    def put(self, case: SubgraphCase, result: SubgraphResult) -> None:
        """Writes the result; if the process is stopped meanwhile, the previous result stays."""
        record = {
            "graph": case.name,
            "digest": case.graph.digest,
            "conditions": self._conditions,
            "result": asdict(result),
        }
        write_whole(self._path(case), json.dumps(record, indent=1, sort_keys=True) + "\n")

    def _path(self, case: SubgraphCase) -> Path:
        return self._folder / f"{case.file}.json"


def table(results: Mapping[str, SubgraphResult], cases: int, conditions: Conditions) -> str:
    """Returns the report as text; `cases` is the number of graphs that should have a result.

    Graphs whose ratio is below FLOOR come first, with their kernels; then failures; then all timed
    graphs, the smallest ratio first.
    """
    ratios = sorted((r.ratio, name) for name, r in results.items() if r.ratio is not None)
    below = [name for ratio, name in ratios if ratio < FLOOR]
    plan = conditions.plan
    lines = [
        f"{conditions.target}, {plan.threads} threads, f32, {plan.rounds} rounds of "
        f"{plan.seconds:g} s, sources {conditions.sources}, {_dates(results.values())}",
        "times: ms, the medians of all runs; ort: ONNX Runtime; ratio: ort over tcc in the same "
        "round, the median over rounds; best: ratio of best rounds",
        f"a graph below {FLOOR} in the first rounds is timed again, with {LONGER} times the rounds",
        "kernels: us per run, source nodes, share of the peak that limits them",
        "",
        f"{len(ratios)} of {cases} graphs timed, {len(below)} below {FLOOR}" + _mean(ratios),
        *_counts(results.values()),
    ]
    if below:
        lines += ["", f"below {FLOOR}:"]
        for name, line in zip(below, aligned([_cells(n, results[n]) for n in below]), strict=True):
            lines += [line, *_kernels(results[name])]
    rounded = [name for name, r in results.items() if r.outcome == "timed" and r.why]
    if rounded:
        lines += ["", "over the tolerance of f32, by rounding alone as tcc verify finds:", *rounded]
    wrong = [(name, r) for name, r in results.items() if r.ratio is None]
    if wrong:
        lines += ["", "not timed:"]
        for name, r in wrong:
            lines += [f"{name}: {OUTCOMES[r.outcome]}: {r.why}"]
            lines += [f"  {r.command}"] if r.command else []
    if ratios:
        head = ("graph", "tcc", "ort", "ratio", "best", "error", "disturbed turns")
        lines += ["", *aligned([head, *(_cells(name, results[name]) for _, name in ratios)])]
    return "\n".join((*lines, ""))


def _mean(ratios: Sequence[tuple[float, str]]) -> str:
    return f", geometric mean {geometric_mean([r for r, _ in ratios]):.2f}" if ratios else ""


def _counts(results: Iterable[SubgraphResult]) -> list[str]:
    all_results = list(results)
    counted = [
        (text, sum(r.outcome == kind for r in all_results)) for kind, text in OUTCOMES.items()
    ]
    return [f"{count}: {text}" for text, count in counted[1:] if count]


def _cells(name: str, result: SubgraphResult) -> tuple[str, ...]:
    assert result.ratio is not None
    assert result.best is not None
    times = (f"{seconds * 1e3:.4f}" for seconds in (result.tcc, result.ort))
    error, disturbed = f"{result.error:.0e}", str(result.disturbed or "")
    return name, *times, f"{result.ratio:.2f}", f"{result.best:.2f}", error, disturbed


def _kernels(result: SubgraphResult) -> Iterator[str]:
    for kernel in result.kernels:
        share = "" if kernel["share"] is None else f", {kernel['share']:.0%} of {kernel['bound']}"
        launches = f", {kernel['launches']} launches" if kernel["launches"] > 1 else ""
        source = f" {kernel['source']}" if kernel["source"] else ""
        yield f"    {kernel['measured'] * 1e6:.1f} us {kernel['name']}{source}{share}{launches}"


def _dates(results: Iterable[SubgraphResult]) -> str:
    dates = sorted({r.date for r in results if r.date})
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "nothing measured"
