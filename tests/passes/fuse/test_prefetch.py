"""The order of hints: every part of the next run once, at several places in turn."""

from __future__ import annotations

import pytest
from tcc.ir.index import evaluate, iterator
from tcc.passes.fuse.prefetch import _turn


@pytest.mark.parametrize(("length", "step"), [(256, 2), (128, 1), (384, 4)])
def test_every_element_is_asked_for_once(length: int, step: int) -> None:
    at = iterator("k", length)
    turn = _turn(at, length, step, 1 << 16)
    found = [evaluate(turn, {"k": k}) for k in range(0, length, step)]
    assert sorted(found) == list(range(0, length, step))
    assert len({n * 256 // 4096 for n in found[:8]}) == 8  # pages of 64 columns of f32


def test_a_short_part_is_asked_for_in_order() -> None:
    at = iterator("k", 64)
    assert _turn(at, 64, 2, 4096) is at


def test_an_uneven_part_is_asked_for_but_for_its_end() -> None:
    turn = _turn(iterator("k", 250), 250, 2, 1 << 16)
    found = {evaluate(turn, {"k": k}) for k in range(0, 250, 2)}
    assert len(found) == 125
    assert max(found) < 250 + 16
