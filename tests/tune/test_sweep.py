"""Sweeps of simulated machines find faster choices, reject others, and name faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from tcc.runtime.trial_rounds import timed_rounds
from tcc.runtime.trials import Trial, Turn
from tcc.tune.lock import Lock, LockEntry
from tcc.tune.lock_file import lock_text
from tcc.tune.measurement import MODEL, SEARCH, SECOND, TIMED, Measurement
from tcc.tune.verdicts import decide

from .worlds import ANALYTIC, HOME, World, numbers, swept, text


def hill(best_a: int, best_b: int, gain: float, scale: float = 1.0) -> Callable[[int, int], float]:
    """Returns times of a kernel that is `gain` times as fast at its best point as at the analytic
    point, and between the two elsewhere."""
    farthest = abs(best_a - 4) + abs(best_b - 4)

    def seconds(a: int, b: int) -> float:
        distance = abs(a - best_a) + abs(b - best_b)
        return scale * 1e-3 * (1 / gain + (1 - 1 / gain) * distance / farthest)

    return seconds


def flat(scale: float = 1.0) -> Callable[[int, int], float]:
    return lambda a, b: scale * 1e-3 * (1 if (a, b) == (4, 4) else 1.1)


def handicapped(**world: object) -> World:
    """Returns a world in which three of five kernels can be 1.3 times as fast, and one takes almost
    no time."""
    seconds = {
        "00": hill(0, 4, 1.3),
        "01": hill(6, 2, 1.3, 2.0),
        "02": hill(4, 1, 1.3, 0.5),
        "03": flat(),
        "04": flat(0.001),
    }
    return World(seconds, **world)  # type: ignore[arg-type]


def entries(measurements: list[Measurement], peak: float = 0.0) -> dict[str, LockEntry]:
    return {entry.site: entry for entry in decide(measurements, HOME, peak).entries}


def lock_of(measurements: list[Measurement]) -> str:
    verdicts = decide(measurements, HOME)
    return lock_text(Lock().with_measured((HOME, e) for e in verdicts.entries))


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_sweep_regains_planted_handicaps(noise: float) -> None:
    world = handicapped(noise=noise)
    verdicts = entries(swept(world))
    assert [e.verdict for e in verdicts.values()] == ["changed"] * 3 + ["kept", "skipped"]
    for site in ("00", "01", "02"):
        entry, seconds = verdicts[site], world.seconds[site]
        assert entry.alternative is not None
        assert entry.gain is not None
        # The gain is checked against an independent computation from the world's times.
        true_gain = seconds(4, 4) / seconds(*numbers(entry.alternative))
        assert true_gain > 1.25
        assert entry.gain[0] == pytest.approx(true_gain, rel=0.03)
        assert 1.02 < entry.gain[1] <= entry.gain[0]


def test_equal_candidates_change_nothing_in_noise() -> None:
    for seed in range(12):
        world = World({"00": lambda a, b: 1e-3, "01": lambda a, b: 2e-3}, noise=0.1)
        world.random = Random(seed)
        verdicts = entries(swept(world, 60.0))
        assert [e.verdict for e in verdicts.values()] == ["kept", "kept"]


def test_the_same_measurements_give_the_same_lock() -> None:
    measurements = swept(handicapped(noise=0.05))
    lock = lock_of(measurements)
    assert lock.count('"changed"') == 3
    recorded = [json.loads(json.dumps(asdict(m))) for m in measurements]
    for seed in range(5):
        rows = [
            Measurement(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
            for row in recorded
        ]
        Random(seed).shuffle(rows)
        assert lock_of(rows) == lock
    assert lock_of(swept(handicapped(noise=0.05))) == lock


def test_faulty_trials_are_named_and_change_nothing_else() -> None:
    good = handicapped()
    faults = {
        ("00", text(3, 4)): "wrong",
        ("00", text(4, 2)): "crashed",
        ("01", text(4, 0)): "hung",
        ("02", text(2, 4)): "uncompiled",
        ("02", text(4, 0)): "refused",
        ("03", text(0, 4)): "crashed late",
        ("03", text(1, 4)): "wrong",
    }
    lines: list[str] = []
    measurements = swept(handicapped(bad=faults), 400.0, lines=lines)
    named = {(m.site, m.candidate): m for m in measurements if m.site and m.outcome != TIMED}
    del named["04", ""]  # it is skipped
    assert {choice: m.outcome for choice, m in named.items()} == {
        choice: {"uncompiled": "crashed"}.get(outcome, outcome.split()[0])
        for choice, outcome in faults.items()
    }
    assert all(m.why for m in named.values())
    assert any("looking for its kernel" in line for line in lines)
    assert "a candidate of op 00 is wrong: wrong as planted" in lines
    assert lock_of(measurements) == lock_of(swept(good, 400.0))


def test_a_slow_machine_changes_no_choice() -> None:
    # fast for the first seconds, then at half its speed
    world = handicapped(slow=lambda second: 1.0 if second < 8 else 2.0)
    lines: list[str] = []
    measurements = swept(world, 200.0, lines=lines)
    verdicts = decide(measurements, HOME)
    assert verdicts.slow
    assert {e.verdict for e in verdicts.entries} == {"slow machine", "skipped"}
    assert all(e.alternative is None for e in verdicts.entries)
    assert sum("the machine is slow" in line for line in lines) == 1


def test_a_slow_start_does_not_spoil_a_sweep() -> None:
    """Most rounds are slow, but none of the confirming rounds."""
    measurements = [
        replace(m, peaks=tuple(1e8 + n for _ in m.peaks)) if m.phase == SEARCH else m
        for n, m in enumerate(swept(handicapped()))
    ]
    last = [m for m in measurements if m.phase != SEARCH]
    assert len({m.peaks for m in measurements}) > 2 * len({m.peaks for m in last})
    verdicts = decide(measurements, HOME)
    assert not verdicts.slow
    assert {e.site for e in verdicts.entries if e.verdict == "changed"} == {"00", "01", "02"}
    searches = [m for m in measurements if m.phase == SEARCH]
    faster = replace(searches[-1], peaks=(1e9,) * len(searches[-1].peaks))
    assert decide([*searches, faster], HOME).slow


def test_a_kernel_whose_every_round_was_slow_has_no_verdict() -> None:
    measurements = swept(handicapped())
    slow = [m if m.site != "03" else replace(m, peaks=(1e8,) * len(m.peaks)) for m in measurements]
    verdicts = {e.site: e.verdict for e in decide(slow, HOME).entries}
    assert verdicts["03"] == "slow machine"
    assert {verdicts[site] for site in ("00", "01", "02")} == {"changed"}


def test_a_peak_that_earlier_records_know_makes_rounds_slow() -> None:
    measurements = swept(handicapped())
    assert not decide(measurements, HOME, 1.05e9).slow
    assert decide(measurements, HOME, 2e9).slow


def test_rounds_of_slow_spells_do_not_count() -> None:
    """In slow spells one candidate is slower and the analytic choice is not, so that ratios are
    wrong."""

    def is_slow(second: float) -> bool:
        return second % 10 > 7

    world = handicapped(slow=lambda second: 1.5 if is_slow(second) else 1.0)
    measurements = swept(world, 200.0)
    verdicts = decide(measurements, HOME)
    assert not verdicts.slow
    assert [e.verdict for e in verdicts.entries] == ["changed"] * 3 + ["kept", "skipped"]
    kept_rounds = [p for m in measurements for p in m.peaks if p >= 0.9e9 * 0.99]
    assert len(kept_rounds) < sum(len(m.peaks) for m in measurements)


def test_winners_are_halved_while_the_whole_model_is_slower() -> None:
    """The choice of kernel 01 saves most, and any choice of kernel 02 slows other work down."""

    def extra(choices: Mapping[str, str]) -> float:
        return 5e-3 if choices.get("02", ANALYTIC) != ANALYTIC else 0.0

    measurements = swept(handicapped(extra=extra))
    models = [m for m in measurements if m.phase == MODEL]
    assert len(models) == 2
    verdicts = entries(measurements)
    # From three winners, the half that saves most is one winner.
    assert [verdicts[s].verdict for s in ("00", "01", "02", "03")] == [
        "kept", "changed", "kept", "kept",
    ]  # fmt: skip
    model = decide(measurements, HOME).model
    assert model is not None
    assert model[0] > 1.02


def test_an_interrupted_sweep_keeps_confirmed_winners() -> None:
    measurements = swept(handicapped())
    confirmed = [m for m in measurements if m.phase != MODEL]
    assert {e.site for e in entries(confirmed).values() if e.verdict == "changed"} == {
        "00", "01", "02",
    }  # fmt: skip
    searched = [m for m in measurements if m.phase == SEARCH]
    assert {e.verdict for e in entries(searched).values()} == {"kept", "skipped"}
    once = [m for m in measurements if m.phase not in (SECOND, MODEL)]
    assert {e.verdict for e in entries(once).values()} == {"kept", "skipped"}


def test_measured_candidates_are_not_measured_again() -> None:
    first = handicapped()
    measurements = swept(first, 400.0)
    again = handicapped()
    repeated = swept(again, 400.0, known=measurements)
    assert repeated == []
    assert again.turns < 5
    half = [m for n, m in enumerate(measurements) if n % 2]
    resumed = swept(handicapped(), 400.0, known=half)
    assert {(m.site, m.candidate, m.phase) for m in resumed} == {
        (m.site, m.candidate, m.phase) for m in measurements if m not in half
    }
    assert lock_of([*half, *resumed]) == lock_of(measurements)


def test_progress_names_trials_and_the_time_left() -> None:
    lines: list[str] = []
    swept(handicapped(), lines=lines)
    assert lines[0].startswith("trial 2: 24 candidates, best so far 1.000, 120 s left")
    assert lines[-1].startswith("trial ")
    assert "the whole model with 3 other choices" in lines[-1]


def test_a_sweep_ends_near_its_time() -> None:
    for seconds in (20.0, 60.0, 300.0):
        world = World({f"{n:02}": hill(n % 9, 8, 1.2) for n in range(40)}, noise=0.02)
        swept(world, seconds)
        assert world.now < 1.3 * seconds + 25


def test_each_round_measures_every_trial_in_another_order() -> None:
    world, order = World({"00": flat()}), []
    turn = world.turn

    def noted(trial: Trial, seconds: float) -> Turn:
        order.append((trial.path.name, seconds))
        return turn(trial, seconds)

    world.turn = noted  # type: ignore[method-assign]
    trials = [Trial(Path(name), {}, {}, ("00",)) for name in "abcd"]
    rounds = timed_rounds(world, trials, 0.06, Random(0), lambda rounds: len(rounds) == 20)
    warm, timed = order[:4], [order[n : n + 4] for n in range(4, len(order), 4)]
    assert warm == [(name, 0.0) for name in "abcd"]
    assert len(timed) == len(rounds) == 20
    assert all(sorted(row) == [(name, 0.06) for name in "abcd"] for row in timed)
    assert len({tuple(row) for row in timed}) > 10


def test_the_peak_of_a_round_is_the_lower_of_those_around_it() -> None:
    world, peaks = World({"00": flat()}), iter([5.0, 9.0, 7.0, 8.0])
    world.peak = lambda: next(peaks)  # type: ignore[method-assign]
    trial = Trial(Path("a"), {}, {}, ("00",))
    rounds = timed_rounds(world, [trial], 0.06, Random(0), lambda rounds: len(rounds) == 3)
    assert [r.peak for r in rounds] == [5.0, 7.0, 7.0]
