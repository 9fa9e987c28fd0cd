"""Loads and runs artifacts; imports nothing else of tcc."""

from importlib import import_module
from types import ModuleType

from tcc.runtime.module import Module, load
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import RuntimeFailure, RuntimeTimeout, Statistics, Time

__all__ = ["Module", "ModulePort", "RuntimeFailure", "RuntimeTimeout", "Statistics", "Time", "load"]


def __getattr__(name: str) -> ModuleType:
    """Returns `tcc.runtime.ray`, which runs do not need."""
    if name != "ray":
        raise AttributeError(f"module 'tcc.runtime' has no attribute {name!r}")
    return import_module("tcc.runtime.ray")
