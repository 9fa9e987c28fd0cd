"""Programs that tests start get default signals and end with the tests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import finished, tethered

ASKED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


@pytest.mark.parametrize("ignored", ASKED)
def test_a_program_minds_signals_that_the_tests_ignore(ignored: signal.Signals) -> None:
    """`nohup scripts/test &` in a shell script gives such a case."""
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        process = finished(sys.executable, "-c", f"import os; os.kill(os.getpid(), {ignored:d})")
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)
    # Python turns SIGINT into an exception, and then ends by the signal
    assert process.returncode == -ignored


@pytest.mark.skipif(not tethered(), reason="there is no setpriv")
def test_a_program_ends_with_tests_that_are_killed(tmp_path: Path) -> None:
    """The program reads a pipe to which nobody writes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"from tests.processes import finished; finished('cat', {str(pipe)!r})"
    with subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[1]) as tests:
        end = os.open(pipe, os.O_WRONLY)  # opens when the program reads
        tests.kill()
    waiting = select.poll()
    waiting.register(end, 0)
    assert waiting.poll(60_000) == [(end, select.POLLERR)], "the program lives on"
    os.close(end)
