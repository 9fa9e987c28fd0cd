"""A worker as its parent sees it: it answers, can be timed in rounds, and holds memory."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from language_peers.engines import HERE, AbsentError

_LAST_WORDS = 300
CAP = 600.0  # seconds to wait for one answer
LOOK = 0.02  # seconds between two looks at the memory of a process


@dataclass(frozen=True, slots=True)
class LanguageCase:
    """Runs that are timed: `rows` tokens behind `past` tokens."""

    title: str
    rows: int
    past: int = 0


class LanguageWorker:
    """A running worker; leaving its `with` ends it.

    Each call raises AbsentError if the worker ends, fails or takes more than CAP seconds.
    """

    def __init__(
        self, python: Path, worker: str, model: Path, precision: str, threads: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Starts the worker, which begins to load; `load` comes before any other call."""
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, closed by `close`
        self._process = subprocess.Popen(
            (python, HERE / worker, model, precision, str(threads)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def load(self) -> float:
        """Returns the seconds from the first call of the runtime to a first token's logits."""
        return float(self._answer()["seconds"])

    def __enter__(self) -> LanguageWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)
        self._log.close()

    def seconds(self, case: LanguageCase, count: int) -> list[float]:
        """Returns the seconds of each of `count` runs."""
        return [float(s) for s in self._ask(f"run {case.rows} {case.past} {count}")["seconds"]]

    def next_token(self, tokens: Sequence[int]) -> int:
        """Returns the likeliest token after `tokens`."""
        return int(self._ask(" ".join(map(str, ("next", *tokens))))["token"])

    def peak_bytes(self, cases: Sequence[LanguageCase]) -> int:
        """Loads, runs each case once, and returns the largest Pss meanwhile, in bytes."""
        with self._watched() as peaks:
            self.load()
            for case in cases:
                self.seconds(case, 1)
        return max(peaks)

    @contextmanager
    def _watched(self) -> Iterator[list[int]]:
        ended = threading.Event()
        peaks = [self._pss()]

        def look() -> None:
            while not ended.wait(LOOK):
                peaks.append(self._pss())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield peaks
        finally:
            ended.set()
            thread.join()

    def _pss(self) -> int:
        try:
            lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # the process has ended; its next answer raises the error
            return 0
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(CAP, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
        if not answer or "error" in answer:
            raise AbsentError(str(answer.get("error") or self._ending()))
        return answer

    def _ending(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        words = " ".join(self._log.read().split())[-_LAST_WORDS:]
        return f"its process ended with {status}" + (f": {words}" if words else "")
