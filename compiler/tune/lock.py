"""The lock: the choices of models as a sorted file that is kept with them.

{"version": 1, "targets": [
 {"target": "cpu:x86-64 (znver4)", "cores": 2, "entries": [
  {"site": "0f3c...", "op": "sum f32[64,64], f32[64,32]", "verdict": "pinned",
   "alternative": "CoreKernel(...)", "gain": null}
 ]}
]}

An entry is a line of the form that --choices reads, with the words and the verdict beside it. A
section holds the entries for one target with one number of cores.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeAlias

from tcc.frozen import field_names, frozen
from tcc.passes.choose.ledger import ListeningLedger
from tcc.schedule.alternatives import Decision, Site

VERSION = 1
# The verdicts: `changed` and `pinned` entries have an alternative. The others have none, because
# the prices choose: `kept` after measuring, `skipped` without, `slow machine` after measuring on a
# machine that was too slow for a verdict.
CHANGED, KEPT, SKIPPED, PINNED, SLOW_MACHINE = VERDICTS = (
    "changed",
    "kept",
    "skipped",
    "pinned",
    "slow machine",
)

# A target's text with its number of cores.
Home: TypeAlias = tuple[str, int]


@frozen
class LockEntry:
    """The verdict about one site.

    `site` is the site's digest, and `op` names its operation and shapes in words. `alternative` is
    the text of the choice; None if prices choose. `gain` is the measured time of the analytic
    choice divided by that of the best alternative, with its lower bound; None without measurement.
    `line` is the entry's line in its file.
    """

    site: str
    op: str
    verdict: str
    alternative: str | None = None
    gain: tuple[float, float] | None = None
    line: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """Returns the entry as its JSON object."""
        return {name: getattr(self, name) for name in field_names(self) if name != "line"}


@frozen
class Lock:
    """The entries of each section by the digest of their site.

    `sha256` is the hash of the file from which the lock was read; "" for a new lock.
    """

    sections: Mapping[Home, Mapping[str, LockEntry]] = field(default_factory=dict)
    sha256: str = ""

    @property
    def count(self) -> int:
        """Returns the number of entries."""
        return sum(map(len, self.sections.values()))

    def with_entries(self, entries: Iterable[tuple[Home, LockEntry]]) -> "Lock":
        """Returns the lock with more entries, which replace those of the same sites."""
        sections = {home: dict(section) for home, section in self.sections.items()}
        for home, entry in entries:
            sections.setdefault(home, {})[entry.site] = entry
        return Lock(sections)

    def with_measured(self, entries: Iterable[tuple[Home, LockEntry]]) -> "Lock":
        """Returns the lock with entries of a sweep.

        Entries `slow machine` and `skipped` replace no entry: nothing was learned about their
        sites.
        """
        return self.with_entries(
            (home, entry)
            for home, entry in entries
            if entry.verdict not in (SLOW_MACHINE, SKIPPED)
            or entry.site not in self.sections.get(home, {})
        )


def sites_of(ledger: ListeningLedger) -> Iterator[tuple[Home, Site, Decision[Any]]]:
    """Yields (section of a lock, site in it, decision) for each decision of a compile.

    A section is for one target, so a site in it names no device.
    """
    for decision in ledger.decisions():
        yield ledger.homes[decision.site.digest], replace(decision.site, device=""), decision


def ordered(lock: Lock) -> Iterator[tuple[Home, list[LockEntry]]]:
    """Yields the sections that have entries, by target and cores, each with its entries by the
    digest of their site."""
    for home in sorted(lock.sections):
        entries = lock.sections[home]
        if entries:
            yield home, [entries[site] for site in sorted(entries)]
