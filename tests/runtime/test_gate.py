"""The gate of `tcc bench --compare` decides over rounds and facts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.runtime.gate import (
    ArtifactComparison,
    PairedRounds,
    fails,
    is_slower,
    lower_bound,
    measured,
    until_decided,
)
from tcc.runtime.gate_facts import FACTS, ArtifactSide, Fact, artifact_facts
from tcc.runtime.gate_table import markdown, record, rows
from tcc.runtime.reports import InputError

GATE = 1.05
# Measurements of two files with equal kernels, on two cores that six to eighteen other processes
# used: microseconds per run in 164 rounds, of the first file and of the second. Every 41 rounds
# come from another pair of processes.
RECORDED = [
    PairedRounds(tuple(base), tuple(new))
    for base, new in json.loads(Path(__file__).with_name("disturbed_rounds.json").read_text())
]


def scaled(rounds: PairedRounds, factor: float) -> PairedRounds:
    return PairedRounds(rounds.base, tuple(factor * seconds for seconds in rounds.new))


def pairs() -> Iterator[tuple[PairedRounds, PairedRounds]]:
    """Yields a first and a second measurement, 20 times."""
    return pairwise(RECORDED)


def replayed(rounds: PairedRounds, gate: float | None) -> PairedRounds:
    """Measures as `tcc bench --compare` does, but takes the recorded rounds."""
    recorded = iter(zip(rounds.base, rounds.new, strict=True))

    def more(count: int) -> PairedRounds:
        base, new = zip(*islice(recorded, count), strict=True)
        return PairedRounds(base, new)

    return until_decided(more, gate, len(rounds.base))


def verdict(pair: tuple[PairedRounds, PairedRounds], factor: float = 1.0) -> bool:
    """Returns True if the gate fails for a pair whose second file is `factor` times as slow."""
    recorded = iter(pair)
    return fails([*measured(lambda: replayed(scaled(next(recorded), factor), GATE), GATE)], GATE)


# ---- bounds -------------------------------------------------------------------------------------


def test_the_bound_of_15_rounds_is_the_fourth_value() -> None:
    """3 of 15 coins or fewer are heads with probability 0.018, 4 or fewer with 0.059."""
    assert lower_bound([float(n) for n in range(15, 0, -1)]) == 4.0
    assert lower_bound([1.0, 2.0, 3.0, 4.0]) == -np.inf
    assert lower_bound([5.0, 1.0, 2.0, 3.0, 4.0]) == 1.0


def test_the_bound_lies_above_the_median_in_one_of_twenty_draws() -> None:
    rng = np.random.default_rng(11)
    draws = rng.lognormal(0.0, 0.05, (4000, 15))
    above = np.mean([lower_bound(list(draw)) > 1.0 for draw in draws])
    assert 0.005 < above < 0.05


def test_the_interval_holds_the_median_of_nearly_all_draws() -> None:
    rng = np.random.default_rng(12)
    draws = rng.lognormal(0.0, 0.05, (2000, 41))
    intervals = [PairedRounds((1.0,) * 41, tuple(draw)).interval for draw in draws]
    below, above = (
        np.mean([low > 1.0 for low, _ in intervals]),
        np.mean([h < 1 for _, h in intervals]),
    )
    assert 0.003 < below < 0.04
    assert 0.003 < above < 0.04


def test_few_rounds_decide_nothing() -> None:
    rounds = PairedRounds((1.0,) * 5, (9.0,) * 5)
    assert rounds.interval == (-math.inf, math.inf)
    assert not is_slower(rounds, GATE)


# ---- recorded rounds of a disturbed machine -----------------------------------------------------


def test_the_machine_was_disturbed() -> None:
    assert len(RECORDED) == 21
    assert np.median([np.std(np.log(rounds.ratios)) for rounds in RECORDED]) > 0.1


def test_ten_percent_slower_is_caught() -> None:
    assert sum(verdict(pair, 1.1) for pair in pairs()) >= 19


def test_equal_files_pass() -> None:
    assert not any(verdict(pair) for pair in pairs())


@pytest.mark.parametrize("looks", [True, False])
def test_the_interval_holds_a_known_ratio(looks: bool) -> None:
    sets = [scaled(rounds, 1.03) for rounds in RECORDED[:20]]
    intervals = [(replayed(rounds, GATE) if looks else rounds).interval for rounds in sets]
    assert sum(low <= 1.03 <= high for low, high in intervals) >= 18


# ---- the second measurement ---------------------------------------------------------------------

SLOW, EQUAL = PairedRounds((1.0,) * 9, (1.2,) * 9), PairedRounds((1.0,) * 9, (1.0,) * 9)


@pytest.mark.parametrize(
    ("measurements", "gate", "count", "failing"),
    [
        ([EQUAL], GATE, 1, False),
        ([SLOW, SLOW], GATE, 2, True),
        ([SLOW, EQUAL], GATE, 2, False),
        ([SLOW], None, 1, False),
        ([SLOW], 1.2, 1, False),
    ],
)
def test_a_slow_measurement_is_repeated(
    measurements: list[PairedRounds], gate: float | None, count: int, failing: bool
) -> None:
    results = iter(measurements)
    rounds = [*measured(lambda: next(results), gate)]
    assert len(rounds) == count
    comparison = ArtifactComparison((), tuple(rounds), gate)
    assert bool(comparison.failures) == failing


# ---- facts --------------------------------------------------------------------------------------

SIDE = {"kernel_count": 3, "arena_bytes": 64, "traffic": {"bytes": 128}, "machine": {"sha256": "a"}}
GROWING = {
    "kernels": {"kernel_count": 4},
    "arena": {"arena_bytes": 65},
    "traffic": {"traffic": {"bytes": 129}},
}


def side(change: Mapping[str, Any], seconds: float = 1e-6, weights: int = 9) -> ArtifactSide:
    manifest = {
        "inputs": [{"name": "x", "dtype": "f32", "text": "[n]"}],
        "outputs": [],
        "variants": [{**SIDE, **change, "target": "cpu"}],
        "weights": {"bytes": weights},
    }
    return ArtifactSide(Path("m.so"), manifest, 1000, [[(256, seconds)]])


def failures(*facts: Fact, allowed: Iterable[str] = ()) -> list[str]:
    return ArtifactComparison(facts, (), GATE, frozenset(allowed)).failures


@pytest.mark.parametrize("name", [*GROWING, "time", "weights"])
def test_each_fact_that_grows_fails_unless_it_is_allowed(name: str) -> None:
    base = side({})
    more = side(GROWING.get(name, {}), 1e-6 + 1e-12 * (name == "time"), 9 + (name == "weights"))
    facts = tuple(artifact_facts(base, more))
    assert sorted(fact.name for fact in facts) == sorted(FACTS)
    (failure,) = failures(*facts)
    assert failure.startswith(f"{name} grows from ")
    assert not failures(*facts, allowed=[name])
    assert failures(*facts, allowed=set(FACTS) - {name})
    assert not ArtifactComparison(facts).failures
    assert not failures(*artifact_facts(more, base))


def test_facts_that_cannot_be_compared_say_why() -> None:
    symbolic = side({"arena_bytes": None, "traffic": None, "machine": {"sha256": "b"}}, 9.0)
    facts = {fact.name: fact for fact in artifact_facts(side({}), symbolic)}
    assert "sizes" in facts["arena"].why
    assert "machine" in facts["time"].why
    assert (facts["traffic"].base, facts["traffic"].new) == (256, 256)
    assert not failures(*facts.values())
    comparison = ArtifactComparison((*facts.values(),), (), GATE)
    values = {fact["name"]: fact["new"] for fact in record(comparison)["facts"]}
    assert values["arena"] is None
    json.dumps(record(comparison), allow_nan=False)
    assert [row[0] for row in rows(comparison)][-2:] == ["time in us", "measured ms"]


def test_other_ports_and_targets_are_errors() -> None:
    for change in ({"target": "gpu"}, {}):
        other = side({})
        manifest = {**other.manifest, "outputs": [{"name": "y", "dtype": "f32", "text": "[]"}]}
        if change:
            manifest = {**other.manifest, "variants": [{**SIDE, **change}]}
        with pytest.raises(InputError, match="the artifacts have other"):
            list(artifact_facts(side({}), replace(other, manifest=manifest)))


def test_markdown_has_a_table_and_escapes_names() -> None:
    fact = Fact("kernels", "a|b<script>`x`\n", 3, 4)
    text = markdown("m_1.so", ArtifactComparison((fact,), (SLOW, SLOW), GATE))
    head, empty, *table = text.splitlines()
    assert head == "### m&#95;1.so: gate 1.05 fails"
    assert empty == ""
    assert table[1] == "| --- | ---: | ---: | ---: | --- |"
    assert {line.count("|") for line in table[:5]} == {6}
    assert "script>" not in text
    assert table[6].startswith("- kernels of a&#124;b")
    assert table[7] == "- a run takes at least 1.200 and 1.200 times as long, in two measurements"
