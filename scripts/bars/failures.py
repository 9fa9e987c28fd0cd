"""Limits for system calls that fail: calls of a load, of a run and of two ranks that connect."""

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
# Tuples (threads, TCC_WEIGHTS, stride). In each trial one system call fails; calls number 1,
# 1 + stride, 1 + 2 stride, ... are tried. The stride of "share" is large because the search for
# shared weights makes many calls.
LOADS = ((1, "map", 1), (2, "copy", 1), (2, "share", 16))


def failures(folder: Path) -> Iterator[Figure]:
    """Yields how many loads and collectives end badly if system calls fail in them.

    Each call fails with each error of ERRORS: alone, and together with all later calls.
    """
    runner = build_failures(folder, compile_kernels(folder))
    for threads, choice, stride in LOADS:
        yield _load_failures(runner, threads, choice, stride)
    program = build_whole(folder, "faults", (*comm_sources(), INTERPOSER), *FAILING)
    for error, persistent in product(ERRORS, (0, 1)):
        yield _rank_failures(program, error, persistent)


def _load_failures(runner: Failures, threads: int, choice: str, stride: int) -> Figure:
    calls = runner.host(threads, TCC_WEIGHTS=choice, **runner.failing(0, False, 0)).calls
    say(f"failures: {calls} calls with TCC_WEIGHTS={choice}")
    trials = list(product(range(1, calls + 1, stride), (False, True), ERRORS))

    def outcome(trial: tuple[int, bool, int]) -> str:
        result = runner.host(threads, TCC_WEIGHTS=choice, **runner.failing(*trial))
        if not result.good:
            say(f"failures: {trial} of {choice}: {result}")
        return "status" if "status" in result.text else "right" if result.good else "bad"

    with ThreadPoolExecutor(2) as workers:
        count = Counter(workers.map(outcome, trials))
    good = not count["bad"]
    value = f"{count['bad']} bad, {count['status']} status, {count['right']} right"
    return Figure(f"failures of {calls} calls, weights: {choice}", value, "0 bad", good)


def _rank_failures(program: Path, error: int, persistent: int) -> Figure:
    command = (str(program), "fails_somewhere", str(error), str(persistent), "1")
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    good = process.returncode == 0 and process.stdout.endswith("ok\n")
    if not good:
        say(process.stderr[-3000:])
    value = "; ".join(process.stdout.splitlines()[:-1]) if good else "failed"
    what = f"failures of calls of ranks, error {error}{', all after' if persistent else ''}"
    return Figure(what, value, "a status", good)
