"""The machine's limits, measured beside the runtimes: a C program that is asked once a round."""

import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.cli.peers.rounds import REST, Turn

SOURCE = Path(__file__).with_name("peaks.c")
T = TypeVar("T")
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
        self._found.append(self._ask("limits"))

    def now(self) -> dict[str, float]:
        """What all threads reach at this moment, in 30 ms: {"flops": ..., "read": ...}."""
        return self._ask("now")

    def typical(self) -> dict[str, list[float]]:
        return {
            name: [statistics.median(found[name][n] for found in self._found) for n in (0, 1)]
            for name in ("flops", "read")
        }

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Calm:
    """Tells disturbed moments of a shared machine by its own limits: multiply-adds or reads of all
    threads below a share of the best seen.  The same for every runtime: it asks none of them.

    `patience` is in seconds, for each call of `begin`.
    """

    SHARES = MappingProxyType({"flops": 0.9, "read": 0.8})

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._best = dict.fromkeys(self.SHARES, 0.0)
        self._ends = 0.0
        self._peaks: Peaks | None = None

    def begin(self, peaks: Peaks, looks: int = 10) -> None:
        """Counts the patience from now on and looks at what the machine can do."""
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


def undisturbed(run: Callable[[], T], calm: Calm, rest: float = 0.0) -> tuple[T, bool]:
    """What `run` returns, and whether the machine was calm on both sides of it: else it is the last
    run that there was patience for.  Rests for `rest` seconds before each look."""
    while True:
        time.sleep(rest)
        before = calm.calm()
        if before or not calm.patient():
            found = run()
            time.sleep(rest)
            after = calm.calm() and before
            if after or not calm.patient():
                return found, after


class CalmTurns:
    """What `interleaved` takes turns by: those on a disturbed machine are taken again.

    `disturbed` counts those that no patience was left for, by the kind of the peer.
    """

    def __init__(self, calm: Calm) -> None:
        self._calm = calm
        self.disturbed: Counter[str] = Counter()

    def __call__(self, kind: str, turn: Turn) -> Sequence[float]:
        seconds, calmly = undisturbed(turn, self._calm, REST)
        self.disturbed[kind] += not calmly
        return seconds
