"""Work counted as calls of functions, which no other process disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(run: Callable[[], Any]) -> int:
    """The functions that `run` calls, those of C and steps of generators included."""
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
