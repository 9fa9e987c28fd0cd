"""Tests of GPU tuning: which kernels are compiled again, how often, and which schedules win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tcc.backends.gpu.source import CompiledKernel
from tcc.backends.gpu.tuning import TRIES, better_schedules
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.passes.tile.plan import Bound
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.cost import BlockPricer, Usage
from tcc.schedule.gpu.schedule import BlockSchedule

from tests.schedule.gpu.test_cost import copy, product

PLANNER = BlockChooser()


class Compiler:
    """A fake compiler whose kernels have the resources of `usage`; it records its requests."""

    def __init__(self, usage: Callable[[Bound], Usage]) -> None:
        self.usage = usage
        self.asked: list[dict[int, Bound]] = []

    def __call__(self, bounds: Mapping[int, Bound]) -> dict[int, Sequence[CompiledKernel]]:
        self.asked.append(dict(bounds))
        return {n: [self._made(bound)] for n, bound in bounds.items()}

    def _made(self, bound: Bound) -> CompiledKernel:
        schedule, usage = schedule_of(bound), self.usage(bound)
        return CompiledKernel(
            "k", b"", usage.shared, schedule.warps, 32, (), (), False, "sm_90", "", schedule.stages,
            usage.registers, usage.private,
        )  # fmt: skip


def schedule_of(bound: Bound) -> BlockSchedule:
    assert isinstance(bound.schedule, BlockSchedule)
    return bound.schedule


def thought(bound: Bound) -> Usage:
    return BlockPricer(bound.group, PLANNER.profile).price(schedule_of(bound)).usage


def chosen(*groups: TileGroup) -> list[Bound]:
    return [PLANNER.scheduled(g, choose_blocks(g, PLANNER.profile)) for g in groups]


def test_kernels_as_they_were_thought_are_compiled_once() -> None:
    compiler = Compiler(thought)
    assert better_schedules(chosen(product(512, 512, 512), copy(64, 64)), PLANNER, compiler) == {}
    assert len(compiler.asked) == 1


def test_a_kernel_that_spills_gives_way_to_one_that_does_not() -> None:
    bounds = chosen(copy(64, 64), product(2048, 2048, 2048))

    def usage(bound: Bound) -> Usage:
        need = thought(bound)
        # The kernel needs twice the estimated registers, and private memory beyond 255.
        real = need.registers * 2
        return Usage(min(real, 255), 4 * max(0, real - 255), need.shared)

    compiler = Compiler(usage)
    assert usage(bounds[1]).private > 0
    found = better_schedules(bounds, PLANNER, compiler)
    assert list(found) == [bounds[1]]
    assert usage(found[bounds[1]]).private == 0
    assert 1 < len(compiler.asked) <= TRIES + 1
    assert all(list(each) == [1] for each in compiler.asked[1:])


def test_tries_end_and_repeat() -> None:
    """If every schedule spills, a few different schedules are tried, the same each time."""
    bounds = chosen(product(2048, 2048, 2048))

    def compiled() -> Compiler:
        compiler = Compiler(lambda bound: Usage(255, 4096, thought(bound).shared))
        better_schedules(bounds, PLANNER, compiler)
        return compiler

    asked = [[schedule_of(b) for each in c.asked for b in each.values()] for c in (compiled(),) * 2]
    assert asked[0] == [schedule_of(b) for each in compiled().asked for b in each.values()]
    assert len(set(asked[0])) == len(asked[0]) <= TRIES + 1


def test_lost_residency_is_priced() -> None:
    """A kernel whose registers cost it residency gets another schedule, if that is cheaper."""
    bounds = chosen(product(128, 50257, 768))
    first = BlockPricer(bounds[0].group, PLANNER.profile)

    def usage(bound: Bound) -> Usage:
        need = thought(bound)
        return Usage(255 if bound is bounds[0] else need.registers, 0, need.shared)

    compiler = Compiler(usage)
    found = better_schedules(bounds, PLANNER, compiler)
    worse = first.price(schedule_of(bounds[0]), usage(bounds[0])).seconds
    for new in found.values():
        assert first.price(schedule_of(new), usage(new)).seconds < worse


def test_planned_kernels_are_exchanged() -> None:
    (old,) = chosen(copy(64, 64))
    (new,) = chosen(copy(64, 64))
    planner = BlockChooser()
    planner._known = {"a": ((), old), "b": ((), new)}  # type: ignore[dict-item]
    planner.exchange({old: new})
    assert [bound for _, bound in planner._known.values()] == [new, new]
