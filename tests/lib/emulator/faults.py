"""Errors of the program under test, and of the emulator."""

from __future__ import annotations


class Fault(Exception):
    """The program under test does something wrong or undefined, or does not end."""


class Unknown(Exception):
    """The emulator lacks an instruction form."""
