"""Verdicts follow from records of shards, of several machines, and of interrupted sweeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tcc.tune.candidates import TunedKernel
from tcc.tune.from_records import best_peak_of, decided, earlier, of_version
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text
from tcc.tune.measurement import Measurement
from tcc.tune.records import Record, append, in_shard, read_records

from tests.tune.test_sweep import flat, hill
from tests.tune.worlds import ANALYTIC, HOME, Lattice, World, swept

SITES = [f"{number:032x}" for number in range(6)]


def world() -> World:
    """Returns a world in which three of six kernels can be 1.3 times as fast, and one takes almost
    no time."""
    kinds = (
        hill(0, 4, 1.3),
        hill(6, 2, 1.3, 2.0),
        hill(4, 1, 1.3, 0.5),
        flat(),
        flat(0.001),
        flat(),
    )
    return World(dict(zip(SITES, kinds, strict=True)))


def shard(number: int, count: int, path: Path, machine: str) -> list[Measurement]:
    """Sweeps a part of the kernels, and appends the records to `path`."""
    kernels = [
        TunedKernel(site, f"op {site}", ANALYTIC, Lattice())
        for site in SITES
        if in_shard(site, (number, count))
    ]
    measurements = swept(world(), 400.0, kernels=kernels)
    append(path, [Record("0.1.0", machine, m) for m in measurements])
    return measurements


def lock_of(paths: Iterable[Path]) -> str:
    verdicts = decided(read_records([*paths]), HOME, SITES)
    return lock_text(Lock().with_measured((HOME, entry) for entry in verdicts.entries))


def test_shards_give_the_lock_of_one_run_in_either_order(tmp_path: Path) -> None:
    one, first, second, joined_path = (
        tmp_path / f"{name}.jsonl" for name in ("one", "a", "b", "ab")
    )
    every = shard(1, 1, one, "m")
    parts = shard(1, 2, first, "m") + shard(2, 2, second, "m")
    kernels = [{(m.site, m.candidate) for m in runs if m.site} for runs in (every, parts)]
    assert {site for site, _ in kernels[1]} == {site for site, _ in kernels[0]} == {*SITES}
    lock = lock_of([first, second])
    assert lock_of([second, first]) == lock
    joined_path.write_bytes(second.read_bytes() + first.read_bytes() + second.read_bytes())
    assert lock_of([joined_path]) == lock
    assert lock.count('"changed"') == 3
    assert lock_of([one]).count('"changed"') == 3


def test_a_machine_of_another_speed_changes_no_verdict(tmp_path: Path) -> None:
    uniform, mixed = tmp_path / "alike.jsonl", tmp_path / "mixed.jsonl"
    measurements = shard(1, 1, uniform, "m")
    for m in measurements:
        machine = "fast" if int(m.site or "0", 16) % 2 else "m"
        peaks = tuple(peak * (3 if machine == "fast" else 1) for peak in m.peaks)
        append(mixed, [Record("0.1.0", machine, replace(m, peaks=peaks))])
    assert lock_of([mixed]) == lock_of([uniform])
    records = read_records([mixed])
    assert best_peak_of(records, "fast") > 2.9 * best_peak_of(records, "m") > 0
    assert best_peak_of(records, "absent") == 0


def test_a_sweep_goes_on_from_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    measurements = shard(1, 1, path, "elsewhere")
    records_known = earlier(read_records([path]), HOME, SITES, 1e9)
    assert len(records_known) == len(measurements)
    assert swept(world(), 400.0, known=records_known) == []
    assert earlier(read_records([path]), ("cpu:other", 2), SITES, 1e9) == []
    assert {m.site for m in earlier(read_records([path]), HOME, SITES[:1], 1e9)} == {"", SITES[0]}


def test_records_of_other_versions_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    shard(1, 1, path, "m")
    records = read_records([path])
    assert of_version(records, "0.1.0") == records
    assert of_version(records, "0.2.0") == []
