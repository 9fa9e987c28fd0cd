"""Decisions: a site, its alternatives, their prices, and the one comparison that chooses.

    rule 10.0 us, alternatives 9.7 and 9.5 us     saves 10 %  ->   the rule
                                                  saves  4 %  ->   the alternative of 9.5 us

A `Site` says what a decision is about, such as the tile sizes of one kernel. Its text has
everything that the prices depend on. An `Alternative` has a text that names it among the
alternatives of its site. Texts can be parsed, and the digest of a text is equal in every process.

Each decision of a compile goes through a `Ledger`. This module's ledger only compares prices, and
builds neither sites nor texts. The ledger of `tcc.passes.choose.ledger` records decisions, and may
force a choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from math import inf, isclose
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from tcc.frozen import frozen
from tcc.schedule.choice_text import text_of
from tcc.schedule.margins import NO_MARGIN, Margin

if TYPE_CHECKING:

    class Seconds:
        """A time that prices predict; a float at run time.

        Sums and multiples of times are times too. For the type checker the type has no order, so
        that times are compared only in this module and in `passes/choose`.
        """

        def __init__(self, number: float) -> None: ...
        def __add__(self, other: Seconds) -> Seconds: ...
        def __radd__(self, other: int) -> Seconds: ...  # sum() starts with the int 0
        def __sub__(self, other: Seconds) -> Seconds: ...
        def __neg__(self) -> Seconds: ...
        def __mul__(self, factor: float) -> Seconds: ...
        def __rmul__(self, factor: float) -> Seconds: ...
        def __truediv__(self, divisor: float) -> Seconds: ...

else:
    Seconds = float

NO_TIME, IMPOSSIBLE = Seconds(0.0), Seconds(inf)

_T = TypeVar("_T")
_SITE = re.compile(r"([a-z-]+)(?:#(\d{1,9}))?(?:@([\w:,]+))? (.*)", re.DOTALL)


@frozen
class Alternative(Generic[_T]):
    """An alternative of a decision: `replacement`, which takes `price` seconds.

    `name` is the alternative's text; if it is empty, the text is made from `replacement`. The
    alternative takes `bytes` bytes of a memory that all sites share.
    """

    replacement: _T
    price: Seconds
    bytes: int = 0
    name: str = ""

    @property
    def text(self) -> str:
        """Returns the text that names the alternative among those of its site."""
        return self.name or text_of(self.replacement)


@frozen
class Site:
    """The place of a decision: its `kind`, and the `content` on which its prices depend.

    A content names no values of the model, so equal layers have equal sites. If a choice also
    depends on a site's neighbours, `number` tells sites of equal content apart: 0, 1, and so on.
    `device` is the target, such as `cuda` or `cuda:sm_90`, if a compile has several targets.
    """

    kind: str
    content: str
    number: int = 0
    device: str = ""

    @property
    def text(self) -> str:
        """Returns a text that `read_site` parses back."""
        number = f"#{self.number}" if self.number else ""
        device = f"@{self.device}" if self.device else ""
        return f"{self.kind}{number}{device} {self.content}"

    @property
    def digest(self) -> str:
        """Returns 128 bits of the text's hash, as 32 hexadecimal digits."""
        return digest_of(self.text)


def digest_of(text: str) -> str:
    """Returns a hash of `text` as 32 hexadecimal digits (128 bits)."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def read_site(text: str) -> Site:
    """Returns the site of a text; raises ValueError for any other text."""
    parts = _SITE.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text[:60]!r} is not a site")
    kind, number, device, content = parts.groups()
    return Site(kind, content, int(number or 0), device or "")


@frozen
class Decision(Generic[_T]):
    """A decision at a site: the alternative that a rule proposes, the `others`, and the `choice`.

    `reason` is a sentence without a full stop. `place` names the first node in the model.
    """

    site: Site
    rule: Alternative[_T]
    others: tuple[Alternative[_T], ...]
    choice: Alternative[_T]
    reason: str
    place: str = ""

    @property
    def alternatives(self) -> tuple[Alternative[_T], ...]:
        """Returns the rule's alternative, then the others."""
        return (self.rule, *self.others)


# ---- the comparison -----------------------------------------------------------------------------


def number(seconds: Seconds) -> float:
    """Returns a time as a float, in seconds.

    Only this module and `passes/choose` may compare the result; other callers print it.
    """
    return cast("float", seconds)


def share_saved(price: Seconds, rule: Seconds) -> float:
    """Returns the fraction of the rule's price that another price saves."""
    return 1 - number(price) / number(rule)


def in_order(alternatives: Iterable[Alternative[_T]]) -> list[Alternative[_T]]:
    """Returns `alternatives`, the cheapest first; equal prices keep their order."""
    return sorted(alternatives, key=lambda alternative: number(alternative.price))


def cheapest_first(items: Iterable[_T], price: Callable[[_T], Seconds]) -> list[_T]:
    """Returns `items` in the order of their prices; equal prices keep their order."""
    return sorted(items, key=lambda item: number(price(item)))


def are_close(first: Seconds, second: Seconds) -> bool:
    """Returns True for times that differ by rounding alone."""
    return isclose(number(first), number(second))


def lower(first: Seconds, second: Seconds) -> Seconds:
    """Returns the lower of two times."""
    return first if saves(first, second) else second


def higher(first: Seconds, second: Seconds) -> Seconds:
    """Returns the higher of two times."""
    return second if saves(first, second) else first


