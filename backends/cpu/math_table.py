"""The f32 functions that have vector code of their own; others come from the C library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tcc.backends.cpu.text import Reg

MATH: Mapping[str, Callable[..., Reg]] = MappingProxyType({})
