"""A run takes a seeded part of a long table, and a run with `--whole` all of it."""

from __future__ import annotations

import pytest

from tests import part as parts
from tests.part import part

CASES = [f"case {number}" for number in range(100)]


def test_a_part_is_a_share_in_the_order_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts._Extent, "whole", False)
    drawn = part("one", CASES, 7)
    assert len(drawn) == 15
    assert drawn == sorted(set(drawn), key=CASES.index)
    assert drawn == part("one", iter(CASES), 7)
    assert drawn != part("another", CASES, 7)
    assert part("one", [], 7) == []


@pytest.mark.parametrize("whole", [False, True])
def test_the_option_takes_all_cases(
    whole: bool, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.setattr(parts._Extent, "whole", not whole)
    monkeypatch.setattr(pytestconfig.option, "whole", whole)
    parts.set_extent(pytestconfig)
    assert (part("one", CASES, 7) == CASES) is whole
