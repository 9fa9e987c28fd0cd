"""A lock of twenty small expressions that an earlier version wrote still applies completely.

`TCC_UPDATE_GOLDENS=1 pytest tests/tune/test_golden.py` rewrites it. That is right only after a
change of the language of sites or texts: users then have to pin again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tcc.passes.choose.content import site
from tcc.passes.choose.ledger import ListeningLedger
from tcc.passes.tile.gpu.plan import block_schedule
from tcc.schedule.cpu.kernel_choice import CoreKernel, read_kernel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.gpu import kernel_choice as block_choice
from tcc.schedule.loop_positions import by_name
from tcc.schedule.margins import MARGINS
from tcc.tune.applied import sections_of
from tcc.tune.lock import Lock
from tcc.tune.lock_file import lock_text, read_lock
from tcc.tune.pin import pinned

from .kernels import cpu_planner, gpu_planner, kernels, planner_of

GOLDEN = Path(__file__).with_name("golden.lock.json")
TARGETS = ("x86-64-v4", "neoverse-n1", "cuda:sm_80")
CORES = 2


def bound(ledger: ListeningLedger, target: str) -> None:
    """Chooses the twenty kernels for a target; `ledger` makes the decisions."""
    planner = planner_of(target, ledger.within(target, CORES))
    for key in kernels():
        planner._known[key] = planner.bind(key)


def test_the_golden_lock_applies_whole() -> None:
    if os.environ.get("TCC_UPDATE_GOLDENS"):
        lock = Lock()
        for target in TARGETS:
            ledger = ListeningLedger()
            bound(ledger, target)
            lock = lock.with_entries(pinned(ledger, lock))
        GOLDEN.write_text(lock_text(lock))
    lock = read_lock(GOLDEN)
    assert [target for target, _ in lock.sections] == sorted(TARGETS)
    ledger = ListeningLedger((), sections_of(lock, GOLDEN))
    for target in TARGETS:
        bound(ledger, target)
    assert set(ledger.met.values()) == {""}
    assert len(ledger.met) == lock.count >= 20 * len(TARGETS)


@pytest.fixture
def other_margins(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, float]:
    """Sets every margin to 0, as a later version might."""
    before = {name: margin.saves for name, margin in MARGINS.items()}
    for margin in MARGINS.values():
        object.__setattr__(margin, "saves", 0.0)
    yield before
    for name, margin in MARGINS.items():
        object.__setattr__(margin, "saves", before[name])


def test_the_golden_schedules_are_those_of_the_kernels(other_margins: Mapping[str, float]) -> None:
    """The schedule of each kernel is compared with the entry's own text."""
    lock = read_lock(GOLDEN)
    ledger = ListeningLedger((), sections_of(lock, GOLDEN))
    changed = 0
    core = cpu_planner("x86-64-v4", ledger.within("x86-64-v4", CORES))
    free = cpu_planner("x86-64-v4")
    for key in kernels():
        _, kernel = core.bind(key)
        entry = lock.sections["x86-64-v4", CORES][site("schedule", *key).digest]
        choice = read_kernel(entry.alternative or "", core.core)
        assert isinstance(choice, CoreKernel)
        assert isinstance(kernel.schedule, Schedule)
        assert kernel.schedule == by_name(choice.schedule, kernel.group)
        changed += kernel.schedule != free.bind(key)[1].schedule
    assert changed > 0  # else the test would not depend on margins
    blocks = gpu_planner("cuda:sm_80", ledger.within("cuda:sm_80", CORES))
    for key in kernels():
        _, kernel = blocks.bind(key)
        entry = lock.sections["cuda:sm_80", CORES][site("blocks", *key).digest]
        schedule = block_choice.read_kernel(entry.alternative or "").schedule
        assert block_schedule(kernel) == by_name(schedule, kernel.group)
        assert kernel in blocks.pinned
