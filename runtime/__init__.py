"""Loads and runs artifacts; imports nothing else of tcc."""

from tcc.runtime.module import Module, load
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import RuntimeFailure, RuntimeTimeout, Statistics, Time

__all__ = ["Module", "ModulePort", "RuntimeFailure", "RuntimeTimeout", "Statistics", "Time", "load"]
