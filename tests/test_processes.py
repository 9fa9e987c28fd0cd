"""Programs that tests start."""

from __future__ import annotations

import signal
import sys

import pytest

from .processes import finished

ASKED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


@pytest.mark.parametrize("ignored", ASKED)
def test_a_program_minds_signals_that_the_tests_ignore(ignored: signal.Signals) -> None:
    """As where `nohup scripts/test &` runs in a shell script."""
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        done = finished(sys.executable, "-c", f"import os; os.kill(os.getpid(), {ignored:d})")
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)
    # Python turns SIGINT into an exception, and then ends by the signal
    assert done.returncode == -ignored
