"""A browser for tests that open pages."""

from __future__ import annotations

import shutil

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """Returns the path of a Chromium; skips the test without one."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium is installed")
