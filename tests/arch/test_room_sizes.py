"""Rooms stay within their budgets in logic tokens."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.arch.room_sizes import logic_tokens, room_sizes

ROOT = Path(__file__).resolve().parents[2]


def test_rooms_are_within_their_budgets() -> None:
    tables = tomllib.loads((ROOT / "tests" / "arch" / "budgets.toml").read_text(encoding="utf-8"))
    most_together = tables.pop("most_together")
    budgets: Counter[str] = Counter()
    for allowances in tables.values():
        budgets.update(allowances)
    sizes = room_sizes(ROOT)
    assert sum(sizes.values()) > 400_000
    excess = {room: size - budgets[room] for room, size in sizes.items() if size > budgets[room]}
    assert excess == {}, "tokens above the budget of each room"
    assert sum(sizes.values()) <= most_together
    assert set(budgets) == set(sizes), "a budget names a room that is not there"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Four words of docstring."""\n\nx = f(1)  # six tokens\n', 6),
        ("import a\nfrom b import (\n    c,\n)\n", 0),
        ("def f(x: int = 1) -> dict[str, int]:\n    return x\n", 12),
        ("é: list[int] = [1]\n", 6),
        ('f"{a} and {b + 1}"\n', 1),
        ("async def f() -> int: ...\n", 8),
    ],
)
def test_the_measure_counts_logic_alone(text: str, count: int) -> None:
    assert logic_tokens(text) == count
