"""The decisions of a compile as records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tcc.passes.choose.ledger import Line, ListeningLedger
from tcc.schedule.alternatives import (
    IMPOSSIBLE,
    Alternative,
    Decision,
    digest_of,
    in_order,
    number,
)
from tcc.zipped import zip_equal

# At most this many alternatives are listed for a decision that chooses a kernel's schedule. The
# tuple has the kinds of these decisions.
_SCHEDULES, _SCHEDULE_KINDS = 16, ("schedule", "blocks")


def decision_records(
    ledger: ListeningLedger, kind: str | None, *, every: bool
) -> Iterator[dict[str, Any]]:
    """Yields a record for each decision of `kind` (None: of all kinds).

    The fields `site` and `alternative` of a record, as a JSON line, are input for --choices.
    `sites` is the number of equal sites. The seconds of an impossible alternative are null.
    `same_kernel` is true for the choice, and null for all other alternatives until `mark_same` sets
    it. `every` lists all schedules of a kernel, else only the cheapest are listed.
    """
    for decision in ledger.decisions():
        site = decision.site
        if kind in (None, site.kind):
            yield {
                "site": site.digest,
                "alternative": decision.choice.text,
                "kind": site.kind,
                "place": decision.place,
                "sites": ledger.counts[site.digest],
                "reason": decision.reason,
                "rule": decision.rule.text,
                "alternatives": [
                    {
                        "text": a.text,
                        "digest": digest_of(a.text),
                        "seconds": None if a.price == IMPOSSIBLE else number(a.price),
                        "same_kernel": True if a.text == decision.choice.text else None,
                    }
                    for a in _listed(decision, every=every)
                ],
                "text": site.text,
            }


def _listed(decision: Decision[Any], *, every: bool) -> Sequence[Alternative[Any]]:
    """Returns the alternatives to list: all of them, or only the cheapest schedules."""
    options = decision.alternatives
    if every or decision.site.kind not in _SCHEDULE_KINDS:
        return options
    listed = {decision.rule.text, decision.choice.text}
    listed.update(a.text for a in in_order(options)[:_SCHEDULES])
    return [a for a in options if a.text in listed][:_SCHEDULES]


def mark_same(
    records: Sequence[dict[str, Any]], same_kernels: Callable[[list[Line]], Iterable[bool]]
) -> None:
    """Sets `same_kernel` of each possible alternative.

    It is true if forcing the alternative gives the same kernels as the choice. A `Line` forces an
    alternative at a site. `same_kernels` takes such lines and yields the result for each line.
    """
    options = [
        (Line(record["site"], option["text"], f"site {record['site']}"), option)
        for record in records
        for option in record["alternatives"]
        if option["seconds"] is not None and option["text"] != record["alternative"]
    ]
    marks = same_kernels([line for line, _ in options])
    for (_, option), is_same in zip_equal(options, marks):
        option["same_kernel"] = is_same
