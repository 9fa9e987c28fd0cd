"""A worker: a Python process that answers each line of stdin with a line of JSON on stdout.

`tcc.runtime.worker` and `tcc.runtime.trial_worker` are the other side. A worker answers a failure
with {"error": text}.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from tcc.runtime.children import ending
from tcc.runtime.reports import RuntimeFailure

_LAST_WORDS = 2000  # characters of the log that a message has


class WorkerError(RuntimeFailure):
    """A worker that gave no answer: it ended or answered with an error, or it was late.

    `why` says how it ended, with the end of its log. `late` is True if its time was over.
    """

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__("a process gave no answer", why=why)
        self.why, self.late = why, late


class JsonWorker:
    """A running worker.

    `module` is the name of a Python module, or the path of a script. `arguments` are its command
    line, and `environment` replaces variables. The worker imports modules from the same folders as
    this process. Its messages go to the file `log`. Leaving its `with` ends it.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        # -P: without it a random.so in the current folder would be imported as a module
        flags = [] if module.endswith(".py") else ["-P", "-m"]
        folders = os.pathsep.join(filter(None, sys.path))
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *flags, module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **(environment or {}), "PYTHONPATH": folders},
            )

    def __enter__(self) -> JsonWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        with self._process:
            self._process.kill()

    def ask(self, line: str, seconds: float) -> dict[str, Any]:
        """Returns the answer to a line, which comes within `seconds`.

        Raises WorkerError if there is no answer; the process has then ended.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and its answer says why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Returns the next answer; raises WorkerError as `ask` does."""
        assert self._process.stdout is not None
        expiries: list[bool] = []

        def stop() -> None:
            expiries.append(True)
            self._process.kill()

        timer = Timer(seconds, stop)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if expiries:
            raise WorkerError(f"it did not answer within {seconds:.3g} s", late=True)
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
        if not line or "error" in answer:
            why = str(answer.get("error") or self._last_words())
            self.close()
            raise WorkerError(why)
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        log = self._log.read_text(errors="replace").strip()
        folder = self._log.parent
        if not shutil.disk_usage(folder).free:  # then the log lacks the reason
            log += f"\n{folder}: {os.strerror(errno.ENOSPC)}"
        return ending(status) + (f": {log[-_LAST_WORDS:]}" if log else "")
