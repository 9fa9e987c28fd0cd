"""What may compute a site in place of its nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import log2
from typing import NamedTuple, TypeAlias

from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.op import Array
from tcc.passes.derive.sites import Site
from tcc.record import record
from tcc.schedule.limits import Rates

# The part of its price that a replacement has to save, for prices of unlike kernels err, and that
# for each bit of a result that its rounding may cost.
MARGIN, ROUNDING = 0.05, 0.01

# Of each operand that is constant its array.
Arrays: TypeAlias = Sequence[Array | None]


@record
class Candidate:
    """Another way to compute a site; equal ones compute the same in the same way.

    `chain` says how it follows, `estimate` is the seconds that it takes by its work alone.
    """

    chain: str
    estimate: float

    @property
    def text(self) -> str:
        """The expression that it computes; empty where the chain says all."""
        return ""

    @property
    def amplification(self) -> float:
        """How many times as far as a direct sum a result may be off, for as many roundings."""
        return 1.0

    @property
    def direct(self) -> bool:
        """Whether its sums are those of the site, in narrow types too where these are narrow."""
        return False

    @property
    def guarded(self) -> bool:
        """Whether the site's own sums stay, and run where open sizes are small."""
        return False

    @abstractmethod
    def growth(self, site: Site) -> int:
        """Bytes by which constants grow."""

    def least_seconds(self, rates: Rates) -> float:
        """Less than which no kernels of it take."""
        return self.estimate

    def refused(self) -> str:
        """Why it is not worth a price; empty where it is."""
        return ""

    def unchecked(self, site: Site) -> str:
        """Why it cannot be compared with what it replaces; empty where the two agree, or agree by
        construction.

        Raises InternalError, with the chain, where they do not."""
        return ""

    @abstractmethod
    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: Arrays | None
    ) -> Value | None:
        """Adds what computes the site's result; without arrays constants get any contents.

        None, with arrays, where what is made of them does not fit its type."""


class Found(NamedTuple):
    """The estimate of a site as it is, None where it is to be priced, the candidates, the best
    first, and how many states a search for them looked at."""

    estimate: float | None
    candidates: Sequence[Candidate]
    states: int


def dearer(candidate: Candidate) -> float:
    """How many times as dear as its price a candidate counts."""
    return 1 + MARGIN + ROUNDING * log2(candidate.amplification)
