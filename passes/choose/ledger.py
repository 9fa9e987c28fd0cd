"""Records the decisions of one compile, and forces choices.

A site is a place in the model where the compiler chooses among alternatives.  A line
`{"site": "5f1c...", "alternative": "apart"}` of a file for --choices becomes a `Line`.  An entry of
a lock becomes a line too.  A line of --choices must fit, and takes precedence.  An entry that does
not fit is recorded with the reason, and has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.schedule.alternatives import Alternative, Decision, Ledger, Site, SiteOf, digest_of

_T = TypeVar("_T")
# An error message lists at most this many alternatives.
_NAMED = 8


@frozen
class Line:
    """A forced choice.

    `site` is the digest of a site.  `alternative` is the text or the digest of an alternative; ""
    forces none.  `where` is the file and line of the choice.  `tuned`: the line is a lock's entry.
    """

    site: str
    alternative: str
    where: str
    tuned: bool = False

    def names(self, alternative: Alternative[Any]) -> bool:
        """Returns True if the line forces `alternative`."""
        text = alternative.text
        return self.alternative in (text, digest_of(text))


# A function for each target with its number of cores. It returns the entry of a lock for the digest
# of a site, or None. Most entries of a large lock belong to other models, and never become lines.
Sections: TypeAlias = Mapping[tuple[str, int], Callable[[str], Line | None]]


class ListeningLedger(Ledger):
    """Records decisions, and forces the choices of `lines` and of a lock's `sections`.

    A site that occurs several times is recorded once; `counts` maps its digest to the number of
    occurrences.  `changes` has each line that forced another alternative than prices chose, and
    each line that was applied before prices were compared.  `met` has the entries of the lock whose
    sites occurred, each with the reason why it has no effect, or "".  `exact` has the texts of
    `name_exactly` by digest.  `homes` has the target and cores of each decision, and `entered`
    those of all calls of `within`. Without `records`, only `met`, `changes` and `entered` are
    filled: that takes less time, because prices and texts are built for forced decisions alone.
    """

    listens = True

    def __init__(
        self,
        lines: Sequence[Line] = (),
        sections: Sections = MappingProxyType({}),
        *,
        records: bool = True,
    ) -> None:
        self.records = records
        self._lines = {line.site: line for line in lines}
        self._sections, self._home = sections, ("", 0)
        self._section: Callable[[str], Line | None] | None = None
        self.met: dict[Line, str] = {}
        self.exact: dict[str, Callable[[], str]] = {}
        self.homes: dict[str, tuple[str, int]] = {}
        self.entered: dict[tuple[str, int], None] = {}
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
        line, options = self._line(here), (rule, *alternatives)
        forced = None if line is None else self._forced(line, here, options, read)
        if line is not None and forced is not None:
            if forced.text != choice.text:
                self.changes[line] = None
                reason = f"{line.where} forces it; else {choice.text}: {reason}"
            elif line in self.changes:
                reason = f"{line.where} forces it"
            choice = forced
        if not self.records:
            return choice
        decision = Decision(here, rule, tuple(alternatives), choice, reason, place or self._place)
        self._decisions.setdefault(here.digest, decision)
        self.homes.setdefault(here.digest, self._home)
        self.counts[here.digest] += 1
        return choice

    def needs(self, site: SiteOf) -> bool:
        return self.records or (not self._trials and self._line(self._site(site)) is not None)

    def _line(self, here: Site) -> Line | None:
        """Returns the line for a site, of --choices rather than of the lock; None for none."""
        line = self._lines.get(here.digest) if self._lines else None
        plain = replace(here, device="") if here.device else here
        entry = self._section(plain.digest) if self._section else None
        if entry is not None:
            self.met.setdefault(entry, "" if line is None else f"{line.where} has the same site")
        line = line or entry
        return None if line is None or not line.alternative or self.met.get(line) else line

    def _forced(
        self,
        line: Line,
        here: Site,
        options: Sequence[Alternative[_T]],
        read: Callable[[str], Alternative[_T]] | None,
    ) -> Alternative[_T] | None:
        """Returns the alternative that a line forces; None for a lock's entry that does not fit."""
        number = _number(line, options)
        if number is not None:
            return options[number]
        try:
            return _read(line, here, options, read)
        except UserError as error:
            if not line.tuned:
                raise
            self.met[line] = f"{error.what}: {error.why}"
            return None

    def forced(self, site: SiteOf, alternatives: Sequence[Alternative[_T]]) -> int | None:
        if self._trials or not (self._lines or self._section):
            return None
        here = self._site(site)
        line = self._line(here)
        forced = None if line is None else self._forced(line, here, alternatives, None)
        if line is None or forced is None:
            return None
        self.changes[line] = None
        return _number(line, alternatives)

    def wanted(self, site: SiteOf) -> str:
        if self._trials or not (self._lines or self._section):
            return ""
        line = self._line(self._site(site))
        return "" if line is None else line.alternative

    def refuse(self, site: SiteOf, why: str) -> None:
        here = self._site(site)
        line = self._line(here)
        assert line is not None
        if not line.tuned:
            raise _unfit(line, here, (), why)
        self.met[line] = why

    def name_exactly(self, site: SiteOf, text: Callable[[], str]) -> None:
        if self.records and not self._trials:
            self.exact.setdefault(self._site(site).digest, text)

    def within(self, target: str, cores: int) -> Ledger:
        # The copy shares its lines and its recorded decisions with the original.
        ledger = copy(self)
        ledger._home = target, cores
        self.entered[ledger._home] = None
        ledger._section = self._sections.get(ledger._home)
        return ledger

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

    def force(self, lines: Sequence[Line]) -> None:
        """Forces the choices of `lines` instead of those of the lines before.

        The copies of this ledger obey the new lines too. Records about lines are forgotten.
        """
        self._lines.clear()
        self._lines.update((line.site, line) for line in lines)
        self.met.clear()
        self.changes.clear()

    def refusal(self, here: Site) -> str | None:
        """Returns the reason why the lock's entry for a site has no effect, and "" if it has one.

        Returns None if the section has no entry for the site. The site names no device.
        """
        entry = self._section(here.digest) if self._section else None
        return None if entry is None else self.met.get(entry)

    def refusals(self) -> dict[str, str]:
        """Returns the reasons why entries of a lock have no effect, by the digest of their site."""
        return {line.site: why for line, why in self.met.items() if why}

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
    if not texts:
        return UserError(f"a choice does not fit its {site.kind} site", where=line.where, why=why)
    more = f", and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    names = f"its alternatives are {', '.join(texts[:_NAMED])}{more}"
    return UserError(
        f"a {site.kind} decision has no alternative {line.alternative[:60]!r}",
        where=line.where,
        why=f"{why}; {names}" if why else names,
        hint="tcc inspect MODEL --choices --all lists the alternatives of each site",
    )
