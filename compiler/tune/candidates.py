"""The candidates of a kernel, as a sweep sees them."""

from collections.abc import Sequence
from typing import Protocol

from tcc.frozen import entity, frozen


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
