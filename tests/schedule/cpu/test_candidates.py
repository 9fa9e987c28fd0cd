"""The search changes knobs exactly where prices say that it pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import pytest
from tcc.ir.expr import known_extent
from tcc.ir.graph import Graph
from tcc.ir.index import symbol
from tcc.ir.tile.group import TileGroup
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.layout.assign import Placed
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import kernel_key
from tcc.schedule.cpu.candidates import KnobChoice, cheapest, knobs_of
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.nest import anchor, trips

from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph

MACHINE = shipped_machine("icelake-server")
CORE = CoreModel(16, 32, MACHINE.l2.size)


class Fixed(Pricer):
    """Prices a schedule by the given table; all others cost a second."""

    def __init__(self, seconds: Mapping[Schedule, float]) -> None:
        super().__init__(MACHINE)
        self.seconds = seconds
        self.asked: list[Schedule] = []

    def price(self, group: TileGroup, schedule: Schedule) -> Price:
        self.asked.append(schedule)
        return replace(super().price(group, schedule), seconds=self.seconds.get(schedule, 1.0))


def product(rows: object = 384, depth: int = 768, columns: int = 768) -> Graph:
    m = Model("product")
    return m.finish(m.op("matmul", m.input("x", rows, depth), m.weight(depth, columns)))


def computed(rows: int = 384, depth: int = 384, columns: int = 577) -> Graph:
    """Returns a matmul of two operands that are inputs."""
    m = Model("computed")
    return m.finish(m.op("matmul", m.input("x", rows, depth), m.input("y", depth, columns)))


def group_of(graph: Graph) -> TileGroup:
    (step,) = place_graph(graph).steps
    assert step.kernel is not None
    placed = place_graph(graph)
    return CoreChooser(CORE).plan(step.kernel, placed.layouts, graph.constants).bound.group


def searched(group: TileGroup, seconds: Mapping[Knobs, float]) -> tuple[KnobChoice, Fixed]:
    def scheduled(knobs: Knobs) -> tuple[TileGroup, Schedule]:
        return group, choose(group, replace(CORE, knobs=knobs))

    pricer = Fixed({scheduled(knobs)[1]: price for knobs, price in seconds.items()})
    return cheapest(scheduled, pricer), pricer


def test_equal_prices_leave_the_analytic_schedule() -> None:
    choice, pricer = searched(group_of(product()), {})
    assert choice.knobs == Knobs()
    assert choice.seconds == choice.analytic == 1.0
    assert choice.priced == len(pricer.asked) == len(set(pricer.asked)) > 3


def test_a_changed_knob_has_to_save_more_than_its_margin() -> None:
    group = group_of(product())
    long = Knobs(k_block=192)
    assert searched(group, {long: 0.93})[0].knobs == Knobs()
    choice, _ = searched(group, {long: 0.9})
    assert (choice.knobs, choice.seconds, choice.analytic) == (long, 0.9, 1.0)


def test_knobs_are_changed_from_the_best_earlier_choice() -> None:
    group = group_of(product())
    knobs = Knobs(panel=3, k_block=192)
    assert searched(group, {knobs: 0.5})[0].knobs == Knobs()  # neither knob pays alone
    assert searched(group, {Knobs(panel=3): 0.8, knobs: 0.5})[0].knobs == knobs


class AtSizes(Pricer):
    """Prices a changed knob by the typical number of rows; all other schedules cost a second."""

    def __init__(self, rule: Schedule, seconds: Mapping[int, float]) -> None:
        super().__init__(MACHINE)
        self.rule, self.seconds = rule, seconds

    def price(self, group: TileGroup, schedule: Schedule) -> Price:
        (rows,) = (trips(v) for v in group.common if known_extent(v) is None)
        seconds = 1.0 if schedule == self.rule else self.seconds[rows]
        return replace(super().price(group, schedule), seconds=seconds)


def open_product() -> tuple[TileGroup, tuple[TileGroup, ...]]:
    """Returns a matmul with a symbolic number of rows, and the same at other sizes."""
    planner, placed = CoreChooser(CORE), place_graph(product(symbol("n")))
    (step,) = placed.steps
    assert step.kernel is not None
    structure = planner._structure(kernel_key(step.kernel, placed.layouts, ()))
    return structure.with_knobs(Knobs())[0], structure.resized(Knobs())


def test_symbolic_sizes_are_priced_at_several_sets_of_sizes() -> None:
    group, other_groups = open_product()
    rows = [
        [trips(v) for v in member.common if known_extent(v) is None]
        for member in (group, *other_groups)
    ]
    assert rows == [[128], [63], [25]]
    assert all(group.sizes[0].name == member.sizes[0].name for member in other_groups)


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({128: 0.5, 63: 0.5, 25: 0.5}, True),
        ({128: 0.5, 63: 1.4, 25: 2.0}, False),
        ({128: 1.2, 63: 0.4, 25: 0.3}, True),
    ],
)
def test_a_knob_of_symbolic_sizes_pays_at_their_mean(
    seconds: dict[int, float], taken: bool
) -> None:
    group, other_groups = open_product()
    rule = choose(group, CORE)
    choice = cheapest(
        lambda knobs: (group, choose(group, replace(CORE, knobs=knobs))),
        AtSizes(rule, seconds),
        lambda _: other_groups,
    )
    assert (choice.knobs != Knobs()) is taken


@pytest.mark.parametrize(("depth", "columns"), [(64, 64), (256, 48)])
def test_symbolic_rows_of_a_short_launch_keep_both_cores_busy(depth: int, columns: int) -> None:
    """Tiles of 64 rows leave one core idle for 63 rows, so a tile needs more columns or fewer
    rows."""
    planner, placed = CoreChooser(CORE), place_graph(product(symbol("n"), depth, columns))
    (step,) = placed.steps
    assert step.kernel is not None
    structure = planner._structure(kernel_key(step.kernel, placed.layouts, ()))
    choice = cheapest(structure.with_knobs, Pricer(MACHINE), structure.resized)
    group, schedule = structure.with_knobs(choice.knobs)
    plain = structure.with_knobs(Knobs())[1]
    assert [plain.tile_size(v.name) for v in group.common] == [64, columns]
    middle, *_ = structure.resized(choice.knobs)
    units = prod(-(-trips(v) // schedule.tile_size(v.name)) for v in middle.common)
    assert units >= 2
    assert choice.seconds < choice.analytic


def test_every_knob_changes_a_schedule_that_can_be_lowered() -> None:
    group = group_of(computed())
    plain = choose(group, CORE)
    for knob in knobs_of(group):
        varied = [choose(group, replace(CORE, knobs=knobs)) for knobs in knob.variants(Knobs())]
        assert any(schedule != plain for schedule in varied)
        for schedule in varied:
            names = {v.name for s in group.stages for v in (*s.iters, *s.reduce)}
            assert {n for nest in schedule.nests for n, _ in nest.blocks} <= names


@pytest.mark.parametrize(
    ("columns", "copied"), [(192, 0), (197, 1), (249, 1), (256, 0), (577, 1), (592, 0), (1500, 1)]
)
def test_an_operand_is_copied_where_its_rows_are_not_whole_lines(columns: int, copied: int) -> None:
    """Measured: with 577 columns the copy takes 0.75 of the time, with 197 it takes 0.9, and with
    256 it gains nothing."""
    group = group_of(computed(columns=columns))
    pricer = Pricer(MACHINE, 0)

    def scheduled(knobs: Knobs) -> tuple[TileGroup, Schedule]:
        return group, choose(group, replace(CORE, knobs=knobs))

    choice = cheapest(scheduled, pricer)
    assert choice.knobs.copy == copied
    (nest,) = scheduled(choice.knobs)[1].nests
    assert nest.packed is bool(copied)


@pytest.mark.parametrize(
    ("depth", "columns", "copied"),
    [(64, 496, 0), (64, 512, 1), (64, 528, 0), (64, 1024, 1), (64, 4096, 1), (1024, 2048, 0)],
)
def test_an_operand_is_copied_where_its_rows_lie_in_few_sets(
    depth: int, columns: int, copied: int
) -> None:
    """Measured on Zen 5: with 512 columns the copy takes 0.86 of the time, with 1,024 0.73, with
    4,096 0.85, and for sums of 1,024, which exceed every L1 cache, 0.95."""
    group, machine = group_of(computed(512, depth, columns)), shipped_machine("znver5")
    core = CoreModel(16, 32, machine.l2.size)

    def scheduled(knobs: Knobs) -> tuple[TileGroup, Schedule]:
        return group, choose(group, replace(core, knobs=knobs))

    assert cheapest(scheduled, Pricer(machine, 0)).knobs.copy == copied


def test_few_rows_are_not_worth_a_copy() -> None:
    group = group_of(computed(6, 4096, 1500))
    plain, copied = (
        Pricer(MACHINE, 0).price(group, choose(group, replace(CORE, knobs=knobs))).seconds
        for knobs in (Knobs(), Knobs(copy=1))
    )
    assert copied > plain


def test_weights_are_never_copied() -> None:
    group = group_of(product(columns=577))
    plain, copied = (choose(group, replace(CORE, knobs=k)) for k in (Knobs(), Knobs(copy=1)))
    assert copied == plain


def placed_kernel(graph: Graph) -> Placed:
    return place_graph(graph)


@pytest.mark.parametrize("run", [128, 1024])
def test_the_planner_takes_the_cheapest_candidate(run: int) -> None:
    graph = product()
    placed = placed_kernel(graph)
    (step,) = placed.steps
    assert step.kernel is not None
    group = group_of(graph)
    schedule = choose(group, replace(CORE, knobs=Knobs(k_block=run)))
    planner = CoreChooser(CORE, Fixed({schedule: 0.5}))
    assert planner.plan(step.kernel, placed.layouts, graph.constants).bound.schedule == schedule
    assert planner.priced > 3


def test_panels_are_packed_for_the_knobs_taken() -> None:
    """The columns are 7 panels of three vectors, so that such panels leave no remainder."""
    graph = product(384, 256, 48 * 7)
    placed = place_graph(graph)
    (step,) = placed.steps
    assert step.kernel is not None
    planner = CoreChooser(CORE, Pricer(MACHINE, None))
    planned = planner.plan(step.kernel, placed.layouts, graph.constants)
    main = anchor(planned.bound.group)
    nest = planned.bound.schedule.nest(planned.bound.group.stages.index(main))
    (panel,) = (layout.sizes[-1] for v, layout in planned.operands if v in graph.constants)
    assert nest.vector is not None
    assert nest.block(nest.vector) == int(panel.key)


def softmax(columns: int) -> TileGroup:
    m = Model("softmax")
    return group_of(m.finish(m.op("softmax", m.input("x", 512, columns), attrs=AxisAttrs(1))))


def test_exponentials_are_made_along_their_sum_where_that_is_cheaper() -> None:
    """The sum then reads no scratch, and adds while exponentials are computed."""
    group = softmax(4096)
    separate, along = (choose(group, replace(CORE, knobs=Knobs(along=n))) for n in (0, 1))
    assert [n.along for n in separate.nests] == [()] * 4
    assert [n.along for n in along.nests] == [(), (1,), ()]
    pricer = Pricer(MACHINE)
    seconds = [pricer.price(group, s).seconds for s in (separate, along)]
    sums = 512 * 4096 / 16 / MACHINE.cores / MACHINE.hertz  # a vector per cycle
    assert seconds[0] - seconds[1] > 0.5 * sums
    choice, _ = searched(group, {Knobs(): 1.0, Knobs(along=0): 0.5})
    assert choice.knobs == Knobs(along=0)
    choice, _ = searched(group, {Knobs(): 1.0, Knobs(along=0): 0.95})
    assert choice.knobs == Knobs()


@pytest.mark.parametrize(
    ("planes", "rows", "axis", "vectors"),
    [(64, 512, 1, 16), (64, 512, 0, 16), (64, 512, 2, 4), (1, 4096, 1, 16), (1, 64, 1, 4)],
    ids=["rows", "planes", "columns", "third cache", "second cache"],
)
def test_sums_over_rows_from_afar_take_many_columns_at_once(
    planes: int, rows: int, axis: int, vectors: int
) -> None:
    """Measured: 256 neighbours at once take 0.6 to 0.75 of the time of 64 from memory, and half of
    it for 1,024 x 1,024 values in the L3 cache."""
    m = Model("sum")
    group = group_of(
        m.finish(
            m.op("reduce_sum", m.input("x", planes, rows, 512), attrs=ReduceAttrs((axis,), False))
        )
    )
    choice = cheapest(
        lambda knobs: (group, choose(group, replace(CORE, knobs=knobs))), Pricer(MACHINE, 0)
    )
    (nest,) = choose(group, replace(CORE, knobs=choice.knobs)).nests
    assert nest.vector is not None
    assert nest.block(nest.vector) == vectors * CORE.lanes


def test_a_loop_of_known_size_competes_for_the_vectors() -> None:
    m = Model("columns")
    group = group_of(m.finish(m.op("matmul", m.weight(64, 64), m.input("x", 64, symbol("n")))))
    sizes = {v.name: known_extent(v) for v in anchor(group).loops}
    cores = (CORE, replace(CORE, knobs=Knobs(fixed=1)))
    vectors = [choose(group, core).nests[0].vector or "" for core in cores]
    assert [sizes[vector] for vector in vectors] == [None, 64]
    assert searched(group, {Knobs(fixed=1): 0.5})[0].knobs == Knobs(fixed=1)
    assert searched(group, {Knobs(fixed=1): 0.95})[0].knobs == Knobs()
    assert all(knob.name != "fixed" for knob in knobs_of(group_of(product())))
