"""Sweeps over decisions above schedules, on simulated machines and on a real model's artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tcc.runtime.trials import Trial
from tcc.tune.candidates import TunedDecision
from tcc.tune.from_records import decided
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text
from tcc.tune.measurement import FIRST, MODEL, SEARCH, SECOND, Measurement
from tcc.tune.records import Record, append, read_records
from tcc.tune.verdicts import decide, passes

from tests.tune.test_from_records import SITES
from tests.tune.test_sweep import entries, flat, hill, lock_of
from tests.tune.worlds import ANALYTIC, HOME, World, swept

FORM, JOIN, ORDER = "0f" * 16, "1f" * 16, "2f" * 16
# The seconds that an alternative adds to a run; the analytic run takes 3 ms.
EFFECTS = {
    (FORM, "F(4 x 4)"): -0.45e-3,
    (FORM, "F(2 x 2)"): 0.9e-3,
    (JOIN, "join"): 0.3e-3,
    (ORDER, "(1, 0)"): 0.0,
}
DECISIONS = (
    TunedDecision(FORM, "derive: a", 2e-3, ("F(2 x 2)", "F(4 x 4)")),
    TunedDecision(JOIN, "join: b", 1e-3, ("join",)),
    TunedDecision(ORDER, "order: c", 0.5e-3, ("(1, 0)",)),
)


def added(effects: Mapping[tuple[str, str], float]) -> dict[str, object]:
    return {"extra": lambda choices: sum(effects.get(c, 0.0) for c in choices.items())}


def world(effects: Mapping[tuple[str, str], float] = EFFECTS, **facts: object) -> World:
    """Returns a world of two kernels, of which one can be 1.3 times as fast."""
    kernels = {SITES[0]: hill(0, 4, 1.3), SITES[1]: flat(2.0)}
    return World(kernels, **{**added(effects), **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_sweep_regains_a_planted_loss_above_schedules(noise: float) -> None:
    measurements = swept(world(noise=noise), decisions=DECISIONS)
    rows = entries(measurements)
    assert {s: rows[s].verdict for s in (FORM, JOIN, ORDER, *SITES[:2])} == {
        FORM: "changed", JOIN: "kept", ORDER: "kept", SITES[0]: "changed", SITES[1]: "kept",
    }  # fmt: skip
    assert rows[FORM].alternative == "F(4 x 4)"
    assert rows[FORM].op == "derive: a"
    # The partner is the model with the faster kernel.
    partner = 2e-3 + 1e-3 / 1.3
    assert rows[FORM].gain is not None
    assert rows[FORM].gain[0] == pytest.approx(partner / (partner - 0.45e-3), rel=0.03)
    model = decide(measurements, HOME).model
    assert model is not None
    assert model[0] == pytest.approx(3e-3 / (partner - 0.45e-3), rel=0.03)


def test_an_alternative_that_is_not_clearly_faster_changes_nothing() -> None:
    effects = dict.fromkeys(EFFECTS, 0.0) | {(JOIN, "join"): -0.03e-3}  # 1 % of the run
    for seed in range(12):
        planted = world(effects, noise=0.1)
        planted.random = Random(seed)
        measurements = swept(planted, 60.0, decisions=DECISIONS)
        confirmed = {(m.site, m.phase): m for m in measurements if m.site not in SITES}
        # The second set has only candidates that pass the first.
        assert all(passes(confirmed[s, FIRST]) for s, phase in confirmed if phase == SECOND)
        rows = entries(measurements)
        assert {rows[s].verdict for s in (FORM, JOIN, ORDER) if s in rows} <= {"kept"}


def test_the_longest_decisions_come_first_and_alone() -> None:
    planted = world()
    swept(planted, decisions=DECISIONS)
    above = [{s: c for s, c in trial.items() if s not in SITES} for trial in planted.built.values()]
    first_trials = [trial for trial in above if trial]
    assert first_trials[:4] == [
        {FORM: "F(2 x 2)"}, {FORM: "F(4 x 4)"}, {JOIN: "join"}, {ORDER: "(1, 0)"},
    ]  # fmt: skip
    # Every trial of a decision uses the kernel that won before.
    kernels = [
        t.get(SITES[0]) for t, trials in zip(planted.built.values(), above, strict=True) if trials
    ]
    assert len({*kernels}) == 1
    assert kernels[0] != ANALYTIC


def test_later_decisions_are_measured_beside_the_winners() -> None:
    """The join saves time only without the form, and the form saves more."""

    def extra(choices: Mapping[str, str]) -> float:
        has_form, has_join = (choices.get(s) == c for s, c in ((FORM, "F(4 x 4)"), (JOIN, "join")))
        return -0.9e-3 * has_form - 0.3e-3 * has_join + 0.3e-3 * (has_form and has_join)

    rows = entries(swept(world(extra=extra), decisions=DECISIONS))
    assert [rows[s].verdict for s in (FORM, JOIN)] == ["changed", "kept"]


def test_faulty_alternatives_are_named_and_change_nothing_else() -> None:
    for outcome in ("wrong", "crashed", "hung", "uncompiled", "refused", "crashed late"):
        fault = {(FORM, "F(2 x 2)"): outcome}
        measurements = swept(world(bad=fault), decisions=DECISIONS)
        (named,) = [m for m in measurements if m.candidate == "F(2 x 2)"]
        assert named.outcome == {"uncompiled": "crashed"}.get(outcome, outcome.split()[0])
        assert named.phase == SEARCH
        assert named.why
        assert lock_of(measurements) == lock_of(swept(world(), decisions=DECISIONS))


def test_choices_that_fail_together_are_halved() -> None:
    """The form alone is right, and so is the kernel alone."""
    planted = world()
    check = planted.check

    def failing(trial: Trial) -> None:
        choices = planted.choices(trial)
        if FORM in choices and choices.get(SITES[0], ANALYTIC) != ANALYTIC:
            planted.bad = {(FORM, choices[FORM]): "wrong"}
        try:
            check(trial)
        finally:
            planted.bad = {}

    first = swept(planted, decisions=DECISIONS)
    planted.check = failing  # type: ignore[method-assign]
    records_known = [m for m in first if m.phase != MODEL]
    again = swept(planted, known=records_known, decisions=DECISIONS)
    assert [m.outcome for m in again] == ["crashed", "timed"]
    rows = entries([*records_known, *again])
    assert sorted(rows[s].verdict for s in (FORM, SITES[0])) == ["changed", "kept"]


def test_lines_name_the_sites_that_a_decision_adds_and_removes() -> None:
    new, lines = "3f" * 16, list[str]()
    win = (FORM, "F(4 x 4)")
    planted = world(makes={win: new}, removes={win: SITES[0]})
    measurements = swept(planted, lines=lines, decisions=DECISIONS)
    assert "other choices remove the site of a choice: op " + SITES[0] in lines
    rows = entries(measurements)
    assert (rows[new].verdict, rows[new].op) == ("skipped", f"op {new}")
    # Without the decision the kernel does not exist.
    for phase in (FIRST, SECOND):
        assert new not in entries([m for m in measurements if (m.site, m.phase) != (FORM, phase)])


def test_a_lost_record_of_a_new_kernel_is_written_again() -> None:
    """If any record is lost, a resumed sweep measures only that and gives the same lock."""
    new = {(FORM, "F(4 x 4)"): SITES[5]}
    measurements = swept(world(makes=new), 400.0, decisions=DECISIONS)
    lost = [m for m in measurements if m.outcome == "skipped" and m.phase == MODEL]
    assert [m.site for m in lost] == [SITES[5]]
    for one in (*lost, *(m for m in measurements if m.phase == MODEL and not m.site)):
        other_records = [m for m in measurements if m is not one]
        again = world(makes=new)
        resumed = swept(again, 400.0, known=other_records, decisions=DECISIONS)
        assert [(m.site, m.candidate, m.phase, m.outcome) for m in resumed] == [
            (one.site, one.candidate, one.phase, one.outcome)
        ]
        assert lock_of([*other_records, *resumed]) == lock_of(measurements)
    again = world(makes=new)
    assert swept(again, 400.0, known=measurements, decisions=DECISIONS) == []
    assert again.turns < 5


def test_measured_decisions_are_not_measured_again() -> None:
    new = {(FORM, "F(4 x 4)"): "3f" * 16}
    measurements = swept(world(makes=new), 400.0, decisions=DECISIONS)
    again = world(makes=new)
    assert swept(again, 400.0, known=measurements, decisions=DECISIONS) == []
    assert again.compiled == 1
    half = [m for n, m in enumerate(measurements) if n % 2 and m.phase != MODEL]
    resumed = swept(world(makes=new), 400.0, known=half, decisions=DECISIONS)
    assert lock_of([*half, *resumed]) == lock_of(measurements)
    for seed in range(5):
        Random(seed).shuffle(measurements)
        assert lock_of(measurements) == lock_of([*half, *resumed])


def test_shards_and_records_hold_decisions(tmp_path: Path) -> None:
    """There are two shards of decisions and one of kernels, and then the whole model."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(4)]
    every: list[Measurement] = []
    for path, decisions in zip(paths, (DECISIONS[:1], DECISIONS[1:]), strict=False):
        shard = replace_kernels(swept(world(), 400.0, decisions=decisions), len(decisions) == 1)
        append(path, [Record("0.1.0", "m", m) for m in shard])
        every += shard
    sites = {*SITES, FORM, JOIN, ORDER}

    def lock(*files: Path) -> str:
        verdicts = decided(read_records(files), HOME, sites)
        return lock_text(Lock().with_measured((HOME, e) for e in verdicts.entries))

    assert lock(*paths[:2]) == lock(*paths[1::-1])
    last = swept(world(), 400.0, known=every, decisions=DECISIONS)
    assert {m.phase for m in last} == {MODEL}
    append(paths[2], [Record("0.1.0", "m", m) for m in last])
    paths[3].write_bytes(b"".join(path.read_bytes() for path in paths[:3]))
    assert lock(paths[3]) == lock(*paths[:3])
    assert lock(paths[3]).count('"changed"') == 2


def replace_kernels(measurements: list[Measurement], keeps: bool) -> list[Measurement]:
    """Returns the measurements of a shard, with those of kernels only if it `keeps` them."""
    return [m for m in measurements if m.site and (keeps or m.site not in SITES)]


def test_a_slow_machine_changes_no_decision() -> None:
    measurements = swept(world(), decisions=DECISIONS)
    slow = [replace(m, peaks=tuple(1e8 + n for n, _ in enumerate(m.peaks)))
            if m.site == FORM else m for m in measurements]  # fmt: skip
    assert {e.site: e.verdict for e in decide(slow, HOME).entries}[FORM] == "slow machine"


def test_a_sweep_with_many_decisions_ends_near_its_time() -> None:
    decisions = [TunedDecision(f"{n:032x}", f"join: {n}", 1e-3, ("join",)) for n in range(100, 180)]
    effects = {(d.site, "join"): -0.07e-3 for d in decisions[:20]}
    for seconds in (20.0, 60.0, 300.0):
        planted = world(effects, noise=0.02)
        swept(planted, seconds, decisions=decisions)
        assert planted.now < 1.3 * seconds + 25
