"""Finds the decisions above schedules that a sweep tries."""

from collections.abc import Collection

from tcc.passes.choose.ledger import ListeningLedger
from tcc.passes.choose.near import near, predicted
from tcc.tune.candidates import TunedDecision
from tcc.tune.words import words

# Alternatives are tried if their price exceeds the best price by at most this part of it.
_NEAR = 0.3
# The text of a kernel's choice decides all of these.
_KERNEL_KINDS = ("form", "schedule", "blocks", "shared-layout")


def decisions_above(ledger: ListeningLedger, forced: Collection[str]) -> list[TunedDecision]:
    """Returns the decisions above schedules that have an alternative near the best price, the
    longest predicted time first.

    `ledger` has recorded the decisions of a compile. Decisions whose site is in `forced` are left
    out.
    """
    rows = [
        TunedDecision(
            here.digest,
            words(here.kind, here.content),
            predicted(decision) * ledger.counts[here.digest],
            tuple(near(decision, _NEAR)),
        )
        for decision in ledger.decisions()
        for here in (decision.site,)
        if here.kind not in _KERNEL_KINDS and here.digest not in forced
    ]
    rows = [row for row in rows if row.alternatives]
    return sorted(rows, key=lambda row: (-row.seconds, row.site))
