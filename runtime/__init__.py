"""Loads and runs artifacts; imports nothing else of tcc."""

from tcc.runtime.module import Module, RuntimeFailure, Statistics, Time, load
from tcc.runtime.ports import Port

__all__ = ["Module", "Port", "RuntimeFailure", "Statistics", "Time", "load"]
