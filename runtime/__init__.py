"""Loads and runs artifacts; imports nothing else of tcc."""

from tcc.runtime.module import Module, Port, RuntimeFailure, Statistics, Time, load

__all__ = ["Module", "Port", "RuntimeFailure", "Statistics", "Time", "load"]
