"""What is known of each architecture: one JSON file for each step of each, written when it ends."""

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

Outcome = dict[str, Any]  # "outcome" ("done" or "failed"), "why" of a failure, and what was found
STEPS = ("export", "time")


class Outcomes:
    """The outcomes in `folder`, and beside them those of `published`, a table's JSON: exports that
    failed, and models timed on `target`, a processor with its instructions.

    So a machine that times a part knows which architectures were replaced, and which were timed on
    its like.  The times are those of one `precision`.
    """

    def __init__(
        self,
        folder: Path,
        published: Path | None = None,
        target: str | None = None,
        precision: str = "f32",
    ) -> None:
        self.folder, self.precision = folder, precision
        held = json.loads(published.read_text()) if published and published.is_file() else {}
        times = {f: o for f, o in held.get("times", {}).items() if o.get("target") == target}
        exports = {
            family: found
            for family, found in held.get("exports", {}).items()
            if found["outcome"] == "failed" or family in times
        }
        self._published: dict[str, dict[str, Outcome]] = {"export": exports, "time": times}

    def get(self, step: str, family: str) -> Outcome | None:
        path = self._path(step, family)
        if path.is_file():
            found: Outcome = json.loads(path.read_text())
            return found
        return self._published[step].get(family)

    def put(self, step: str, family: str, outcome: Mapping[str, Any]) -> None:
        write_whole(self._path(step, family), json.dumps(outcome, indent=1) + "\n")

    def forget(self, step: str, family: str) -> None:
        self._path(step, family).unlink(missing_ok=True)
        self._published[step].pop(family, None)

    def failed_exports(self) -> set[str]:
        return {f for f, found in self.all("export").items() if found["outcome"] == "failed"}

    def all(self, step: str) -> dict[str, Outcome]:
        """By family, sorted."""
        known = {path.name.split(".")[0] for path in self.folder.glob(f"*.{self.name(step)}.json")}
        known |= set(self._published[step])
        return {family: found for family in sorted(known) if (found := self.get(step, family))}

    def name(self, step: str) -> str:
        """The step as file names spell it."""
        return step if step == "export" else named(step, self.precision)

    def _path(self, step: str, family: str) -> Path:
        return self.folder / f"{family}.{self.name(step)}.json"


def named(what: str, precision: str) -> str:
    """`what` as the names of files of a precision begin; f32 goes without saying."""
    return what if precision == "f32" else f"{what}-{precision}"


def in_process(
    outcomes: Outcomes, step: str, family: str, command: tuple[str | Path, ...], seconds: float
) -> Outcome:
    """Runs `command`, which is to put the outcome; what it prints goes to a log beside it.

    Where it ends without an outcome, or takes more than `seconds`, that is a failure.
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
    found = outcomes.get(step, family)
    if found is None:
        words = log.read_text(errors="replace").strip().splitlines()
        found = {"outcome": "failed", "why": ": ".join((why, *words[-1:]))[:400]}
        outcomes.put(step, family, found)
    return found
