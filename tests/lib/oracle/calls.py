"""Counts work as calls of functions, which other processes do not disturb."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(run: Callable[[], Any]) -> int:
    """Returns the number of calls in `run`, calls of C functions and generator steps included."""
    count = 0

    def see(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
