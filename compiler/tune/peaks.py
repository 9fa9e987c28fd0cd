"""Measures the peak rates of the machine, in a C program that runs beside what is measured."""

import json
import statistics
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SOURCE = Path(__file__).with_name("peaks.c")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-pthread")


def build_arguments(program: Path) -> tuple[str, ...]:
    """Returns the arguments with which a C compiler builds the file `program`."""
    return (*_FLAGS, str(SOURCE), "-o", str(program))


class Peaks:
    """A running program that measures the machine's peak rates; leaving its `with` ends it.

    `measure` adds a measurement. `typical` returns the medians of all measurements: {"flops": [one
    thread, all threads], "read": [one thread, all threads]}, in operations and bytes per second.
    """

    def __init__(self, program: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [str(program), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._measurements: list[dict[str, list[float]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()

    def measure(self) -> None:
        self._measurements.append(self._ask("limits"))

    def now(self) -> dict[str, float]:
        """Measures the rates of all threads for 30 ms: {"flops": ..., "read": ...}."""
        rates: dict[str, float] = self._ask("now")
        return rates

    def flops(self) -> float:
        """Returns the operations per second of all threads; leaves the caches as they are."""
        return float(self._ask("flops")["flops"])

    def typical(self) -> dict[str, list[float]]:
        return {
            name: [
                statistics.median(measurement[name][n] for measurement in self._measurements)
                for n in (0, 1)
            ]
            for name in ("flops", "read")
        }

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
