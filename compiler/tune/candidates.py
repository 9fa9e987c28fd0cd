"""The candidates of kernels, and of decisions above schedules, as a sweep sees them."""

from collections.abc import Sequence
from typing import Protocol

from tcc.frozen import entity, frozen

# A candidate is not tried if its price is more than this many times the price of the analytic
# choice: it would slow the whole trial.
MOST_EXPENSIVE = 8.0


@frozen
class KernelCandidate:
    """A choice of a kernel: its text, and its predicted seconds."""

    text: str
    price: float


class Space(Protocol):
    """The candidates of one kernel."""

    def near(self, text: str) -> Sequence[KernelCandidate]:
        """Returns the candidates that differ from the candidate `text` in one knob or dimension."""


@entity
class TunedKernel:
    """A kernel of the model: the digest of its site, its operation in words, the text of its
    analytic choice, and its candidates."""

    site: str
    op: str
    analytic: str
    space: Space


@frozen
class TunedDecision:
    """A decision above schedules, such as a derivation, a join or a storage order.

    `site` is the digest of its site, and `op` describes the site in words. `seconds` is the
    predicted time in a run that the decision is about. `alternatives` are the texts to try.
    """

    site: str
    op: str
    seconds: float
    alternatives: tuple[str, ...]
