"""Limits for ranks that end at random moments: the time until the others continue without them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from environment import ROOT
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars.figures import Figure, at_most, output

sys.path.insert(0, str(ROOT / "tests" / "runtime" / "comm"))
from library import build_program

_TRIALS, _RANKS, _BAR = 200, 8, 1000.0
_PRINTED = re.compile(r"(\d+) ranks ended; .* after ([\d.]+) ms, at most ([\d.]+) ms")


def survivors(folder: Path) -> Iterator[Figure]:
    """Yields the longest time that surviving ranks need to continue, over two hundred trials.

    In a trial, one to four of eight ranks end. The time runs from the last end until all surviving
    ranks have a correct sum from a comm without the ended ranks.
    """
    library = build_comm_library(find_toolchain(), folder)
    program = build_program(folder, "survivors", library)
    match = _PRINTED.search(output(program, "1", str(_TRIALS), str(_RANKS)))
    assert match is not None
    ended, median, longest = int(match[1]), float(match[2]), float(match[3])
    note = f"(median {median:.1f}, {ended} ended)"
    yield at_most(f"from a death to a sum without it, {_TRIALS} trials", longest, _BAR, "ms", note)
