"""Counts of a report that pytest wrote with --junitxml.  Standard library only."""

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Counts(NamedTuple):
    """How many tests passed, failed or erred, and were skipped."""

    passed: int
    failed: int
    skipped: int


def counted(report: Path) -> Counts:
    """The counts over all suites of a report."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total = {key: count + int(suite.get(key, "0")) for key, count in total.items()}
    failed, skipped = total["failures"] + total["errors"], total["skipped"]
    return Counts(total["tests"] - failed - skipped, failed, skipped)
