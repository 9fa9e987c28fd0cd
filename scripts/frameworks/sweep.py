"""Sweeps over named cases that worker processes check: resumable, with a table at the end."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from asked import Asked
from environment import ROOT

Outcomes = dict[str, list[str]]
_BAD = ("mismatch", "crash", "signal", "hang")


class Sweep:
    """The cases of `scripts/frameworks/NAME_worker.py`; `what` is what they are.

    `seconds` bounds one case, `per_process` the cases of one process.  A worker that checks its
    cases in another way gets the name of that `way`, which has outcomes and a table of its own.
    """

    def __init__(
        self, name: str, what: str, *, seconds: float, per_process: int, way: str = ""
    ) -> None:
        self._what = what
        outcomes = f"{name}_{way}" if way else name
        self._kept = ROOT / "build" / f"{outcomes}.json"
        self._table = ROOT / "scripts" / "results" / f"{outcomes}.txt"
        worker = Path(__file__).with_name(f"{name}_worker.py")
        self._worker = Asked(worker, seconds, per_process, [way] if way else [])

    def main(self, page: str, reached: Callable[[int, int], bool], goal: str) -> int:
        """Checks what the command line asks for; returns the exit code."""
        parser = argparse.ArgumentParser(description=page.splitlines()[0])
        parser.add_argument("--only", default="", help="parts of names")
        parser.add_argument("--again", default="", help="outcomes")
        parser.add_argument("--shard", default="0/1", help="K/N")
        options = parser.parse_args()
        names: list[str] = self._worker.ask("?")[1]
        known: Outcomes = json.loads(self._kept.read_text()) if self._kept.is_file() else {}
        known = {name: outcome for name, outcome in known.items() if name in names}
        for name in _chosen(names, known, options):
            known[name] = self._worker.ask(name)
            print(name, *known[name], flush=True)
            self._kept.parent.mkdir(exist_ok=True)
            self._kept.write_text(json.dumps(known, indent=0, sort_keys=True))
        self._worker.close()
        self._table.write_text(self._text(known, len(names), goal))
        print(self._text(known, len(names), goal).splitlines()[0])
        passed = sum(outcome == "pass" for outcome, _ in known.values())
        bad = any(outcome in _BAD for outcome, _ in known.values())
        return int(bad or not reached(passed, len(names)))

    def _text(self, outcomes: Mapping[str, list[str]], total: int, goal: str) -> str:
        counts = Counter(outcome for outcome, _ in outcomes.values())
        seen = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        share = counts["pass"] / max(total, 1)
        lines = [f"{total} {self._what}: {seen}; {share:.1%} pass (goal: {goal})", ""]
        width = max(map(len, outcomes), default=0)
        rows = sorted(outcomes.items(), key=lambda row: (row[1][0], row[0]))
        lines += [f"{name:{width}}  {what:8}  {why[:240]}".rstrip() for name, (what, why) in rows]
        return "\n".join(lines) + "\n"


def _chosen(names: list[str], known: Outcomes, options: argparse.Namespace) -> list[str]:
    part, parts = (int(n) for n in options.shard.split("/"))
    wanted = [name for number, name in enumerate(names) if number % parts == part]
    if options.only:
        return [n for n in wanted if any(word in n for word in options.only.split(","))]
    again = options.again.split(",") if options.again else []
    return [n for n in wanted if n not in known or known[n][0] in again]
