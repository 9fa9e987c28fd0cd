"""Symbols of torch's programs have the right ranges and typical sizes."""

from __future__ import annotations

import pytest
from tcc.frontends.scope import LARGEST_SIZE, ImportSession
from tcc.frontends.torch.symbols import Symbols
from tcc.ir.index import Var


class Counted(int):
    """A number that counts its equality tests."""

    asked = 0

    def __eq__(self, other: object) -> bool:
        Counted.asked += 1
        return int(self) == other

    __hash__ = int.__hash__


def defined(upper: int | None, example: int | None) -> Var:
    """Returns the symbol of a size in [2, upper] (None: no bound) that was `example` in the example
    inputs."""
    examples = {} if example is None else {"s0": example}
    session = ImportSession()
    symbols = Symbols(session, {"s0": (2, upper)}, lambda *_: pytest.fail("no rounding"), examples)
    (((atom,), factor),) = symbols.fresh("s0", "n").terms
    assert factor == 1
    assert isinstance(atom, Var)
    return atom


@pytest.mark.parametrize(
    ("upper", "example", "typical"),
    [(9, None, None), (9, 0, None), (9, 1, 1), (9, 9, 9), (9, 10, None), (None, 10, 10)],
)
def test_examples_within_the_range_are_typical(
    upper: int | None, example: int | None, typical: int | None
) -> None:
    symbol = defined(upper, example)
    assert (symbol.lo, symbol.hi) == (1, upper or LARGEST_SIZE)
    assert symbol.typical == typical


def test_no_range_is_walked_through() -> None:
    """A loop over a billion sizes took half a minute, even without an example."""
    Counted.asked = 0
    assert defined(None, Counted(100_000)).typical == 100_000
    assert Counted.asked < 100
