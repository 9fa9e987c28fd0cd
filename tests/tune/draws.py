"""Random choices of kernels, whose texts must parse back to equal objects."""

from __future__ import annotations

from random import Random

from tcc.passes.fuse.structure import build_group
from tcc.passes.tile.cpu.plan import Structure
from tcc.schedule.choice_text import text_of
from tcc.schedule.cpu import kernel_choice as core_choice
from tcc.schedule.cpu.candidates import knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.gpu import kernel_choice as block_choice
from tcc.schedule.gpu.candidates import candidates, varied
from tcc.schedule.gpu.kernel_choice import BlockKernel
from tcc.schedule.loop_positions import (
    by_name,
    by_position,
    extents_of_loops,
)

from .kernels import cpu_planner, gpu_planner, kernels


def parsed_back(cpu: str, draws: int) -> set[str]:
    """Returns the texts of `draws` random kernels of a processor, after they were parsed back.

    Raises AssertionError for a text that parses to another choice, or that does not fit its kernel.
    """
    random, planner, texts = Random(7), cpu_planner(cpu), set()
    structures = [Structure(key, form) for key in kernels() for form in planner.forms(key[0])]
    for _ in range(draws):
        structure, knobs = random.choice(structures), Knobs()
        for knob in knobs_of(structure.with_knobs(knobs)[0]):
            if random.random() < 0.5:
                knobs = random.choice(knob.variants(knobs))
        group, schedule = structure.with_knobs(knobs)
        text = structure.text(knobs)
        kernel = core_choice.read_kernel(text, planner.core)
        assert text_of(kernel) == text
        assert (kernel.form, kernel.knobs) == (structure.form, knobs)
        assert by_name(kernel.schedule, group) == schedule
        core_choice.check(kernel, schedule, group, planner.core)
        texts.add(text)
    return texts


def blocks_parsed_back(target: str, draws: int) -> set[str]:
    """Returns the texts of `draws` random kernels of a GPU; raises as `parsed_back` does."""
    random, planner, texts = Random(8), gpu_planner(target), set()
    groups = [build_group(*key, limits=planner.limits) for key in kernels()]
    for _ in range(draws):
        group = random.choice(groups)
        schedule = random.choice(candidates(group))
        schedule = random.choice([schedule, *varied(schedule, True)])
        extents = extents_of_loops(group)
        kernel = BlockKernel(extents, planner.limits.form, by_position(schedule, group))
        text = text_of(kernel)
        assert block_choice.read_kernel(text) == kernel
        assert by_name(kernel.schedule, group) == schedule
        texts.add(text)
    return texts
