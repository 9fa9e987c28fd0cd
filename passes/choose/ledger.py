"""Records the decisions of one compile, and forces choices.

A site is a place in the model where the compiler chooses among alternatives.  A line
`{"site": "5f1c...", "alternative": "apart"}` of a file for --choices becomes a `Line`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.schedule.alternatives import Alternative, Decision, Ledger, Site, SiteOf, digest_of

_T = TypeVar("_T")
# An error message lists at most this many alternatives.
_NAMED = 8


@frozen
class Line:
    """A forced choice.

    `site` is the digest of a site.  `alternative` is the text or the digest of an alternative.
    `where` is the file and line of the choice.
    """

    site: str
    alternative: str
    where: str

    def names(self, alternative: Alternative[Any]) -> bool:
        """Returns True if the line forces `alternative`."""
        text = alternative.text
        return self.alternative in (text, digest_of(text))


class ListeningLedger(Ledger):
    """Records decisions, and forces the choices of `lines`.

    A site that occurs several times is recorded once; `counts` maps its digest to the number of
    occurrences.  `changes` has each line that forced another alternative than prices chose, and
    each line that was applied before prices were compared.
    """

    listens = True

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self._lines = {line.site: line for line in lines}
        self._decisions: dict[str, Decision[Any]] = {}
        self.counts: Counter[str] = Counter()
        self.changes: dict[Line, None] = {}
        self._trials = 0
        self._place = self._device = ""

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
        if self._trials:
            return choice
        here = self._site(site)
        line = self._lines.get(here.digest)
        if line is not None:
            options = (rule, *alternatives)
            number = _number(line, options)
            forced = _read(line, here, options, read) if number is None else options[number]
            if forced.text != choice.text:
                self.changes[line] = None
                reason = f"{line.where} forces it; else {choice.text}: {reason}"
            elif line in self.changes:
                reason = f"{line.where} forces it"
            choice = forced
        decision = Decision(here, rule, tuple(alternatives), choice, reason, place or self._place)
        self._decisions.setdefault(here.digest, decision)
        self.counts[here.digest] += 1
        return choice

    def forced(self, site: SiteOf, alternatives: Sequence[Alternative[_T]]) -> int | None:
        if self._trials or not self._lines:
            return None
        here = self._site(site)
        line = self._lines.get(here.digest)
        if line is None:
            return None
        number = _number(line, alternatives)
        if number is None:
            raise _unfit(line, here, alternatives)
        self.changes[line] = None
        return number

    def on(self, device: str) -> Ledger:
        # The copy shares its lines and its recorded decisions with the original.
        ledger = copy(self)
        ledger._device = device
        return ledger

    def _site(self, site: SiteOf) -> Site:
        return replace(site(), device=self._device) if self._device else site()

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        outer, self._place = self._place, place
        try:
            yield
        finally:
            self._place = outer

    @contextmanager
    def trial(self) -> Iterator[None]:
        self._trials += 1
        try:
            yield
        finally:
            self._trials -= 1

    def decisions(self) -> Iterator[Decision[Any]]:
        return iter(self._decisions.values())

    def unused(self) -> list[Line]:
        """Returns the lines whose sites did not occur in this compile."""
        return [line for site, line in self._lines.items() if site not in self._decisions]


def _number(line: Line, alternatives: Sequence[Alternative[Any]]) -> int | None:
    """Returns the index of the alternative that a line forces; None if it is not among them."""
    return next((n for n, alternative in enumerate(alternatives) if line.names(alternative)), None)


def _read(
    line: Line,
    site: Site,
    alternatives: Sequence[Alternative[_T]],
    read: Callable[[str], Alternative[_T]] | None,
) -> Alternative[_T]:
    """Returns the alternative that `read` makes from the text of a line's alternative.

    Raises UserError if `read` is None or the text does not fit the site.
    """
    if read is None:
        raise _unfit(line, site, alternatives)
    try:
        return read(line.alternative)
    except ValueError as error:
        raise _unfit(line, site, alternatives, str(error)) from error


def _unfit(
    line: Line, site: Site, alternatives: Sequence[Alternative[Any]], why: str = ""
) -> UserError:
    texts = list(dict.fromkeys(a.text for a in alternatives))
    more = f", and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    names = f"its alternatives are {', '.join(texts[:_NAMED])}{more}"
    return UserError(
        f"a {site.kind} decision has no alternative {line.alternative[:60]!r}",
        where=line.where,
        why=f"{why}; {names}" if why else names,
        hint="tcc inspect MODEL --choices --all lists the alternatives of each site",
    )
