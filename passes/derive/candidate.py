"""Defines candidates: computations that may replace a site's nodes.

A site is a group of nodes whose result is a sum of products (`sites`).
"""

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

# Has an element for each operand: the arrays of a constant, one per rank or one for all ranks, or
# None if the operand is not constant.
RankArrays: TypeAlias = Sequence[Sequence[Array] | None]


@frozen
class Candidate:
    """Another way to compute a site; equal candidates compute it in the same way.

    `chain` is the text of its derivation.  `estimate` is its time in seconds, estimated from its
    work alone.
    """

    chain: str
    estimate: Seconds

    @property
    def text(self) -> str:
        """The text of the expression that the candidate computes; empty if `chain` determines
        it."""
        return ""

    @property
    def amplification(self) -> float:
        """The bound on a result's error, divided by the bound for a direct sum with equally many
        roundings."""
        return 1.0

    @property
    def direct(self) -> bool:
        """Returns True if the candidate adds the same products as the site.

        It can then run in the same narrow types, such as bf16.
        """
        return False

    @property
    def guarded(self) -> bool:
        """Returns True if the candidate also contains the site's own sums, which run instead for
        values of symbolic sizes at which they take less time."""
        return False

    def growth(self, site: DerivationSite) -> int:
        """Returns the bytes by which the replacement increases the model's constants."""
        return 0

    def least_seconds(self, rates: Rates) -> Seconds:
        """Returns a lower bound of the seconds of the candidate's kernels."""
        return self.estimate

    def refused(self, site: DerivationSite) -> str:
        """Returns the reason why the candidate of a site need not be priced; empty if it must be
        priced."""
        return ""

    def unchecked(self, site: DerivationSite) -> str:
        """Returns the reason why the candidate cannot be compared with the site's own computation.

        The reason is empty if the two agree, or if no comparison is needed.  Raises InternalError,
        with the chain, if they differ.
        """
        return ""

    @abstractmethod
    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: RankArrays | None
    ) -> Value | None:
        """Adds the nodes that compute the site's result, and returns the result.

        If `arrays` is None, the graph is only priced, and constants get arbitrary contents.
        Returns None if constants that are computed from the arrays do not fit their types.
        """


class SearchResult(NamedTuple):
    """The result of a search for candidates.

    `estimate` is the estimated time of the site as it is.  If it is None, estimates of candidates
    are compared with the site's price instead.  `candidates` are ordered, the best first.  `states`
    is the number of states that the search visited.
    """

    estimate: Seconds | None
    candidates: Sequence[Candidate]
    states: int


def price_factor(candidate: Candidate) -> float:
    """Returns the factor, above 1, by which a candidate's price is multiplied before it is compared
    with the site's price.

    So a candidate must save more than the errors of prices, and still more if it loses precision.
    """
    return 1 + MARGIN + ROUNDING * log2(candidate.amplification)
