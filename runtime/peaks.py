"""Measures the peak rate of the machine, in a C program that runs beside what is measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SOURCE = Path(__file__).with_name("bench") / "peaks.c"
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-pthread")


def build_arguments(program: Path) -> tuple[str, ...]:
    """Returns the arguments with which a C compiler builds the file `program`."""
    return (*_FLAGS, str(SOURCE), "-o", str(program))


class PeakProgram:
    """A running program that measures the machine's peak rates; leaving its `with` ends it."""

    def __init__(self, program: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [str(program), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

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

    def flops(self) -> float:
        """Returns the operations per second of all threads; leaves the caches as they are."""
        return float(self.ask("flops")["flops"])

    def ask(self, line: str) -> Any:
        """Returns the answer to a line that the program reads (see peaks.c)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
