"""Asks a worker process one question at a time, with a time limit for each answer."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environment import environment

from tests.processes import tethered


class WorkerProcess:
    """Runs `script` in a process and asks it questions, which it answers with lines of JSON.

    A new process starts after one that died, that took more than `seconds` for an answer, or that
    had `most_questions` questions. `arguments` go to the script's command line.
    """

    def __init__(
        self, script: Path, seconds: float, most_questions: int, arguments: Sequence[str] = ()
    ) -> None:
        self._script = script
        self._arguments = arguments
        self._seconds = seconds
        self._most_questions = most_questions  # a process frees no memory before it ends
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0

    def ask(self, question: str) -> list[Any]:
        """Returns the answer, or ["hang", reason] or ["signal", reason] if there is none."""
        if self._process is None or self._count >= self._most_questions:
            self.close()
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{question}\n".encode())
        process.stdin.flush()
        self._count += 1
        ready, _, _ = select.select([process.stdout], [], [], self._seconds)
        if not ready:
            self.close()
            return ["hang", f"no answer in {self._seconds:.0f} s"]
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return ["signal", f"the process ended with {code}"]
        answer: list[Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._count = 0
        return subprocess.Popen(
            [*tethered(), sys.executable, str(self._script), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment() | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
