"""Random numbers for tests, which depend only on the test that draws them.

    from tests.draws import RNG

    def test_a_sum() -> None:
        x = RNG.standard_normal(8)

`RNG` is the generator of the test or fixture that runs, seeded with its name.  So a test draws the
same numbers alone, in any order, and in any worker.  A module that draws while it is imported does
so in a named block: `with seeded("shapes"): TABLE = ...`.
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
    """A proxy for the generator on top of the stack."""

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
    """Makes all draws inside the block depend on `name` and on earlier draws in the block only.

    The block also seeds generators of libraries: `nn.Linear` draws from torch's generator.
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
    """Returns the `nodeid` of a test or file, without the group that pytest-xdist appends."""
    file = node.getparent(pytest.File)
    if file is None:
        return node.nodeid
    inner = node.listchain()[len(file.listchain()) :]
    return "::".join((file.nodeid, *(part.name for part in inner)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Seeds a shared fixture with its own name, so that it draws the same numbers for any first
    user."""
    if not fixturedef.baseid:  # it belongs to pytest itself
        return (yield)
    with seeded(f"{name_of(request.node)}::{fixturedef.argname}[{request.param_index}]"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with seeded(name_of(item)):
        return (yield)
