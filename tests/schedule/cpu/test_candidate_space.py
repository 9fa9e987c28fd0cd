"""Every schedule in a kernel's space is a kernel, and the space varies every knob."""

from __future__ import annotations

from itertools import islice

import pytest
from tcc.ir.tile.verify import verify_kernel
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.cpu.plan import ForcedStructure, Structure
from tcc.schedule.cpu.candidate_space import beside, knobs_beside
from tcc.schedule.cpu.candidates import knobs_of, measured_knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.kernel_choice import read_kernel
from tcc.schedule.cpu.vectors import vector_choices
from tcc.schedule.nest import anchor

from tests.tune.kernels import cpu_planner, kernels

PLANNER = cpu_planner("x86-64-v4")


def structure(number: int) -> Structure:
    return Structure(kernels()[number], PLANNER.core)


@pytest.mark.parametrize("number", range(20))
def test_a_vector_loop_is_a_choice(number: int) -> None:
    kernel = structure(number)
    group, _ = kernel.with_knobs(Knobs())
    main = anchor(group)
    loops = vector_choices(group, main)
    (knob,) = (k for k in measured_knobs_of(group) if k.name == "vector")
    assert knob.settings == tuple(range(len(loops)))
    legal = 0
    for place, loop in enumerate(loops):
        text = kernel.text(Knobs(vector=place))
        choice = read_kernel(text, PLANNER.core)
        try:
            forced = ForcedStructure(kernels()[number], PLANNER.core, choice)
        except ValueError:
            continue
        forced_group, schedule = forced.with_knobs(Knobs())
        assert not verify_kernel(lower(forced_group, schedule))
        nest = schedule.nest(forced_group.stages.index(anchor(forced_group)))
        assert nest.vector is not None
        if nest.stages[0] == forced_group.stages.index(anchor(forced_group)):
            assert nest.vector.split(".")[-1] == loop.name.split(".")[-1]
        legal += 1
    assert legal or not loops


def test_a_text_of_a_variant_makes_that_variant() -> None:
    for number in (1, 8, 13, 16):
        kernel = structure(number)
        group, schedule = kernel.with_knobs(Knobs())
        for variant in islice(beside(group, schedule), 6):
            choice = read_kernel(kernel.text(Knobs(), variant), PLANNER.core)
            forced = ForcedStructure(kernels()[number], PLANNER.core, choice)
            assert forced.with_knobs(Knobs())[1] == variant
            assert forced.packed(Knobs()) == kernel.packed(Knobs())


def test_k_blocks_of_64_steps_are_measured_and_not_priced() -> None:
    group, _ = structure(1).with_knobs(Knobs())
    settings = [{k.name: k.settings for k in knobs} for knobs in (knobs_of(group),
                measured_knobs_of(group))]  # fmt: skip
    assert 64 not in settings[0]["k_block"]
    assert 64 in settings[1]["k_block"]


def test_knobs_beside_change_one_knob() -> None:
    group, _ = structure(1).with_knobs(Knobs())
    current = Knobs(panel=3, k_block=128)
    alternatives = knobs_beside(current, measured_knobs_of(group))
    assert current not in alternatives
    assert Knobs(k_block=128) in alternatives
    assert Knobs(panel=3) in alternatives
    assert Knobs(panel=3, k_block=64) in alternatives
    assert Knobs(vector=0) in alternatives  # a knob on its own
    assert Knobs(panel=3, k_block=128, vector=0) not in alternatives
