"""Texts of complete kernels parse back, and are refused if they do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tcc.ir.tile.group import TileGroup
from tcc.passes.choose.content import site
from tcc.passes.fuse.forms import repeating_forms
from tcc.passes.fuse.structure import build_group
from tcc.passes.tile.cpu.plan import Structure
from tcc.passes.tile.plan import KernelKey
from tcc.schedule.choice_text import text_of
from tcc.schedule.cpu import kernel_choice as core_choice
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.kernel_choice import CoreKernel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.gpu import kernel_choice as block_choice
from tcc.schedule.gpu.candidates import candidates
from tcc.schedule.gpu.kernel_choice import BlockKernel
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.gpu.warpgroups import warpgroup_schedule
from tcc.schedule.loop_positions import (
    by_name,
    by_position,
    extents_of_loops,
)

from .draws import blocks_parsed_back, parsed_back
from .kernels import CPUS, GPUS, cpu_planner, gpu_kernels, gpu_planner, kernels

ROOT = Path(__file__).resolve().parents[2]
DRAWS = 200  # scripts/kernel_texts draws 2,000


@pytest.mark.parametrize("cpu", CPUS)
def test_random_choices_for_cpus_parse_back(cpu: str) -> None:
    assert len(parsed_back(cpu, DRAWS)) > DRAWS / 3


@pytest.mark.parametrize("target", GPUS)
def test_random_choices_for_gpus_parse_back(target: str) -> None:
    assert len(blocks_parsed_back(target, DRAWS)) > DRAWS / 2


def test_random_choices_for_a_hopper_include_warpgroups() -> None:
    planner = gpu_planner("cuda:sm_90")
    key = gpu_kernels(planner)[20]
    limits, *_ = repeating_forms(key[0], planner.limits)
    group = build_group(*key, limits=limits)
    roles = warpgroup_schedule(group, planner.profile)
    assert roles is not None
    kernel = BlockKernel(extents_of_loops(group), limits.form, by_position(roles, group))
    assert text_of(kernel) in blocks_parsed_back("cuda:sm_90", DRAWS)


# ---- digests ------------------------------------------------------------------------------------

DIGESTS = """
import sys
sys.path.insert(0, {root!r})
from tests.tune.kernels import cpu_planner, gpu_planner, kernels
from tests.tune.test_texts import exact_texts
for line in exact_texts():
    print(line)
"""


def exact_texts() -> list[str]:
    """Returns the digest of each kernel's site with the text of its CPU kernel."""
    planner = cpu_planner("x86-64-v4")
    return [
        f"{site('schedule', *key).digest} {Structure(key, planner.forms(key[0])[0]).text(Knobs())}"
        for key in kernels()
    ]


