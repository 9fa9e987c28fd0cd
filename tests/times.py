"""Prints where the seconds of a test run went, from its report.

    python -m tests.times                     # of build/tests.xml, which scripts/test writes
    python -m tests.times REPORT --rows 50    # of another report, with more rows

The table has the seconds of each folder and of its fast tests, and the slowest files and tests.
The seconds of a fixture count for the first test that uses it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.fast import ROOT, reason


@dataclass(frozen=True)
class Timed:
    """One test of a report: its file below tests/, its name without group, its seconds."""

    file: str
    name: str
    seconds: float

    @property
    def is_fast(self) -> bool:
        return not reason(f"{self.file}::{self.name.partition('[')[0]}")


def timed_tests(report: Path) -> list[Timed]:
    """Returns the tests of one of pytest's XML reports."""
    return [
        Timed(
            case.get("classname", "").removeprefix("tests.").replace(".", "/") + ".py",
            case.get("name", "").rpartition("@")[0] or case.get("name", ""),
            float(case.get("time", "0")),
        )
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]


def table(tests: list[Timed], rows: int) -> str:
    """Returns the seconds by folder, and the slowest files and tests."""
    folders, fast, files = Counter[str](), Counter[str](), Counter[str]()
    for test in tests:
        folder = test.file.rpartition("/")[0] or "."
        folders[folder] += test.seconds
        fast[folder] += test.seconds * test.is_fast
        files[test.file] += test.seconds
    lines = [f"{'seconds':>8} {'fast':>8}  folder"]
    lines += [f"{s:8.1f} {fast[name]:8.1f}  {name}" for name, s in folders.most_common()]
    lines += [f"{folders.total():8.1f} {fast.total():8.1f}  all {len(tests)} tests", ""]
    lines += [f"{s:8.1f}  {name}" for name, s in files.most_common(rows)]
    dearest = sorted(tests, key=lambda test: -test.seconds)[:rows]
    lines += ["", *(f"{test.seconds:8.2f}  {test.file}::{test.name}" for test in dearest)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", type=Path, default=ROOT / "build" / "tests.xml")
    parser.add_argument("--rows", type=int, default=30, help="rows of files and of tests")
    options = parser.parse_args()
    print(table(timed_tests(options.report), options.rows))


if __name__ == "__main__":
    main()
