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

Outcome = dict[str, Any]  # "outcome" ("done" or "failed"), "why" for a failure, and facts
STEPS = ("export", "time")


class Outcomes:
    """The outcomes in `folder`, and those in `published`, the JSON of a table.

    `published` contributes exports that failed, and models that were timed on `target` (a CPU with
    its instructions). So a machine that times a part knows which architectures were replaced, and
    which were timed on an equal CPU. All times belong to one `precision`.
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
        """Returns the step as file names spell it."""
        return step if step == "export" else named(step, self.precision)

    def _path(self, step: str, family: str) -> Path:
        return self.folder / f"{family}.{self.name(step)}.json"


def named(prefix: str, precision: str) -> str:
    """Returns the start of file names for a precision; f32 is not part of a name."""
    return prefix if precision == "f32" else f"{prefix}-{precision}"


def in_process(
    outcomes: Outcomes, step: str, family: str, command: tuple[str | Path, ...], seconds: float
) -> Outcome:
    """Runs `command`, which stores the outcome itself, and returns the outcome.

    Its output goes to a log in the same folder. A process that ends without an outcome, or takes
    more than `seconds`, counts as a failure.
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
