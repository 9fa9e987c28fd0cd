"""Checks a lock against the decisions of models, without measuring."""

from collections.abc import Iterable, Iterator, Sequence

from tcc.passes.choose.ledger import ListeningLedger
from tcc.tune.lock import Home, Lock, sites_of
from tcc.tune.words import words


def problems(
    lock: Lock, ledgers: Sequence[ListeningLedger], analytic: Iterable[ListeningLedger] = ()
) -> Iterator[tuple[str, str]]:
    """Yields (kind, text) for each entry that is missing, stale or unused.

    `ledgers` have recorded the decisions of compiles that obeyed the lock. A kernel without an
    entry is `missing`. An entry that does not fit its site is `stale`. An entry of a section that a
    compile took is `unused` if its site occurs in no compile, and in none of `analytic`: ledgers of
    compiles without the lock, whose sites other entries may remove.
    """
    homes: dict[Home, None] = {}
    sites: set[tuple[Home, str]] = set()
    for ledger in ledgers:
        homes.update(ledger.entered)
        for home, site, decision in sites_of(ledger):
            is_new = (home, site.digest) not in sites
            sites.add((home, site.digest))
            # Only kernels have an exact text.
            is_kernel = decision.site.digest in ledger.exact
            if is_new and is_kernel and site.digest not in lock.sections.get(home, {}):
                yield "missing", f"{words(site.kind, site.content)}, site {site.digest}"
        for line, why in ledger.met.items():
            if why:
                yield "stale", f"{line.where}: {why}"
    sites |= {(home, site.digest) for ledger in analytic for home, site, _ in sites_of(ledger)}
    for home in homes:
        for entry in lock.sections.get(home, {}).values():
            if (home, entry.site) not in sites:
                yield "unused", f"line {entry.line}: {entry.op}"
