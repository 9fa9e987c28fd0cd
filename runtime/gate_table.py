"""Shows a comparison of two artifacts as rows of a table, as Markdown and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tcc.runtime.gate import ArtifactComparison, is_decided
from tcc.runtime.gate_facts import Fact

# Characters that Markdown or a table in it would interpret.
_SPECIAL = frozenset("\\|`*_<>&[]#")


def verdict(comparison: ArtifactComparison) -> str:
    """Returns the verdict of the gate in words."""
    if comparison.gate is None:
        return "compared"
    return f"gate {comparison.gate:g} {'fails' if comparison.failures else 'passes'}"


def record(comparison: ArtifactComparison) -> dict[str, Any]:
    """Returns the comparison as a JSON object; a number that is not known is null."""
    return {
        "gate": comparison.gate,
        "failures": comparison.failures,
        "facts": [
            {**asdict(fact), "base": _known(fact.base), "new": _known(fact.new)}
            for fact in comparison.facts
        ],
        "measurements": [
            {**asdict(rounds), "ratio": rounds.median, "interval": [*map(_known, rounds.interval)]}
            for rounds in comparison.measurements
        ],
    }


def markdown(title: str, comparison: ArtifactComparison) -> str:
    """Returns the comparison in Markdown: a heading, a table, and the failures as a list."""
    head, *body = rows(comparison)
    table = [f"| {' | '.join(map(_escaped, row))} |" for row in (head, *body)]
    table.insert(1, "| --- | ---: | ---: | ---: | --- |")
    failures = (f"- {_escaped(line)}" for line in comparison.failures)
    heading = f"### {_escaped(f'{title}: {verdict(comparison)}')}"
    return "\n".join((heading, "", *table, "", *failures))


def rows(comparison: ArtifactComparison) -> Iterator[Sequence[str]]:
    """Yields the head of a table, a row for each fact, and a row for each measurement."""
    yield "fact", "base", "new", "new / base", ""
    for fact in comparison.facts:
        note = fact.why
        if fact.grows:
            note = "grows, allowed" if fact.name in comparison.allowed else "grows"
        suffix = " in us" if fact.name == "time" else ""
        yield fact.label + suffix, *_numbers(fact), note
    for rounds in comparison.measurements:
        medians = (statistics.median(seconds) * 1e3 for seconds in (rounds.base, rounds.new))
        low, high = rounds.interval
        note = f"{low:.3f} to {high:.3f} with 95 % confidence, {len(rounds.base)} rounds"
        note += "" if is_decided(rounds, comparison.gate) else ", undecided: give more --rounds"
        yield "measured ms", *(f"{n:.3f}" for n in medians), f"{rounds.median:.3f}", note
    if not comparison.measurements:
        yield "measured ms", "-", "-", "-", "the files are equal"


def _numbers(fact: Fact) -> tuple[str, str, str]:
    scale, form = (1e6, ",.6g") if fact.name == "time" else (1, ",.0f")
    values = (fact.base, fact.new)
    texts = ("-" if math.isnan(value) else format(value * scale, form) for value in values)
    ratio = fact.new / fact.base if fact.base else math.nan
    return *texts, "-" if math.isnan(ratio) else f"{ratio:.3f}"  # type: ignore[return-value]


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _escaped(text: str) -> str:
    return "".join(
        f"&#{ord(c)};" if c in _SPECIAL else c if c.isprintable() else repr(c)[1:-1] for c in text
    )