def test_digests_do_not_depend_on_the_process() -> None:
    def printed(seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        code = DIGESTS.format(root=str(ROOT))
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()

    assert printed("1") == printed("2") == exact_texts()
    assert len({line.split()[0] for line in exact_texts()}) == 20


# ---- refusals -----------------------------------------------------------------------------------


def matmul() -> tuple[KernelKey, TileGroup, CoreKernel]:
    """Returns a matmul of 64 x 64 x 64 with its kernel for 32 vectors of 16 f32."""
    (key, *_), planner = kernels(), cpu_planner("x86-64-v4")
    structure = Structure(key, planner.core)
    group, _ = structure.with_knobs(Knobs())
    return key, group, core_choice.read_kernel(structure.text(Knobs()), planner.core)


def refused(change: Callable[[CoreKernel], CoreKernel]) -> str:
    _, group, kernel = matmul()
    core = cpu_planner("x86-64-v4").core

    def check() -> None:
        changed = core_choice.read_kernel(text_of(change(kernel)), core)
        core_choice.check(changed, by_name(changed.schedule, group), group, core)

    with pytest.raises(ValueError, match=r".") as error:
        check()
    return str(error.value)


def with_nest(kernel: CoreKernel, **values: object) -> CoreKernel:
    first, *other_nests = kernel.schedule.nests
    nests = (replace(first, **values), *other_nests)
    return replace(kernel, schedule=replace(kernel.schedule, nests=nests))


def test_schedules_that_do_not_fit_a_cpu_are_refused_by_name() -> None:
    assert "16 vectors of 8 f32" in refused(lambda k: replace(k, lanes=8, registers=16))
    assert "extents (65, 64, 64)" in refused(lambda k: replace(k, loops=(65, 64, 64)))
    assert "no loop 'l9'" in refused(lambda k: with_nest(k, vector="l9"))
    assert "no loop 'i'" in refused(lambda k: with_nest(k, order=("i",)))
    assert "registers, of 32" in refused(
        lambda k: with_nest(k, blocks=(("l0", 16), ("l1", 64)), vector="l1")
    )
    assert "size 0" in refused(lambda k: with_nest(k, blocks=(("l0", 0),)))
    assert "twice" in refused(lambda k: with_nest(k, order=("l0", "l0")))
    assert "its nests have the stages" in refused(lambda k: with_nest(k, stages=(0, 1)))
    assert "cache level" in refused(lambda k: with_nest(k, ahead=9))
    streamed = refused(lambda k: replace(k, schedule=replace(k.schedule, stream_block=64)))
    assert "streaming loop" in streamed
    grid = refused(lambda k: replace(k, schedule=replace(k.schedule, parallel=("l2",))))
    assert "parallel" in grid


@pytest.mark.parametrize(
    "text",
    [
        "CoreKernel()",
        "CoreKernel",
        "Knobs(panel=2)",
        "CoreKernel(lanes=16, registers=32, loops=(1), form=Form(), knobs=Knobs(), schedule=3)",
        "CoreKernel(lanes=true, registers=32, loops=(1), form=Form(), knobs=Knobs(), "
        "schedule=Schedule(tile_sizes=(), parallel=(), nests=()))",
        "CoreKernel(lanes=16, registers=32, loops=(1), form=Form(), knobs=Knobs(), "
        "schedule=Schedule(tile_sizes=((l0)), parallel=(), nests=()))",
        "CoreKernel(lanes=16, registers=32, loops=(1.5), form=Form(), knobs=Knobs(), "
        "schedule=Schedule(tile_sizes=(), parallel=(), nests=()))",
        "CoreKernel(" * 40,
        "(" * 10000,
    ],
)
def test_invalid_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        core_choice.read_kernel(text, cpu_planner("x86-64-v4").core)


def test_schedules_that_do_not_fit_a_gpu_are_refused_by_name() -> None:
    planner = gpu_planner("cuda:sm_90")
    group = build_group(*kernels()[0], limits=planner.limits)
    schedule = by_position(candidates(group)[0], group)
    extents = extents_of_loops(group)

    def refused(**values: object) -> str:
        changed = replace(schedule, **values)
        text = text_of(BlockKernel(extents, planner.limits.form, changed))
        kernel = block_choice.read_kernel(text)
        with pytest.raises(ValueError, match=r".") as error:
            block_choice.schedule_of(kernel, group, planner.profile)
        return str(error.value)

    assert "no loop 'l7'" in refused(blocks=(("l7", 16),))
    assert "powers of two" in refused(blocks=(("l0", 48),))
    assert "grid" in refused(parallel=("l0",))
    assert "warps" in refused(warps=5)
    assert "registers or shared memory" in refused(blocks=(("l0", 256), ("l1", 256), ("l2", 16)))
    assert "positions" in refused(blocks=(("l0", 1 << 21), ("l1", 16)))


def test_all_fields_of_schedules_that_name_loops_are_renamed() -> None:
    """If a field of strings is added, it must be renamed too, and this list extended."""
    assert [f.name for f in fields(Schedule)] == [
        "tile_sizes", "parallel", "nests", "stream_block", "skips",
    ]  # fmt: skip
    assert [f.name for f in fields(BlockSchedule)] == ["blocks", "parallel", "warps", "stages"]
    _, group, kernel = matmul()
    assert by_position(by_name(kernel.schedule, group), group) == kernel.schedule
