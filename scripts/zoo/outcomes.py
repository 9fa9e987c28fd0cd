"""Stores the outcome of each step of an architecture when the step ends: a JSON file for each
step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environment import environment
from whole import write_whole

from tests.processes import tethered

Outcome = dict[str, Any]  # has "outcome" ("done" or "failed"), "why" of a failure, and figures
STEPS = ("export", "time")


class Outcomes:
    """The outcomes of exports and of timings, from `folder` and from `published`.

    `published` is the JSON of a table that may come from another machine. Its failed exports count,
    and its timings count if they were made on `target` (a CPU with its instruction sets). So a
    machine that times a part of the models knows which architectures were replaced. All timings
    belong to one `precision`.
    """

    def __init__(
        self,
        folder: Path,
        published: Path | None = None,
        target: str | None = None,
        precision: str = "f32",
    ) -> None:
        self.folder, self.precision = folder, precision
        table = json.loads(published.read_text()) if published and published.is_file() else {}
        times = {
            family: outcome
            for family, outcome in table.get("times", {}).items()
            if outcome.get("target") == target
        }
        exports = {
            family: outcome
            for family, outcome in table.get("exports", {}).items()
            if outcome["outcome"] == "failed" or family in times
        }
        self._published: dict[str, dict[str, Outcome]] = {"export": exports, "time": times}

    def get(self, step: str, family: str) -> Outcome | None:
        path = self._path(step, family)
        if path.is_file():
            outcome: Outcome = json.loads(path.read_text())
            return outcome
        return self._published[step].get(family)

    def put(self, step: str, family: str, outcome: Mapping[str, Any]) -> None:
        write_whole(self._path(step, family), json.dumps(outcome, indent=1) + "\n")

    def forget(self, step: str, family: str) -> None:
        self._path(step, family).unlink(missing_ok=True)
        self._published[step].pop(family, None)

    def failed_exports(self) -> set[str]:
        return {
            family
            for family, outcome in self.all("export").items()
            if outcome["outcome"] == "failed"
        }

    def all(self, step: str) -> dict[str, Outcome]:
        """Returns the outcomes of a step by family, sorted."""
        families = {
            path.name.split(".")[0] for path in self.folder.glob(f"*.{self.name(step)}.json")
        }
        families |= set(self._published[step])
        return {
            family: outcome for family in sorted(families) if (outcome := self.get(step, family))
        }

    def name(self, step: str) -> str:
        """Returns the step as it is spelled in file names: with the precision of a timing."""
        return step if step == "export" else named(step, self.precision)

    def _path(self, step: str, family: str) -> Path:
        return self.folder / f"{family}.{self.name(step)}.json"


def named(prefix: str, precision: str) -> str:
    """Returns `prefix`-`precision`, or `prefix` alone for f32."""
    return prefix if precision == "f32" else f"{prefix}-{precision}"


def in_process(
    outcomes: Outcomes, step: str, family: str, command: tuple[str | Path, ...], seconds: float
) -> Outcome:
    """Runs `command`, which stores the outcome of a step; returns the outcome.

    The command's output goes to a log in the folder of `outcomes`. If the process ends without an
    outcome, or takes more than `seconds`, the outcome is "failed".
    """
    outcomes.forget(step, family)
    outcomes.folder.mkdir(parents=True, exist_ok=True)
    log = outcomes.folder / f"{family}.{outcomes.name(step)}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*tethered(), sys.executable, *map(str, command)],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment() | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
        )
        try:
            why = f"its process ended with {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            why = f"it took more than {seconds:.0f} s"
        finally:
            process.kill()
            process.wait()
    outcome = outcomes.get(step, family)
    if outcome is None:
        lines = log.read_text(errors="replace").strip().splitlines()
        outcome = {"outcome": "failed", "why": ": ".join((why, *lines[-1:]))[:400]}
        outcomes.put(step, family, outcome)
    return outcome
