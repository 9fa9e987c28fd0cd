"""Tests of the cost of emitting a kernel's text, in steps instead of seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.blocks import Chunk, RegisterBlock, element, part
from tcc.backends.cpu.llvm.text import Code, LlvmModule, Reg
from tcc.ir.types import F32
from tcc.target import parse_target


@pytest.fixture
def code() -> Code:
    return Code(LlvmModule(parse_target("cpu", "x86-64-v3", detect)))


class Key:
    """A key that counts its hashes."""

    hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return 1


def test_values_of_a_scope_are_forgotten_after_it(code: Code) -> None:
    assert code.remember("outer", lambda: 1) == 1
    with code.scope():
        assert code.remember("outer", lambda: 2) == 1
        assert code.remember("inner", lambda: 3) == 3
        with code.scope():
            assert code.remember("inner", lambda: 4) == 3
            assert code.remember("deep", lambda: 5) == 5
        assert code.remember("deep", lambda: 6) == 6
    assert code.remember("inner", lambda: 7) == 7
    assert code.remember("deep", lambda: 8) == 8


def test_a_lookup_costs_the_same_in_every_scope(code: Code) -> None:
    with ExitStack() as scopes:
        for _ in range(20):
            scopes.enter_context(code.scope())
        key = Key()
        code.remember(key, lambda: 1)
        key.hashed = 0
        assert code.remember(key, lambda: 2) == 1
        assert key.hashed <= 2


class Counted(Sequence[Chunk]):
    """Chunks of one lane each, which count their reads."""

    looked = 0

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, at: Any) -> Any:
        if at >= len(self):
            raise IndexError(at)
        self.looked += 1
        return Chunk(at, 1, 1)

    def __iter__(self) -> Iterator[Chunk]:
        return (self[at] for at in range(len(self)))


def test_chunks_of_a_row_are_not_searched_one_by_one(code: Code) -> None:
    chunks: Any = Counted()
    regs = tuple(Reg("float", 1, f"%r{n}") for n in range(1024))
    value = RegisterBlock(F32, (1024,), chunks, regs)
    assert part(code, value, 0, Chunk(1000, 1, 1)) is regs[1000]
    assert element(code, value, 0, 1023) is regs[1023]
    assert chunks.looked < 30
    with pytest.raises(IndexError):
        element(code, value, 0, 1024)
