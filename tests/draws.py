"""Random numbers of tests: they depend on the test that draws them, and on nothing else.

    from tests.draws import RNG

    def test_a_sum() -> None:
        x = RNG.standard_normal(8)

`RNG` is the generator of the test or the fixture that runs, seeded with its name.  So a test draws
the same numbers alone, in any order, and in any worker.  What a module draws while it is imported
stands in a block of its own: `with seeded("shapes"): TABLE = ...`.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

_STACK: list[np.random.Generator] = []


class _Current:
    """The generator on top of the stack, by its methods."""

    def __getattr__(self, name: str) -> Any:
        if not _STACK:
            raise RuntimeError(
                "nothing draws here: random numbers belong to a test, a fixture or a block of "
                "`seeded` (tests/draws.py)"
            )
        return getattr(_STACK[-1], name)


if TYPE_CHECKING:
    RNG: np.random.Generator
else:
    RNG = _Current()


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """Inside of the block all draws depend on `name` and on what was drawn in the block before.

    The generators that belong to libraries are seeded too: `nn.Linear` draws from torch's.
    """
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)
    _STACK.append(np.random.default_rng(seed))
    try:
        yield
    finally:
        _STACK.pop()


def name_of(node: pytest.Item | pytest.Collector) -> str:
    """The `nodeid` of a test or a file, without the group that pytest-xdist appends to a test's."""
    file = node.getparent(pytest.File)
    if file is None:
        return node.nodeid
    inner = node.listchain()[len(file.listchain()) :]
    return "::".join((file.nodeid, *(each.name for each in inner)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """A fixture that tests share draws the same numbers for whichever of them comes first."""
    if not fixturedef.baseid:  # one of pytest's own
        return (yield)
    with seeded(f"{name_of(request.node)}::{fixturedef.argname}[{request.param_index}]"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with seeded(name_of(item)):
        return (yield)
