"""The table of instructions: each name has a function that makes its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.lib.emulator.faults import Unknown

from .decode import Instruction
from .operands import Operands
from .waves import Step

Maker: TypeAlias = Callable[[Operands], Step]
_FORMS: dict[str, Maker] = {}


def form(*names: str) -> Callable[[Maker], Maker]:
    def add(maker: Maker) -> Maker:
        for name in names:
            assert name not in _FORMS, name
            _FORMS[name] = maker
        return maker

    return add


def step(i: Instruction, o: Operands) -> Step:
    if i.name not in _FORMS:
        raise Unknown(f"{i.name} of {o.arch.name}")
    return _FORMS[i.name](o)
