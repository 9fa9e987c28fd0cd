"""Parts of long tables of cases: a run takes a seeded share, a run with `--whole` all cases.

    @pytest.mark.parametrize("name", part("remainders", NAMES, 3))  # a third of NAMES

The share depends on the name of the table alone, so each run and each worker takes the same cases.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


class _Extent:
    """Holds whether the run takes all cases; pytest sets it before it imports a test."""

    whole = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="take all cases where others are a part")


def set_extent(config: pytest.Config) -> None:
    """Makes `part` return all cases if pytest was started with `--whole`."""
    _Extent.whole = bool(config.getoption("whole"))


def takes_all() -> bool:
    """Returns True if pytest was started with `--whole`."""
    return _Extent.whole


def part(name: str, cases: Iterable[T], share: int) -> list[T]:
    """Returns one in `share` of the cases, rounded up, in their order; with `--whole` all cases.

    `name` is the seed of the draw.
    """
    listed = list(cases)
    if takes_all():
        return listed
    numbers = random.Random(name).sample(range(len(listed)), -(-len(listed) // share))
    return [listed[number] for number in sorted(numbers)]
