"""A replacement that may compute a site in place of the site's nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import log2
from typing import NamedTuple, TypeAlias

from tcc.frozen import frozen
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.op import Array
from tcc.passes.derive.sites import DerivationSite
from tcc.schedule.alternatives import Seconds
from tcc.schedule.limits import Rates
from tcc.schedule.margins import MARGINS

# A replacement must save MARGIN of the price, because prices have errors. It must save ROUNDING
# more for each bit of precision that a result may lose.
MARGIN, ROUNDING = MARGINS["derivation"].saves, 0.01

# The array of each rank, or the one that all ranks have, of each constant operand; None for the
# other operands.
RankArrays: TypeAlias = Sequence[Sequence[Array] | None]


@frozen
class Candidate:
    """Another way to compute a site; equal candidates compute it in the same way.

    `chain` describes its derivation.  `estimate` is its time in seconds, estimated from its work
    alone.
    """

    chain: str
    estimate: Seconds

    @property
    def text(self) -> str:
        """The expression that it computes; empty if the chain determines it."""
        return ""

    @property
    def amplification(self) -> float:
        """The largest error of a result relative to that of a direct sum with as many roundings."""
        return 1.0

    @property
    def direct(self) -> bool:
        """True where its sums are those of the site; it can then run in the same narrow types."""
        return False

    @property
    def guarded(self) -> bool:
        """True where it contains the site's own sums too, which run for small symbolic sizes."""
        return False

    @abstractmethod
    def growth(self, site: DerivationSite) -> int:
        """Returns the bytes that it adds to the constants."""

    def least_seconds(self, rates: Rates) -> Seconds:
        """Returns a lower bound of the seconds of its kernels."""
        return self.estimate

    def refused(self) -> str:
        """Returns the reason why it is not worth a price; empty where it is worth one."""
        return ""

    def unchecked(self, site: DerivationSite) -> str:
        """Returns the reason why it cannot be checked against what it replaces.

        Empty where the check succeeds, or where none is needed.  Raises InternalError, with the
        chain, where the check fails.
        """
        return ""

    @abstractmethod
    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: RankArrays | None
    ) -> Value | None:
        """Adds the nodes that compute the site's result, and returns the result.

        Without `arrays`, constants get arbitrary contents.  None where constants computed from the
        arrays do not fit their types.
        """


class SearchResult(NamedTuple):
    """The result of a search for candidates.

    `estimate` is that of the site as it is; None if the site's price is needed instead.
    `candidates` are ordered, the best first.  `states` is the number of visited states.
    """

    estimate: Seconds | None
    candidates: Sequence[Candidate]
    states: int


def price_factor(candidate: Candidate) -> float:
    """Returns the factor by which a candidate's price is multiplied before it is compared."""
    return 1 + MARGIN + ROUNDING * log2(candidate.amplification)
