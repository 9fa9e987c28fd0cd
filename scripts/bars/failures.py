"""Calls to the system that fail: all of a load and a run, and of two ranks that meet."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from environment import ROOT

from bars.figures import TESTS, Figure, say

sys.path += (str(ROOT), str(TESTS), str(TESTS / "comm"))

from failures import Failures, build_failures
from library import FAILING, build_whole
from programs import compile_kernels
from tcc.backends.artifact.comm_library import comm_sources

from tests.runtime.interposer import INTERPOSER

ERRORS = range(5)
# Threads, TCC_WEIGHTS, and each how manieth call is tried: a search for shared weights makes many.
LOADS = ((1, "map", 1), (2, "copy", 1), (2, "share", 16))


def failures(folder: Path) -> Iterator[Figure]:
    """Each call fails once, and it and all after it, with each of its errors."""
    made = build_failures(folder, compile_kernels(folder))
    for threads, choice, every in LOADS:
        yield _of_a_load(made, threads, choice, every)
    program = build_whole(folder, "faults", (*comm_sources(), INTERPOSER), *FAILING)
    for error, on in product(ERRORS, (0, 1)):
        yield _of_ranks(program, error, on)


def _of_a_load(made: Failures, threads: int, choice: str, every: int) -> Figure:
    calls = made.host(threads, TCC_WEIGHTS=choice, **made.failing(0, False, 0)).calls
    say(f"failures: {calls} calls with TCC_WEIGHTS={choice}")
    trials = list(product(range(1, calls + 1, every), (False, True), ERRORS))

    def outcome(trial: tuple[int, bool, int]) -> str:
        found = made.host(threads, TCC_WEIGHTS=choice, **made.failing(*trial))
        if not found.good:
            say(f"failures: {trial} of {choice}: {found}")
        return "status" if "status" in found.text else "right" if found.good else "bad"

    with ThreadPoolExecutor(2) as workers:
        count = Counter(workers.map(outcome, trials))
    good = not count["bad"]
    value = f"{count['bad']} bad, {count['status']} status, {count['right']} right"
    return Figure(f"failures of {calls} calls, weights: {choice}", value, "0 bad", good)


def _of_ranks(program: Path, error: int, on: int) -> Figure:
    command = (str(program), "fails_somewhere", str(error), str(on), "1")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    good = done.returncode == 0 and done.stdout.endswith("ok\n")
    if not good:
        say(done.stderr[-3000:])
    value = "; ".join(done.stdout.splitlines()[:-1]) if good else "failed"
    what = f"failures of calls of ranks, error {error}{', all after' if on else ''}"
    return Figure(what, value, "a status", good)
