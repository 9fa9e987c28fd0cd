"""Alternatives for a region and the one comparison of their prices.

rule 10.0 us, alternatives 9.7 and 9.5 us     margin 0.1   ->   the rule
                                              margin 0.04  ->   the alternative of 9.5 us
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from tcc.frozen import frozen

_R = TypeVar("_R")
_T = TypeVar("_T")


@frozen
class Alternative(Generic[_R, _T]):
    """`replacement` for `region`, which takes `price` seconds.

    `bytes` is its share of a memory that all regions use.
    """

    region: _R
    replacement: _T
    price: float
    bytes: int = 0


def in_order(alternatives: Iterable[Alternative[_R, _T]]) -> list[Alternative[_R, _T]]:
    """Returns `alternatives`, the cheapest first; equal prices keep their order."""
    return sorted(alternatives, key=lambda alternative: alternative.price)


def preferred(
    rule: Alternative[_R, _T], alternatives: Sequence[Alternative[_R, _T]], margin: float = 0.0
) -> Alternative[_R, _T]:
    """Returns the cheapest of `alternatives` if it saves more than the fraction `margin` of the
    rule's price, else `rule`."""
    best = min(alternatives, key=lambda alternative: alternative.price, default=rule)
    return best if best.price < (1 - margin) * rule.price else rule
