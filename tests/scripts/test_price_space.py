"""The spaces of schedules with which prices are checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tcc.passes.tile.cpu.plan import Structure
from tcc.schedule.cpu import candidates as knob_table
from tcc.schedule.cpu.candidate_space import ROWS, beside, knobs_beside
from tcc.schedule.cpu.candidates import Knob, measured_knobs_of
from tcc.schedule.cpu.core import Knobs

from tests.tune.kernels import conv, cpu_planner, kernels, key, matmul, softmax

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from price_space import around, space

PLANNER = cpu_planner("x86-64-v4")


def structure(number: int) -> Structure:
    return Structure(kernels()[number], PLANNER.core)


def test_each_variant_differs_in_one_dimension_and_is_in_the_product() -> None:
    for number in (0, 1, 10, 13, 16, 18):
        group, schedule = structure(number).with_knobs(Knobs())
        product = {*around(group, schedule)}
        single = beside(group, schedule)
        assert schedule in product
        assert schedule not in single
        assert len({*single}) == len(single)
        assert len(single) > 2 or len(schedule.parallel) == 1
        assert product.issuperset(single)


def test_variants_keep_the_settings_that_are_no_dimension() -> None:
    group, schedule = structure(16).with_knobs(Knobs())
    for variant in around(group, schedule):
        assert variant.skips == schedule.skips
        assert [n.vector for n in variant.nests] == [n.vector for n in schedule.nests]
        assert [n.k_blocks for n in variant.nests] == [n.k_blocks for n in schedule.nests]


def test_a_new_knob_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/price_check` draws from `space`, and tuning from `measured_knobs_of`."""
    kernel = Structure(key(matmul(64, 64, 256), (1,)), PLANNER.core)
    group, _ = kernel.with_knobs(Knobs())
    before = {schedule for _, schedule in space(kernel.with_knobs)}
    row = Knob("k_block", (32, 128))
    rows = tuple(row if k.name == "k_block" else k for k in knob_table._CONTRACTION)
    monkeypatch.setattr(knob_table, "_CONTRACTION", rows)
    assert Knobs(k_block=32) in knobs_beside(Knobs(), measured_knobs_of(group))
    after = {schedule for _, schedule in space(kernel.with_knobs)}
    assert after - before


def test_equal_kernels_have_equal_spaces() -> None:
    for expr in (softmax(16, 40), conv(4, 16, 8, 3), matmul(24, 32, 40)):
        lists = [space(Structure(key(expr), PLANNER.core).with_knobs) for _ in range(2)]
        schedules = [[schedule for _, schedule in entries] for entries in lists]
        assert schedules[0] == schedules[1]
        assert len(schedules[0]) > len(ROWS)
