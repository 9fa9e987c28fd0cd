"""Errors of the program under test, as opposed to those of the emulator."""

from __future__ import annotations


class Fault(Exception):
    """A GPU would do wrong, something undefined, or never end."""


class Unknown(Exception):
    """An instruction form that the emulator does not have."""
