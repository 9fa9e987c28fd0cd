"""Machine constants: shipped files are valid, each processor gets the right file, and others are
refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tcc.backends.cpu.backend import schedule_planner
from tcc.errors import UserError
from tcc.schedule.cpu import shipped_machines
from tcc.schedule.cpu.machine import SHARE, Cache, Machine
from tcc.schedule.cpu.machine_file import machine_digest, machine_text, read_machine
from tcc.schedule.cpu.shipped_machines import MACHINES, machine_for, machine_path, shipped_machine
from tcc.target import CPUS, ISA, cpu_profile

ALL = [f.name for f in ISA]
NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))
ALL_MACHINES = [shipped_machine(name) for name in NAMES]


@pytest.mark.parametrize("cpu", CPUS)
def test_a_listed_processor_gets_its_own_file(cpu: str) -> None:
    profile = CPUS[cpu]
    machine = machine_for(profile)
    assert machine.name == cpu
    assert (machine.lanes, machine.registers) == (profile.lanes(32), profile.vector_registers)
    assert (machine.l1, machine.l2.size) == (profile.l1, profile.l2)


@pytest.mark.parametrize(
    ("cpu", "features", "name"),
    [
        ("cascadelake", ALL, "skylake-avx512"),
        ("graniterapids", ALL, "sapphirerapids"),
        ("some-new-core", ALL, "x86-64-v4"),
        ("some-new-core", CPUS["x86-64-v3"].features, "x86-64-v3"),
        ("znver4", CPUS["x86-64-v3"].features, "x86-64-v3"),  # a hypervisor hides AVX-512
    ],
)
def test_other_processors_get_the_file_of_their_family_or_vectors(
    cpu: str, features: tuple[str, ...], name: str
) -> None:
    assert machine_for(cpu_profile("x86-64", cpu, features, l1=1, l2=1, l3=1)).name == name


def test_the_last_cache_is_never_larger_than_the_file_promises() -> None:
    profile = cpu_profile("x86-64", "icelake-server", ALL, l1=49152, l2=1310720, l3=256 << 20)
    assert machine_for(profile).l3.size == shipped_machine("icelake-server").l3.size


def test_the_peak_equals_the_data_sheet() -> None:
    # Genoa: 2 cores x 3.69 GHz x 32 flop per cycle, as measured with hand-written code.
    assert shipped_machine("znver4").peak == pytest.approx(236.2e9, rel=1e-3)


def lost_by_chance(lines: int, places: int) -> float:
    """Returns the share of cyclically read lines that miss a cache in which each new line replaces
    a random line."""
    chance, lines_by_place, where, missed = Random(0), [-1] * places, {}, 0
    for step in range(40 * lines):
        line = step % lines
        if line not in where:
            missed += step >= 20 * lines
            place = chance.randrange(places)
            where.pop(lines_by_place[place], None)
            lines_by_place[place], where[line] = line, place
    return missed / (20 * lines)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.25, 1.5, 2.0, 3.0, 5.0])
def test_lost_lines_follow_random_eviction(share: float) -> None:
    places = 600
    cache = Cache(int(places / SHARE), 1.0, 1.0)
    lines = int(share * places)
    assert cache.lost(lines) == pytest.approx(lost_by_chance(lines, places), abs=0.1)
    assert cache.lost(lines) <= cache.lost(lines + places) <= cache.lost(None) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_one_that_the_calibration_could_have_written(name: str) -> None:
    text = machine_path(name).read_text()
    assert text == machine_text(shipped_machine(name))
    assert shipped_machine(name).name == name


def test_a_shipped_file_that_is_missing_or_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*NAMES} - {"x86-64-v2"}:
        (tmp_path / f"{name}.json").write_bytes(machine_path(name).read_bytes())
    (tmp_path / "sapphirerapids.json").write_text("{}")
    monkeypatch.setattr(shipped_machines, "MACHINES", tmp_path)
    shipped_machine.cache_clear()
    try:
        with pytest.raises(UserError, match="does not describe a machine") as damaged:
            machine_for(CPUS["sapphirerapids"])
        with pytest.raises(UserError, match="cannot be read") as missing:
            machine_for(CPUS["x86-64-v2"])
        assert machine_for(CPUS["znver4"]).name == "znver4"
    finally:
        shipped_machine.cache_clear()
    assert damaged.value.where == str(tmp_path / "sapphirerapids.json")
    assert missing.value.where == str(tmp_path / "x86-64-v2.json")


@pytest.mark.parametrize("machine", ALL_MACHINES, ids=NAMES)
def test_a_file_gives_the_machine_back(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(machine_text(machine))
    assert read_machine(path) == machine
    assert machine_digest(read_machine(path)) == machine_digest(machine)


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    record = json.loads(machine_text(shipped_machine("znver4")))
    change(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("\x00\xff", "not JSON"),
        ("[" * 50_000, "nested deeper than 64"),
        ("[]", "tcc_machine"),
        ("{}", "tcc_machine"),
        (" " * 70_000, "bytes"),
        (edited(lambda r: r.update(tcc_machine=2)), "tcc_machine"),
        (edited(lambda r: r.pop("fork")), "fork is missing"),
        (edited(lambda r: r.update(colour="red")), "colour is not known"),
        (edited(lambda r: r.update(l2=3)), "l2 is not an object"),
        (edited(lambda r: r["l2"].pop("read")), "l2.read is missing"),
        (edited(lambda r: r["memory"].update(read=0)), "memory.read is not a number from"),
        (edited(lambda r: r["memory"].pop("in_order")), "memory.in_order is missing"),
        (edited(lambda r: r["memory"].update(ahead=1.5)), "memory.ahead is not a number from"),
        (edited(lambda r: r.update(l3_exposed=2)), "l3_exposed is not a number from 0 to 1"),
        (edited(lambda r: r.update(wait=-1)), "wait is not a number from 0"),
        (edited(lambda r: r.update(fold=0)), "fold is not a number from"),
        (edited(lambda r: r.update(ghz=-1.0)), "ghz is not a number from"),
        (edited(lambda r: r.update(ghz="fast")), "ghz is not a number"),
        (edited(lambda r: r.update(ghz=True)), "ghz is not a number"),
        (edited(lambda r: r.update(ghz=10**400)), "more than 30 digits"),
        (edited(lambda r: r.update(ghz=10**20)), "ghz is not a number from"),
        (edited(lambda r: r.update(ghz=float("nan"))), "NaN"),
        (edited(lambda r: r.update(ghz=float("inf"))), "Infinity"),
        (edited(lambda r: r.update(cores=0)), "cores is not a count"),
        (edited(lambda r: r.update(cores=2.5)), "cores is not a count"),
        (edited(lambda r: r.update(l1=1 << 60)), "l1 is not a count"),
        (edited(lambda r: r.update(name="a\nb")), "name is not a name"),
        (edited(lambda r: r.update(functions=[])), "functions is not an object"),
        (edited(lambda r: r["functions"].update(exp="x")), "functions.exp is not a number"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as caught:
        read_machine(path)
    assert reason in str(caught.value.why)
    assert str(path) in caught.value.where


def test_a_file_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_machine(tmp_path / "none.json")


@pytest.mark.parametrize("machine", ALL_MACHINES, ids=NAMES)
def test_bounds_of_kernels_follow_from_vectors_caches_and_launches(machine: Machine) -> None:
    """A core computes one operation per lane and cycle; planners of the machine use its bounds."""
    cycles = 1 / machine.l2.read + 1 / machine.l2.write  # per byte
    assert machine.limits.exchange == pytest.approx(cycles * machine.lanes)
    launch = machine.limits.launch_bytes / machine.cores * cycles / machine.hertz
    assert launch == pytest.approx(machine.fork)
    assert schedule_planner(machine, 0).limits == machine.limits
