"""Stores results of the suite, reads the expected failures, and writes the table.

Only the standard library is needed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whole import write_whole

_SOURCES = ("compiler", "passes", "backends", "runtime")


def code_key(root: Path, *further_folders: str) -> str:
    """Returns a hash of the sources of tcc and of `further_folders`.

    Stored results count only if they were made with the same hash.
    """
    hasher = hashlib.sha256()
    for folder in (*_SOURCES, *further_folders):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                hasher.update(path.relative_to(root).as_posix().encode() + b"\0")
                hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]


def read_rows(path: Path, key: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a results file by name, or {} if it was written with another `key`."""
    if not path.is_file():
        return {}
    head, *lines = path.read_text().splitlines()
    if json.loads(head) != {"code": key}:
        return {}
    return {row["name"]: row for row in map(json.loads, lines)}


def write_rows(path: Path, key: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes `key` and the rows to a file; a reader finds a complete file at any time."""
    lines = [json.dumps({"code": key}), *(json.dumps(rows[name]) for name in sorted(rows))]
    write_whole(path, "\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected outcomes, by name, of the cases that do not pass in one mode and level."""

    outcomes: Mapping[str, str]

    def complaints(self, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Returns a line for each case whose outcome is not as listed.

        A case that is not listed must pass.
        """
        lines = []
        for name in sorted(rows):
            outcome, expected = rows[name]["outcome"], self.outcomes.get(name, "pass")
            if outcome == "pass" != expected:
                lines.append(f"{name}: passes, but is listed as {expected}")
            elif outcome != expected:
                lines.append(f"{name}: {outcome}: {rows[name]['why']}")
        return lines


def read_expected(path: Path, mode: str, level: int) -> Expected:
    """Returns the expected outcomes for a mode and a level of -O, from a TOML file.

    The file has groups of cases for each outcome. A group without `modes` or `levels` holds for all
    modes or levels. Raises ValueError if a case is listed twice.
    """
    outcomes: dict[str, str] = {}
    for outcome, groups in tomllib.loads(path.read_text()).items():
        for group in groups:
            if mode not in group.get("modes", [mode]) or level not in group.get("levels", [level]):
                continue
            for name in group["cases"]:
                if name in outcomes:
                    raise ValueError(f"{path}: {name} is listed twice")
                outcomes[name] = outcome
    return Expected(outcomes)


def table(rows: Sequence[Mapping[str, Any]], outcomes: Sequence[str]) -> str:
    """Returns the table of counts by category and outcome."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["category"], Counter())[row["outcome"]] += 1
    sums: Counter[str] = sum(counts.values(), Counter())
    lines = [f"{'category':28}{'cases':>7}" + "".join(f"{name:>10}" for name in outcomes)]
    ordered = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    for name, count in [*ordered, ("all", sums)]:
        cells = "".join(f"{count[outcome] or '-':>10}" for outcome in outcomes)
        lines.append(f"{name:28}{count.total():7}{cells}")
    return "\n".join(lines)


def as_row(row: Any) -> dict[str, Any]:
    """Returns the fields of a row as they are stored in JSON."""
    return {**asdict(row), "seconds": round(row.seconds, 3)}