def saves(price: Seconds, rule: Seconds, margin: Margin = NO_MARGIN) -> bool:
    """Returns True if `price` is below the rule's price by more than the margin, a fraction of
    it."""
    return number(price) < (1 - margin.saves) * number(rule)


def preferred(
    rule: Alternative[_T], alternatives: Iterable[Alternative[_T]], margin: Margin = NO_MARGIN
) -> Alternative[_T]:
    """Returns the cheapest of `alternatives` if it saves more than the margin, else `rule`."""
    best = min(alternatives, key=lambda alternative: number(alternative.price), default=rule)
    return best if saves(best.price, rule.price, margin) else rule


# ---- the ledger ---------------------------------------------------------------------------------

# A function that returns a site. A ledger calls it only if it records or forces choices
# (`listens`), because building a site's text takes time.
SiteOf: TypeAlias = Callable[[], Site]


class Ledger:
    """The decisions of one compile; this base class neither records nor forces a choice.

    `listens` is True in a ledger that records or forces choices: it then needs the site of each
    decision. It is False here, which saves the time to build them.
    """

    listens: bool = False

    def needs(self, site: SiteOf) -> bool:
        """Returns True if the decision at the site needs the prices and texts of all alternatives,
        because it is recorded or forced."""
        return False

    def decide(
        self,
        site: SiteOf,
        rule: Alternative[_T],
        alternatives: Sequence[Alternative[_T]],
        margin: Margin = NO_MARGIN,
        place: str = "",
    ) -> Alternative[_T]:
        """Returns the alternative that is forced at the site, else the preferred one (`preferred`).

        `site` returns the site; `place` names the first node in the model.
        """
        choice = preferred(rule, alternatives, margin)
        if not self.listens:
            return choice
        return self.settle(site, rule, alternatives, choice, _reason(rule, choice, margin), place)

    def either(
        self,
        site: SiteOf,
        rule: tuple[str, Iterable[Seconds]],
        other: tuple[str, Callable[[], Iterable[Seconds]]],
        margin: Margin = NO_MARGIN,
        place: str = "",
    ) -> bool:
        """Returns True if `rule` is chosen, and False if `other` is.

        `rule` and `other` are pairs (text, prices); the lowest price counts. `other` is chosen if
        it saves more than the margin, or if it is forced. Prices are computed as they are iterated,
        because a ledger that records nothing may stop before the last price.
        """
        (name, prices), (other_name, other_prices) = rule, other
        if not self.needs(site):
            return any(not any(saves(p, price, margin) for p in other_prices()) for price in prices)
        first = Alternative(True, min(prices, key=number), name=name)
        second = Alternative(False, min(other_prices(), key=number), name=other_name)
        return self.decide(site, first, (second,), margin, place).replacement

    def settle(
        self,
        site: SiteOf,
        rule: Alternative[_T],
        alternatives: Sequence[Alternative[_T]],
        choice: Alternative[_T],
        reason: str,
        place: str = "",
        read: Callable[[str], Alternative[_T]] | None = None,
    ) -> Alternative[_T]:
        """Returns the alternative that is forced at the site; `choice` if none is forced.

        The caller has chosen `choice` by price, and `reason` says why. A text names the forced
        alternative. If no element of `alternatives` has this text, `read` returns the alternative
        for it, or raises ValueError if the text does not fit the site.
        """
        return choice

    def forced(self, site: SiteOf, alternatives: Sequence[Alternative[_T]]) -> int | None:
        """Returns the index among `alternatives` of the forced one; None if the choice is free."""
        return None

    def wanted(self, site: SiteOf) -> str:
        """Returns the text of the alternative that a line forces at the site; "" for none."""
        return ""

    def refuse(self, site: SiteOf, why: str) -> None:
        """Refuses the line at the site, whose alternative does not fit for the reason `why`.

        Raises UserError for a line of --choices. A line of a lock is recorded, and has no effect.
        """

    def name_exactly(self, site: SiteOf, text: Callable[[], str]) -> None:
        """Records a function that returns a text of the kernel that was chosen at the site.

        Other than the alternative's text, it gives the same kernel whatever the rules propose.
        """

    def within(self, target: str, cores: int) -> Ledger:
        """Returns a ledger that obeys the lock's section for `target` with `cores` cores."""
        return self

    def at(self, place: str) -> AbstractContextManager[Any]:
        """Returns a context. Decisions inside it get `place` if they name no place."""
        return nullcontext()

    def trial(self) -> AbstractContextManager[Any]:
        """Returns a context for decisions about a graph that is priced, but may not be used."""
        return nullcontext()

    def on(self, device: str) -> Ledger:
        """Returns a ledger whose sites name `device`, for a compile with several targets."""
        return self

    def decisions(self) -> Iterator[Decision[Any]]:
        """Yields the recorded decisions, in the order in which they were made."""
        return iter(())


SILENT = Ledger()


def _reason(rule: Alternative[Any], choice: Alternative[Any], margin: Margin) -> str:
    if choice is not rule and not saves(NO_TIME, rule.price):
        return "it has a lower price"
    if choice is not rule:
        return f"it saves {share_saved(choice.price, rule.price):.1%} of the rule's price"
    if margin.saves:
        return f"no alternative saves {margin.saves:.0%} of its price (margin {margin.name})"
    return "no alternative has a lower price"
