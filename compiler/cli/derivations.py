"""The derivations of a model, as text and as records: what was found for each site, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tcc.passes.derive.convert import region_text
from tcc.passes.derive.derive import Decision
from tcc.passes.derive.sites import composed


def derivation_records(found: Sequence[Decision]) -> list[dict[str, Any]]:
    """A record for all sites that are equal among equal neighbours.

    `sink` names the node that the first of them ends in; seconds are predicted, null where a site
    or a candidate was not priced.
    """
    equal: dict[Any, list[Decision]] = {}
    for decision in found:
        equal.setdefault(decision.site.key, []).append(decision)
    return [_record(decisions) for decisions in equal.values()]


def _record(equal: Sequence[Decision]) -> dict[str, Any]:
    first = equal[0]
    taken = [d.chosen.candidate for d in equal if d.chosen is not None]
    return {
        "sink": first.site.nodes[-1].loc or first.site.nodes[-1].outputs[0].name,
        "nodes": [node.op.name for node in first.site.nodes],
        "sites": len(equal),
        "estimate": first.estimate,
        "seconds": first.seconds,
        "states": first.states,
        "expression": region_text(composed(first.site.nodes)),
        "candidates": [
            {
                "chain": option.candidate.chain,
                "estimate": option.candidate.estimate,
                "seconds": option.seconds,
                "chosen": taken.count(option.candidate),
                "why": option.why,
                "expression": option.candidate.text,
            }
            for option in first.options
        ],
    }


def derivation_lines(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The records for people, with the expressions of sites that are replaced."""
    for site in records:
        times = f"{site['sites']} x " if site["sites"] > 1 else ""
        yield f"{times}{', '.join(site['nodes'])} at {site['sink']}"
        yield f"  as it is: {_seconds(site)}, {site['states']} states"
        for candidate in site["candidates"]:
            fate = f"taken {candidate['chosen']} times" if candidate["chosen"] else candidate["why"]
            why = fate or "is not cheaper by the margin"
            yield f"  {candidate['chain'] or 'the same orders'}: {_seconds(candidate)}; {why}"
        for candidate in site["candidates"]:
            if candidate["chosen"]:
                yield from (f"  - {line}" for line in site["expression"].splitlines())
                yield from (f"  + {line}" for line in candidate["expression"].splitlines())
    priced = sum(site["seconds"] is not None for site in records)
    yield f"{sum(s['sites'] for s in records)} sites, {len(records)} different, {priced} priced"


def _seconds(item: dict[str, Any]) -> str:
    """Estimated and priced microseconds."""
    priced = "not priced" if item["seconds"] is None else f"{item['seconds'] * 1e6:.1f} us"
    return f"estimated {item['estimate'] * 1e6:.1f} us, {priced}"
