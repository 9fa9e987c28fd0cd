"""The machine's limits, measured beside the runtimes: a C program that is asked once a round."""

import json
import statistics
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tcc.backends.toolchain import find_toolchain, run_tool

SOURCE = Path(__file__).with_name("peaks.c")
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-pthread")


class Peaks:
    """A running peaks program; use it in a `with`.

    `measure` adds one measurement; `typical` is the median of all, as {"flops": [one thread, all],
    "read": [...]} in operations and bytes a second.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        program = folder / "peaks"
        run_tool((*find_toolchain().command, *_FLAGS, str(SOURCE), "-o", str(program)), folder)
        self._process = subprocess.Popen(
            [str(program), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._found: list[dict[str, list[float]]] = []

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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._found.append(json.loads(self._process.stdout.readline()))

    def typical(self) -> dict[str, list[float]]:
        return {
            name: [statistics.median(found[name][n] for found in self._found) for n in (0, 1)]
            for name in ("flops", "read")
        }
