"""Pins a model: the choice of every decision becomes an entry of the lock."""

from collections.abc import Iterator
from dataclasses import replace

from tcc.passes.choose.ledger import ListeningLedger
from tcc.tune.lock import CHANGED, PINNED, Home, Lock, LockEntry
from tcc.tune.words import words


def pinned(ledger: ListeningLedger, lock: Lock) -> Iterator[tuple[Home, LockEntry]]:
    """Yields an entry for each decision of a compile that `ledger` recorded and that obeyed `lock`.

    The text of a kernel has its schedule, so that a later version makes the same kernel. An entry
    keeps its gain, and the verdict `changed`.
    """
    for decision in ledger.decisions():
        site = decision.site
        home = ledger.homes[site.digest]
        exact = ledger.exact.get(site.digest)
        plain = replace(site, device="")
        old = lock.sections.get(home, {}).get(plain.digest)
        text = decision.choice.text if exact is None else exact()
        verdict = CHANGED if old is not None and old.verdict == CHANGED else PINNED
        if old is not None and old.alternative != text:
            verdict = PINNED
        gain = None if old is None else old.gain
        yield home, LockEntry(plain.digest, words(site.kind, site.content), verdict, text, gain)
