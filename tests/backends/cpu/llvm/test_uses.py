"""Blocks are held as words only where memory has words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.uses import blocks_as_words
from tcc.ir.expr.scalar import Arg, cast
from tcc.ir.index import Index, const
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Load,
    MemorySpace,
    Stmt,
    Store,
    TileBuffer,
    lanes,
)
from tcc.ir.types import BF16, F32
from tcc.target import parse_target

PROFILE = parse_target("cpu", "znver4", detect).profile
ROWS, COLUMNS = 4, 16
SHAPE = ROWS, COLUMNS


def in_rows(row: Index, column: Index) -> Index:
    return row * COLUMNS + column


def in_words(row: Index, column: Index) -> Index:
    return (row // 2) * 2 * COLUMNS + 2 * column + row % 2


def columns_apart(row: Index, column: Index) -> Index:
    return (row // 2) * 4 * COLUMNS + 4 * column + row % 2


@pytest.mark.parametrize(
    ("place", "holds_words"), [(in_words, True), (in_rows, False), (columns_apart, False)]
)
def test_rounded_rows_are_joined_to_words_where_scratch_has_words(
    place: Callable[[Index, Index], Index], holds_words: bool
) -> None:
    """A contraction may load rows and join them in registers. Then the store keeps rows."""
    x = TileBuffer("x", F32, tuple(map(const, SHAPE)), MemorySpace.INPUT)
    a = TileBuffer("a", BF16, (const(COLUMNS), const(ROWS)), MemorySpace.INPUT)
    scratch = TileBuffer("s", BF16, (const(4 * ROWS * COLUMNS),), MemorySpace.LOCAL)
    wide, sums, out = (Block(n, F32, s) for n, s in (("w", SHAPE), ("c", (1, 16)), ("d", (1, 16))))
    narrow, loaded = (Block(name, BF16, SHAPE) for name in ("n", "l"))
    factor = Block("f", BF16, (1, ROWS))
    body: list[Stmt] = [
        Load(wide, x, lanes(SHAPE)),
        Compute(narrow, cast(Arg(0, F32), BF16), (wide,)),
        Store(scratch, (place(*lanes(SHAPE)),), narrow),
        Load(factor, a, lanes((1, ROWS))),
        Load(loaded, scratch, (place(*lanes(SHAPE)),)),
        Compute(sums, cast(Arg(0, F32), F32), ()),
        Contract(out, sums, factor, loaded, ("m", "n"), ("m", "k"), ("k", "n")),
    ]
    words = blocks_as_words(body, PROFILE)
    assert loaded in words
    assert (narrow in words) == holds_words
