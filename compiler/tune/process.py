"""A process that runs trials on request, with limits on its time and memory.

The process gets JSON objects as lines, and answers each with a line. A failure is answered with
{"error": text}.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from tcc.children import ending
from tcc.tune.measurement import CRASHED, HUNG
from tcc.tune.trial import TrialFailedError

_LAST_WORDS = 500  # characters of a log that a message has


class TrialProcess:
    """A running process of the Python module `module`.

    `arguments` are its command line. Its messages go to the file `log`. Leaving its `with` ends it.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        # -P: without it a random.so in the current folder would be imported as a module
        command = [sys.executable, "-P", "-m", module, *arguments]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def __enter__(self) -> "TrialProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        with self._process:
            self._process.kill()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the answer to a request.

        Raises TrialFailedError if the process ends or answers with an error (`crashed`), and if
        there is no answer after `seconds` (`hung`). The process has then ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        expiries: list[bool] = []

        def stop() -> None:
            expiries.append(True)
            self._process.kill()

        timer = Timer(seconds, stop)
        timer.start()
        try:
            with suppress(BrokenPipeError):  # the process has ended; its answer is empty
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if expiries:
            raise TrialFailedError(HUNG, f"it did not answer within {seconds:.0f} s")
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
        if not line or "error" in answer:
            why = answer.get("error") or self._last_words()
            self.close()
            raise TrialFailedError(CRASHED, str(why))
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        log = self._log.read_text(errors="replace").strip()
        return ending(status) + (f": {log[-_LAST_WORDS:]}" if log else "")
