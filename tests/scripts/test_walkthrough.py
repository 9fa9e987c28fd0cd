"""The page that shows one model in every form matches the current compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.gpu
def test_the_walkthrough_is_current() -> None:
    pytest.importorskip("triton")
    process = subprocess.run(
        [sys.executable, SCRIPTS / "walkthrough", "--check"], capture_output=True, text=True
    )
    assert process.returncode == 0, f"{process.stdout}{process.stderr}: run scripts/walkthrough"
