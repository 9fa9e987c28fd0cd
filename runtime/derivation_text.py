"""Records of derivations and decisions, as `tcc inspect --json` prints them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def derivation_lines(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the records of derivations as text, with the expressions of replaced sites."""
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


def _seconds(item: Mapping[str, Any]) -> str:
    """Returns text with the estimated time and the price of a record, in microseconds.

    The search has computed the estimate. A record that was not priced has no price.
    """
    priced = "not priced" if item["seconds"] is None else f"{item['seconds'] * 1e6:.1f} us"
    return f"estimated {item['estimate'] * 1e6:.1f} us, {priced}"


def decision_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a few lines for each record of a decision.

    They show its site, the choice with its reason, and the alternatives with their prices.
    """
    rows = list(records)
    for row in rows:
        times = f" x{row['sites']}" if row["sites"] > 1 else ""
        yield f"{row['kind']} {row['site']}{times}  {row['place']}".rstrip()
        yield f"  {row['alternative']}: {row['reason']}"
        for option in row["alternatives"]:
            price = option["seconds"]
            seconds = "impossible" if price is None else f"{price * 1e6:.4g} us"
            mark = "*" if option["text"] == row["alternative"] else " "
            rule = "  (the rule)" if option["text"] == row["rule"] else ""
            note = "  (the same kernels)" if option["same_kernel"] and mark == " " else ""
            yield f"  {mark} {option['text']}  {seconds}{rule}{note}"
    yield f"{len(rows)} decisions"
