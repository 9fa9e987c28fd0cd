"""Random choices of kernels, whose texts must parse back to equal objects."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tcc.passes.choose.content import site
from tcc.passes.fuse.forms import repeating_forms
from tcc.passes.tile.cpu.plan import Structure
from tcc.passes.tile.plan import KernelKey
from tcc.schedule.alternatives import IMPOSSIBLE, read_site
from tcc.schedule.choice_text import text_of
from tcc.schedule.cpu import kernel_choice as core_choice
from tcc.schedule.cpu.candidates import knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.gpu import kernel_choice as block_choice
from tcc.schedule.gpu.candidates import candidates, varied
from tcc.schedule.gpu.kernel_choice import BlockKernel
from tcc.schedule.gpu.warpgroups import warpgroup_schedule
from tcc.schedule.loop_positions import (
    by_name,
    by_position,
    extents_of_loops,
)

from .kernels import Planner, cpu_planner, gpu_kernels, gpu_planner, kernels


def check_sites(planner: Planner, keys: Sequence[KernelKey]) -> None:
    """Fails if the text of a kernel's site parses to another site, or if two kernels share a
    digest."""
    sites = [site(planner.kind, *key) for key in keys]
    assert [read_site(here.text) for here in sites] == sites
    assert len({here.digest for here in sites}) == len(sites)


def parsed_back(cpu: str, draws: int) -> set[str]:
    """Returns the texts of `draws` random kernels of a processor, after they were parsed back.

    Raises AssertionError for a text that parses to another choice, or that does not fit its kernel.
    """
    random, planner, texts = Random(7), cpu_planner(cpu), set()
    check_sites(planner, kernels())
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
    """Returns the texts of `draws` random kernels of a GPU; raises as `parsed_back` does.

    A text that takes more registers or shared memory than the GPU has must be refused.
    """
    random, planner, texts = Random(8), gpu_planner(target), set()
    profile = planner.profile
    check_sites(planner, gpu_kernels(planner))
    packings = [
        planner._packing(key, limits)
        for key in gpu_kernels(planner)
        for limits in repeating_forms(key[0], planner.limits)
    ]
    for _ in range(draws):
        form = random.choice(packings)
        group = form.group
        schedule = random.choice(candidates(group))
        schedule = random.choice([schedule, *varied(schedule, True)])
        if profile.warpgroups and random.random() < 0.5:
            schedule = warpgroup_schedule(group, profile) or schedule
        kernel = BlockKernel(extents_of_loops(group), form.form, by_position(schedule, group))
        text = text_of(kernel)
        assert block_choice.read_kernel(text) == kernel
        assert by_name(kernel.schedule, group) == schedule
        fits = planner.price(group, schedule) != IMPOSSIBLE
        try:
            assert block_choice.schedule_of(kernel, group, profile) == schedule
        except ValueError:
            assert not fits
        texts.add(text)
    return texts
