"""The random numbers of a test depend on its name alone."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from .draws import RNG, name_of, seeded


def first_of(name: str) -> int:
    return int(np.random.default_rng(zlib.crc32(name.encode())).integers(1 << 40))


@pytest.fixture(scope="module")
def shared() -> int:
    return int(RNG.integers(1 << 40))


@pytest.mark.parametrize("number", [0, 1])
def test_each_case_has_a_generator_of_its_own(
    number: int, shared: int, request: pytest.FixtureRequest
) -> None:
    name = name_of(request.node)
    file = "tests/test_draws.py"
    assert name == f"{file}::test_each_case_has_a_generator_of_its_own[{number}]"
    assert int(RNG.integers(1 << 40)) == first_of(name)
    assert shared == first_of(f"{file}::shared[0]")


def test_libraries_draw_the_same_too() -> None:
    drawn = []
    for _ in range(2):
        with seeded("libraries"):
            drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[1]


def test_a_block_leaves_the_draws_around_it_alone(request: pytest.FixtureRequest) -> None:
    with seeded("a table"):
        assert int(RNG.integers(1 << 40)) == first_of("a table")
    assert int(RNG.integers(1 << 40)) == first_of(name_of(request.node))


def test_nothing_draws_outside_of_tests() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.draws._STACK", [])
        with pytest.raises(RuntimeError, match="random numbers belong to a test"):
            RNG.random()
