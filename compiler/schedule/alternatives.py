"""Alternatives for a region and the one comparison of their prices.

the rule's 10.0 us, others 9.7 and 9.5 us     margin 0.1   ->   the rule's
                                              margin 0.04  ->   that of 9.5 us
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from tcc.record import record

_R = TypeVar("_R")
_T = TypeVar("_T")


@record
class Alternative(Generic[_R, _T]):
    """`replacement` for `region`, which takes `price` seconds.

    `bytes` is what it takes of a memory that all regions share.
    """

    region: _R
    replacement: _T
    price: float
    bytes: int = 0


def in_order(alternatives: Iterable[Alternative[_R, _T]]) -> list[Alternative[_R, _T]]:
    """`alternatives` from the cheapest on; of equal prices the one that comes first."""
    return sorted(alternatives, key=lambda each: each.price)


def preferred(
    rule: Alternative[_R, _T], others: Sequence[Alternative[_R, _T]], margin: float = 0.0
) -> Alternative[_R, _T]:
    """The cheapest of `others` if it saves more than the part `margin` of the rule's price, else
    `rule`."""
    best = min(others, key=lambda each: each.price, default=rule)
    return best if best.price < (1 - margin) * rule.price else rule
