"""Runs a function on data that is not trusted, in a process with limits of time and memory.

A module offers such a function as its main program:

    if __name__ == "__main__":
        serve(function)

`answer` starts that program, hands it a request, and returns the function's result.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tcc.runtime.children import ending
from tcc.runtime.reports import RuntimeFailure

# The seconds of time, not of work, in which the process must have started and answered.
_MOST_SECONDS = 300
_LAST_WORDS = 400  # characters of the process's last message that an error has


class ConfinedError(RuntimeFailure):
    """A process that gave no answer; `why` says how it ended, or has its last message."""

    def __init__(self, why: str) -> None:
        super().__init__("a process gave no answer", why=why)
        self.why = why


def answer(module: str, request: Any, *, seconds: float, most_bytes: int) -> Any:
    """Returns what the main program of `module` answers to `request`; both are values of JSON.

    After its imports the process may take `seconds` of processor time and `most_bytes` of memory.
    Raises ConfinedError if it takes more, if its function raises, or if it ends in another way.
    """
    folders = os.pathsep.join(filter(None, sys.path))
    # -P: without it a random.py in the current folder would be imported as a module
    command = [sys.executable, "-P", "-m", module, str(seconds), str(most_bytes)]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": folders},
            timeout=_MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfinedError(f"it did not answer within {_MOST_SECONDS} s") from error
    if process.returncode == -signal.SIGPROF:
        raise ConfinedError(f"it takes more than {seconds:g} s of processor time")
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise ConfinedError(lines[-1][:_LAST_WORDS] if lines else ending(process.returncode))
    return json.loads(process.stdout)


def serve(function: Callable[[Any], Any]) -> None:
    """Answers one request of `answer` by `function`, within the limits of the command line.

    An exception of `function` ends the process with its text as the last line of stderr.
    """
    seconds, most_bytes = float(sys.argv[1]), int(sys.argv[2])
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        result = json.dumps(function(request))
    except MemoryError:
        sys.exit(f"it takes more than {most_bytes >> 20} MiB of memory")
    except BaseException as error:  # a panic of a library in Rust is no Exception
        sys.exit(str(error).strip() or type(error).__name__)
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.write(result)
