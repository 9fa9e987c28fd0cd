"""Explanations name the limit of kernels whose limit is known by construction, and the rules of
schedules."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import pytest
import tcc.schedule.cpu.choose
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply, read
from tcc.ir.graph import Graph
from tcc.ir.index import as_index, symbol
from tcc.ir.layout import row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, tensor
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.explain import limit_of, predictions, rule_lines
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import Bound
from tcc.schedule.cpu.candidates import knobs_of
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.cpu.reasons import Reasons
from tcc.schedule.cpu.schedule import Nest, Schedule

from tests.part import part
from tests.passes.fuse.models import MODELS, Model
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_masked_loops import MASKS, attention, group_of
from tests.schedule.cpu.test_choose import AVX2, AVX512, expanded, levels, only, planned
from tests.schedule.cpu.test_choose import matmul as matmul_graph
from tests.schedule.cpu.test_contraction import phases_of
from tests.schedule.cpu.test_cost import (
    MACHINE,
    gemm_schedule,
    map_schedule,
    matmul,
    pointwise,
    priced,
)
from tests.schedule.cpu.test_depthwise import depthwise

FIELDS = {f.name for kind in (Schedule, Nest) for f in fields(kind)}
BY_LOOP = ("tile_sizes", "blocks")
# Fields that knobs may leave without a value, and thus without a line.
CLEARS = {"along": "along", "fixed": "vector", "k_block": "k_blocks"}


# ---- limits -------------------------------------------------------------------------------------


def test_a_copy_of_256_mb_is_limited_by_memory() -> None:
    name, share = limit_of(priced(pointwise(1 << 26), map_schedule(1 << 12)))
    assert name == "memory"
    assert 0.9 < share <= 1


def test_a_matmul_in_the_second_cache_is_limited_by_the_core() -> None:
    """Both operands and the result take 192 KiB; 16 equal tiles run on 2 cores."""
    group, schedule = matmul(128, 128, 128), gemm_schedule(16)
    name, share = limit_of(priced(group, schedule))
    assert name in ("compute", "ports")
    assert 0.7 < share <= 1
    # A core with a tenth of the multiply-adds per cycle is limited by arithmetic only.
    slow = replace(MACHINE, fmas=MACHINE.fmas / 10)
    assert limit_of(Pricer(slow).price(group, schedule))[0] == "compute"


def test_three_tiles_on_two_threads_are_limited_by_imbalance() -> None:
    """One thread has two of three tiles, 4/3 of an even share, so that a quarter of its time is
    imbalance."""
    three, four = (priced(matmul(128 * n, 512, 64), gemm_schedule(128)) for n in (3, 4))
    name, share = limit_of(three)
    assert name == "imbalance"
    assert share == pytest.approx(0.25 * max(three.compute, three.ports) / three.seconds)
    assert limit_of(four)[0] in ("compute", "ports")


def test_a_few_elements_are_limited_by_their_launch() -> None:
    name, share = limit_of(priced(pointwise(16), map_schedule(16)))
    assert (name, share > 0.5) == ("launch", True)


def test_each_cache_limits_a_stream_that_lies_behind_it() -> None:
    """x and y take as many bytes as half of a cache keeps; the arithmetic is one addition."""
    for kib, names in ((64, ("L2", "ports")), (4 << 10, ("L3",))):
        price = priced(pointwise(kib << 7), map_schedule(1 << 11))
        assert limit_of(price)[0] in names


@pytest.mark.parametrize("term", ["compute", "ports", "l2", "l3", "dram", "launch"])
def test_the_longest_term_binds(term: str) -> None:
    terms = dict.fromkeys(("compute", "ports", "l2", "l3", "dram", "launch"), 1e-6)
    price = Price(seconds=8e-6, imbalance=1.05, **(terms | {term: 4e-6}))
    names = {"l2": "L2", "l3": "L3", "dram": "memory"}
    assert limit_of(price) == (names.get(term, term), pytest.approx(0.5))


def bounds(graph: Graph, planner: CoreChooser) -> Iterator[Bound]:
    placed = place_graph(graph)
    for step in placed.steps:
        assert step.kernel is not None
        yield planner.plan(step.kernel, placed.layouts, graph.constants).bound


def open_matmul() -> Graph:
    m = Model("open")
    return m.finish(m.op("matmul", m.input("x", symbol("rows"), 512), m.weight(512, 256)))


def test_symbolic_sizes_have_a_limit_at_each_priced_set() -> None:
    planner = CoreChooser(CoreModel(16, 32, MACHINE.l2.size), Pricer(MACHINE))
    assert planner.pricer is not None
    (bound,) = bounds(open_matmul(), planner)
    assert isinstance(bound.schedule, Schedule)
    sets = (bound.group, *bound.tabulated)
    facts = predictions(planner.pricer, bound, [0] * len(sets))
    assert len(facts["limits"]) == len(facts["times"]) == len(sets) > 3
    assert tuple(facts["limits"][0]) == (facts["limit"], facts["limit_share"])
    for group, (name, share), row in zip(sets, facts["limits"], facts["times"], strict=True):
        price = planner.pricer.price(group, bound.schedule)
        assert row[2] == pytest.approx(price.seconds, rel=1e-3)
        assert (name, share) == (limit_of(price)[0], pytest.approx(limit_of(price)[1], abs=1e-3))
    # One row reads the weights once from beyond the caches; many rows reuse them.
    assert {name for name, _ in facts["limits"]} & {"compute", "ports"}
    assert {name for name, _ in facts["limits"]} - {"compute", "ports"}
    lines = [line for line in planner.explained(bound, 0) if line.startswith("limit at rows ")]
    assert len(lines) == len(sets)


def test_known_sizes_have_one_limit() -> None:
    planner = CoreChooser(CoreModel(16, 32, MACHINE.l2.size), Pricer(MACHINE))
    weights = 4 * 512 * 256
    pricer = planner.holding(weights).pricer
    assert pricer is not None
    m = Model("known")
    graph = m.finish(m.op("matmul", m.input("x", 64, 512), m.weight(512, 256)))
    (bound,) = bounds(graph, planner)
    facts = predictions(pricer, bound, [7, 8, 9])
    assert "limits" not in facts
    assert "times" not in facts
    head, *_ = planner.explained(bound, weights)
    assert head.startswith(f"limit: {facts['limit']}, {facts['limit_share']:.0%} of ")
    plain = CoreChooser(AVX2)  # without prices
    assert not any("limit" in line for b in bounds(graph, plain) for line in plain.explained(b, 0))


# ---- rules --------------------------------------------------------------------------------------


def rules_in_source() -> set[str]:
    """Returns the texts in compiler/schedule/cpu that name a rule: they begin with a field's
    name."""
    folder = Path(tcc.schedule.cpu.choose.__file__).parent
    texts = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                field, colon, reason = node.value.partition(": ")
                if colon and field in FIELDS and "\n" not in reason:
                    texts.add(node.value)
    return texts


def entries(schedule: Schedule) -> Iterator[str]:
    """Yields the head of the line for each field, or entry of a loop, that differs from its
    default."""
    for prefix, item in (
        ("", schedule),
        *((f"nest {number}  ", nest) for number, nest in enumerate(schedule.nests)),
    ):
        for field in fields(item):
            value = getattr(item, field.name)
            if field.name in BY_LOOP:
                yield from (f"{prefix}{field.name} {name} {n}" for name, n in value)
            elif field.name == "stages":
                yield from [f"{prefix}stages"] * (len(value) > 1)
            elif field.name == "parallel":
                yield from [f"{prefix}parallel"] * bool(value)
            elif field.name != "nests" and value != field.default:
                yield f"{prefix}{field.name}"


def check(group: TileGroup, core: CoreModel) -> set[str]:
    """Checks the lines of a schedule, and returns the rules that they name."""
    schedule, rules = choose(group, core), set()
    heads = list(entries(schedule))
    lines = list(rule_lines(group, core))
    assert choose(group, core) == schedule
    assert len(lines) == len(heads)
    for line, head in zip(lines, heads, strict=True):
        assert line.startswith(head)
        field = head.removeprefix("nest ").lstrip("0123456789 ").split(" ")[0]
        rules.add(f"{field}: {line.split(': ', 1)[1]}")
    return rules


def settings(group: TileGroup) -> Iterator[Knobs]:
    for knob in knobs_of(group):
        yield from knob.variants(Knobs())


CORES = {"avx512": AVX512, "avx2": AVX2, "masked": CoreModel(16, 32, masked=True)}


def check_all(groups: Iterable[TileGroup], core: CoreModel) -> set[str]:
    """Checks the schedules of each group for each setting of each knob; returns the rules."""
    known_rules, named = rules_in_source(), set()
    for group in groups:
        plain = check(group, core)
        assert not any("by price" in rule for rule in plain)
        named |= plain
        for knobs in settings(group):
            varied = replace(core, knobs=knobs)
            rules, schedule = check(group, varied), choose(group, varied)
            named |= rules
            (knob,) = (f.name for f in fields(Knobs) if getattr(knobs, f.name) != f.default)
            cleared = CLEARS.get(knob)
            clears = cleared and not any(getattr(nest, cleared) for nest in schedule.nests)
            if schedule != choose(group, core) and not clears:
                assert any(f"knob {knob}, by price" in rule for rule in rules)
    assert named <= known_rules
    return named


@pytest.mark.parametrize(("name", "core"), part("rules", product(MODELS, CORES), 2))
def test_every_field_names_a_rule_that_exists(name: str, core: str) -> None:
    assert check_all((group for group, _ in planned(MODELS[name](), CORES[core])), CORES[core])


def softmax(columns: int) -> Graph:
    m = Model("softmax")
    return m.finish(m.op("softmax", m.input("x", 16, columns), attrs=AxisAttrs(1)))


def interleaved() -> TileGroup:
    """Returns y[c, i, q] = sum(k) w[c, k] * x[k, q, i], where both q of a point i lie in one line
    of y."""
    types = [tensor(F32, 48, 2, 96), tensor(F32, 48, 48)]
    b = ExprBuilder(*types)
    c, i, q, k = b.iters(48, 96, 2, 48)
    b.stage((c, i, q), apply("mul", b.read(0, k, q, i), b.read(1, c, k)), over=(k,), monoid="sum")
    shapes = [t.shape for t in (*types, tensor(F32, 48, 96, 2))]
    x, w, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    return build_group(b.done(), [x, w], [y])


def two_values() -> TileGroup:
    """Returns y[i] = sum(j) (x[i, j] + 1) * (x[i, j] * 2), whose first stage has two values per
    point."""
    b = ExprBuilder(tensor(F32, 64, 128))
    i, j = b.iters(64, 128)
    x = b.read(0, i, j)
    first = b.stage((i, j), apply("add", x, x), apply("mul", x, x))
    values = (b.read(replace(first, component=n), i, j) for n in range(2))
    b.sum((i,), apply("mul", *values), (j,))
    shapes = (as_index(64), as_index(128)), (as_index(64),)
    operand, result = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    return build_group(b.done(), [operand], [result])


def padded_pool() -> TileGroup:
    """Returns y[c, i, j] = max(p, q) x[c, 2i + p - 1, 2j + q - 1], whose first stage pads x."""
    b = ExprBuilder(tensor(F32, 64, 112, 112))
    c, u, v, i, j, p, q = b.iters(64, 113, 113, 56, 56, 3, 3)
    padded = b.stage((c, u, v), b.read(0, c, u - 1, v - 1, fill=0.0))
    window = read(padded, (c, 2 * i + p, 2 * j + q), F32)
    b.stage((c, i, j), window, over=(p, q), monoid="max")
    shapes = (tensor(F32, 64, n, n).shape for n in (112, 56))
    x, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    return build_group(b.done(), [x], [y])


def sections() -> Iterator[TileGroup]:
    """Yields kernels that together make each rule set a field."""
    graphs = (
        matmul_graph(128, 3072, 768),  # K-blocks that fit the L1 cache
        matmul_graph(128, 1024, 3072),  # long K-blocks
        matmul_graph(4, 3072, 768),  # one block of rows
        matmul_graph(128, 768, 3072),  # panels outside rows
        matmul_graph(symbol("rows"), 256, 512),
        matmul_graph(384, 384, 577, constant=False),
        levels(128),
        softmax(2048),
    )
    yield from (only(graph)[0] for graph in graphs)
    yield expanded(1)[0]
    yield depthwise(28, 96, 5)
    yield phases_of(2)
    yield interleaved()
    yield two_values()
    yield padded_pool()
    for name in MODELS:
        yield from (group for group, _ in planned(MODELS[name](), AVX512))
    yield group_of(attention(next(iter(MASKS.values())), 2, 128, 250))


def test_every_rule_sets_a_field_of_some_kernel() -> None:
    core = replace(AVX512, l2=1 << 20)
    # No rule sets this knob; a lock does.
    measured = {"vector: knob vector, by measuring"}
    assert rules_in_source() - check_all(sections(), core) == measured


def test_a_rule_that_names_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (group, _), *_ = planned(MODELS["matmul_gelu"](), AVX512)
    monkeypatch.setattr(Reasons, "record", lambda *_: None)
    assert not check(group, AVX512) <= rules_in_source()
