"""The functions that failing.c makes fail, and the functions that libraries call."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

INTERPOSER = Path(__file__).with_name("failing.c")


def imported(library: Path) -> set[str]:
    """Returns the functions of other libraries that a library calls."""
    command = ("nm", "-D", "--undefined-only", str(library))
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines}


def interposed() -> set[str]:
    """Returns the functions that failing.c makes fail."""
    text = INTERPOSER.read_text()
    plain = re.findall(
        r"^(?:FAILS\([^(]*?, |SAYS\(|DECLARE\([^(]*?, )(\w+), \(", text, re.MULTILINE
    )
    return {*plain, "malloc", "calloc", "realloc"}
