"""Makes the decisions at several sites together, because their prices depend on each other.

A site is a place in the model where the compiler chooses among alternatives.
Sites of equal content get numbers:  derive x, derive x    ->    derive x, derive#1 x
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.choose.content import site
from tcc.schedule.alternatives import Alternative, Ledger, SiteOf
from tcc.zipped import zip_equal

_T = TypeVar("_T")


def numbered(
    ledger: Ledger, kind: str, contents_of: Callable[[], Sequence[tuple[Any, ...]]]
) -> list[SiteOf]:
    """Returns a list with a function for each content; the function returns the content's site.

    Returns an empty list if `ledger` records nothing.  Sites of equal content get different
    numbers, because they may have neighbours of different prices.
    """

    def nth(place: int) -> SiteOf:
        return cache(lambda: site(kind, *contents[place], number=earlier[place]))

    contents = contents_of() if ledger.listens else ()
    counts: Counter[Any] = Counter()
    earlier: list[int] = []
    for content in contents:
        earlier.append(counts[content])
        counts[content] += 1
    return [nth(place) for place in range(len(contents))]


def decide_together(
    ledger: Ledger,
    sites: Sequence[SiteOf],
    places: Sequence[Sequence[Alternative[_T]]],
    links: Mapping[tuple[int, int], Link],
    room: float,
    names: Sequence[str],
) -> list[Alternative[_T]]:
    """Returns the chosen alternative for each place, and records the choices in `ledger`.

    The arguments are those of `choose_together`.  `names` are the names of the places in the model.
    """
    forced = forced_numbers(ledger, sites, places)
    picks = choose_together(places, links, room, forced)
    choices = [alternatives[pick] for alternatives, pick in zip_equal(places, picks)]
    settle_all(ledger, sites, places, choices, names)
    return choices


def forced_numbers(
    ledger: Ledger, sites: Sequence[SiteOf], places: Sequence[Sequence[Alternative[Any]]]
) -> dict[int, int]:
    """Returns the indices of the alternatives that `ledger` forces, by place."""
    if not ledger.listens:
        return {}
    pairs = enumerate(zip_equal(sites, places))
    # A place with a single alternative is no decision, and has no line.
    numbers = {n: ledger.forced(s, options) for n, (s, options) in pairs if len(options) > 1}
    return {place: number for place, number in numbers.items() if number is not None}


def settle_all(
    ledger: Ledger,
    sites: Sequence[SiteOf],
    places: Sequence[Sequence[Alternative[_T]]],
    choices: Sequence[Alternative[_T]],
    names: Sequence[str],
) -> None:
    """Records in `ledger` the choices of all places that have more than one alternative."""
    if not ledger.listens:
        return
    reason = "its neighbours and it take the least time together"
    for site_of, options, choice, name in zip_equal(sites, places, choices, names):
        if len(options) > 1:
            ledger.settle(site_of, options[0], options[1:], choice, reason, name)
