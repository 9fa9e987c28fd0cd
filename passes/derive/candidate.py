"""A replacement that may compute a site in place of the site's nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import log2
from typing import NamedTuple, TypeAlias

from tcc.frozen import frozen
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.op import Array
from tcc.passes.derive.sites import Site
from tcc.schedule.alternatives import Seconds
from tcc.schedule.limits import Rates
from tcc.schedule.margins import MARGINS

# The share of its price that a replacement must save, as prices of different kernels err; and the
# share for each bit of a result that its rounding may cost.
MARGIN, ROUNDING = MARGINS["derivation"].saves, 0.01

# The array of each constant operand; None for the other operands.
Arrays: TypeAlias = Sequence[Array | None]


@frozen
class Candidate:
    """Another way to compute a site. Equal candidates compute the same in the same way.

    `chain` describes its derivation, `estimate` is its time in seconds by its work alone.
    """

    chain: str
    estimate: Seconds

    @property
    def text(self) -> str:
        """The expression that it computes; empty where the chain says all."""
        return ""

    @property
    def amplification(self) -> float:
        """The largest error of a result relative to that of a direct sum with as many roundings."""
        return 1.0

    @property
    def direct(self) -> bool:
        """True where its sums are those of the site; it then runs in narrow types where the site
        does."""
        return False

    @property
    def guarded(self) -> bool:
        """True where the site's own sums stay too, and run where symbolic sizes are small."""
        return False

    @abstractmethod
    def growth(self, site: Site) -> int:
        """Returns the bytes that it adds to the constants."""

    def least_seconds(self, rates: Rates) -> Seconds:
        """Returns a lower bound of the seconds of its kernels."""
        return self.estimate

    def refused(self) -> str:
        """Returns the reason why it is not worth a price; empty where it is worth one."""
        return ""

    def unchecked(self, site: Site) -> str:
        """Returns the reason why it cannot be compared with what it replaces; empty where the two
        agree, or agree by construction.

        Raises InternalError, with the chain, where the two differ.
        """
        return ""

    @abstractmethod
    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: Arrays | None
    ) -> Value | None:
        """Adds the nodes that compute the site's result; without arrays, constants get arbitrary
        contents.

        None where constants computed from the arrays do not fit their types.
        """


class SearchResult(NamedTuple):
    """The result of a search for candidates.

    `estimate` is that of the site as it is, None for a site to be priced; `candidates` come best
    first; `states` counts the states that the search visited.
    """

    estimate: Seconds | None
    candidates: Sequence[Candidate]
    states: int


def price_factor(candidate: Candidate) -> float:
    """Returns the factor by which a candidate's price is multiplied before it is compared."""
    return 1 + MARGIN + ROUNDING * log2(candidate.amplification)
