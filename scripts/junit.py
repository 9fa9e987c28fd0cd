"""Counts the tests in a report that pytest wrote with --junitxml; needs only the standard
library."""

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Counts(NamedTuple):
    """How many tests passed, how many failed or had an error, and how many were skipped."""

    passed: int
    failed: int
    skipped: int


def counted(report: Path) -> Counts:
    """Returns the counts over all suites of a report."""
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        sums = {key: count + int(suite.get(key, "0")) for key, count in sums.items()}
    failed, skipped = sums["failures"] + sums["errors"], sums["skipped"]
    return Counts(sums["tests"] - failed - skipped, failed, skipped)
