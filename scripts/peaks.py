"""Measures the machine's limits beside the runtimes; a C program does it once per round."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.runtime.interleaved import REST, Turn
from tcc.runtime.peaks import PeakProgram, build_arguments

T = TypeVar("T")


class Peaks(PeakProgram):
    """A running program that measures the machine's peak rates, compiled into `folder`.

    `measure` adds a measurement. `typical` returns the medians of all measurements: {"flops": [one
    thread, all threads], "read": [one thread, all threads]}, in operations and bytes per second.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        program = folder / "peaks"
        run_tool((*find_toolchain().command, *build_arguments(program)), folder)
        super().__init__(program, threads)
        self._measurements: list[dict[str, list[float]]] = []

    def measure(self) -> None:
        self._measurements.append(self.ask("limits"))

    def now(self) -> dict[str, float]:
        """Measures the rates of all threads for 30 ms: {"flops": ..., "read": ...}."""
        rates: dict[str, float] = self.ask("now")
        return rates

    def typical(self) -> dict[str, list[float]]:
        return {
            name: [
                statistics.median(measurement[name][n] for measurement in self._measurements)
                for n in (0, 1)
            ]
            for name in ("flops", "read")
        }


class Calm:
    """Detects that other work disturbs a shared machine.

    The machine is disturbed if the rate of multiply-adds or of reads of all threads is below a
    share (SHARES) of the best rate so far. No runtime's times are used, so the test is fair to all
    runtimes. `patient` returns True until `patience` seconds after the last call of `begin`.
    """

    SHARES = MappingProxyType({"flops": 0.9, "read": 0.8})

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._best = dict.fromkeys(self.SHARES, 0.0)
        self._ends = 0.0
        self._peaks: Peaks | None = None

    def begin(self, peaks: Peaks, looks: int = 10) -> None:
        """Starts the patience anew, and measures the machine's rates `looks` times."""
        self._peaks = peaks
        self._ends = time.monotonic() + self._patience
        for _ in range(looks):
            self.calm()

    def calm(self) -> bool:
        assert self._peaks is not None
        now = self._peaks.now()
        self._best = {name: max(best, now[name]) for name, best in self._best.items()}
        return all(now[name] >= share * self._best[name] for name, share in self.SHARES.items())

    def patient(self) -> bool:
        return time.monotonic() < self._ends


def undisturbed(
    measured_call: Callable[[], T], calm: Calm, rest_seconds: float = 0.0
) -> tuple[T, bool]:
    """Returns (result of `measured_call`, True if the machine was calm before and after it).

    The call is repeated while the machine is disturbed and patience is left. Each test of the
    machine comes after a rest of `rest_seconds`.
    """
    while True:
        time.sleep(rest_seconds)
        before = calm.calm()
        if before or not calm.patient():
            result = measured_call()
            time.sleep(rest_seconds)
            after = calm.calm() and before
            if after or not calm.patient():
                return result, after


class CalmTurns:
    """Runs the turns of `interleaved`, and repeats a turn during which the machine was disturbed.

    `disturbed` maps a kind of peer to the number of its disturbed turns that count all the same,
    because no time was left to repeat them.
    """

    def __init__(self, calm: Calm) -> None:
        self._calm = calm
        self.disturbed: Counter[str] = Counter()

    def __call__(self, kind: str, turn: Turn) -> Sequence[float]:
        seconds, calmly = undisturbed(turn, self._calm, REST)
        self.disturbed[kind] += not calmly
        return seconds
