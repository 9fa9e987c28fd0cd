"""Checks named cases in worker processes; a sweep can be resumed, and ends with a table."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from environment import ROOT
from worker_process import WorkerProcess

Outcomes = dict[str, list[str]]
_BAD = ("mismatch", "crash", "signal", "hang")


class CaseSweep:
    """A sweep over all cases of the worker `scripts/frameworks/NAME_worker.py`.

    `case_kind` names the cases in the table ("operators", ...). `seconds` limits the time of a
    case, and `per_process` the number of cases that a process checks. `mode` is an argument of the
    worker that selects another way to check ("" for the usual way); each mode has its own file of
    outcomes and its own table.
    """

    def __init__(
        self, name: str, case_kind: str, *, seconds: float, per_process: int, mode: str = ""
    ) -> None:
        self._case_kind = case_kind
        stem = f"{name}_{mode}" if mode else name
        self._outcomes = ROOT / "build" / f"{stem}.json"
        self._table = ROOT / "scripts" / "results" / f"{stem}.txt"
        worker = Path(__file__).with_name(f"{name}_worker.py")
        self._worker = WorkerProcess(worker, seconds, per_process, [mode] if mode else [])

    def main(self, page: str, reached: Callable[[int, int], bool], goal: str) -> int:
        """Checks the cases that the command line selects; returns the exit code.

        `page` is the script's docstring. `reached(passes, cases)` says if the sweep reaches its
        goal, which `goal` names in the table.
        """
        parser = argparse.ArgumentParser(description=page.splitlines()[0])
        parser.add_argument("--only", default="", help="parts of names, with commas")
        parser.add_argument("--again", default="", help="outcomes to check again, with commas")
        parser.add_argument("--shard", default="0/1", help="K/N: every N-th case from K on, from 0")
        options = parser.parse_args()
        names: list[str] = self._worker.ask("?")[1]
        outcomes: Outcomes = (
            json.loads(self._outcomes.read_text()) if self._outcomes.is_file() else {}
        )
        outcomes = {name: outcome for name, outcome in outcomes.items() if name in names}
        for name in _selected(names, outcomes, options):
            outcomes[name] = self._worker.ask(name)
            print(name, *outcomes[name], flush=True)
            self._outcomes.parent.mkdir(exist_ok=True)
            self._outcomes.write_text(json.dumps(outcomes, indent=0, sort_keys=True))
        self._worker.close()
        self._table.write_text(self._text(outcomes, len(names), goal))
        print(self._text(outcomes, len(names), goal).splitlines()[0])
        passed = sum(outcome == "pass" for outcome, _ in outcomes.values())
        bad = any(outcome in _BAD for outcome, _ in outcomes.values())
        return int(bad or not reached(passed, len(names)))

    def _text(self, outcomes: Mapping[str, list[str]], cases: int, goal: str) -> str:
        counts = Counter(outcome for outcome, _ in outcomes.values())
        summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        share = counts["pass"] / max(cases, 1)
        lines = [f"{cases} {self._case_kind}: {summary}; {share:.1%} pass (goal: {goal})", ""]
        width = max(map(len, outcomes), default=0)
        rows = sorted(outcomes.items(), key=lambda row: (row[1][0], row[0]))
        lines += [
            f"{name:{width}}  {outcome:8}  {why[:240]}".rstrip() for name, (outcome, why) in rows
        ]
        return "\n".join(lines) + "\n"


def _selected(names: list[str], outcomes: Outcomes, options: argparse.Namespace) -> list[str]:
    part, parts = (int(n) for n in options.shard.split("/"))
    part_names = [name for number, name in enumerate(names) if number % parts == part]
    if options.only:
        return [n for n in part_names if any(word in n for word in options.only.split(","))]
    again = options.again.split(",") if options.again else []
    return [n for n in part_names if n not in outcomes or outcomes[n][0] in again]
