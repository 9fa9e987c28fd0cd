"""Pins a model: the choice of every decision becomes an entry of the lock."""

from collections.abc import Iterator

from tcc.passes.choose.ledger import ListeningLedger
from tcc.tune.lock import CHANGED, PINNED, Home, Lock, LockEntry, sites_of
from tcc.tune.words import words


def pinned(ledger: ListeningLedger, lock: Lock) -> Iterator[tuple[Home, LockEntry]]:
    """Yields an entry for each decision of a compile that `ledger` recorded and that obeyed `lock`.

    The text of a kernel has its schedule, so that a later version makes the same kernel. An entry
    keeps its gain, and the verdict `changed`.
    """
    for home, site, decision in sites_of(ledger):
        exact = ledger.exact.get(decision.site.digest)
        old = lock.sections.get(home, {}).get(site.digest)
        text = decision.choice.text if exact is None else exact()
        is_same = old is not None and (old.verdict, old.alternative) == (CHANGED, text)
        verdict = CHANGED if is_same else PINNED
        gain = None if old is None else old.gain
        yield home, LockEntry(site.digest, words(site.kind, site.content), verdict, text, gain)
