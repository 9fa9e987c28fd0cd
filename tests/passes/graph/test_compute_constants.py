"""Constants that are functions of the positions of their elements are computed by nodes, and read
in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.errors import UserError
from tcc.ir.expr import Expr, reads
from tcc.ir.expr.scalar import Apply, walk
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.op import Array
from tcc.ops.algebra.movement import ConcatAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.data.indexing import GatherNdAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.check_indices import check_indices
from tcc.passes.graph.compute_constants import compute_constants
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.cpu.legality import CpuKernels
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import shipped_machine

from tests.passes.fuse.models import Model
from tests.passes.placing import TYPICAL
from tests.passes.tile.cpu.test_programs import check

INF = float("inf")


def agree(graph: Graph) -> Graph:
    """Computes the graph's constants, checks that the result is unchanged, and returns the new
    graph."""
    changed = compute_constants(graph, TYPICAL)
    rng = np.random.default_rng(0)
    inputs = {
        v.name: rng.standard_normal([d.const for d in v.type.shape]).astype(np.float32)
        for v in graph.inputs
    }
    reference, outputs = (evaluate_graph(g, inputs) for g in (graph, changed))
    for name in reference:
        np.testing.assert_array_equal(outputs[name], reference[name])
    return changed


def exprs(graph: Graph) -> list[Expr]:
    return [e for n in graph.nodes if (e := node_expr(n)) is not None]


def chosen(graph: Graph) -> int:
    """Returns the number of reads at data-dependent positions."""
    return sum(bool(r.indirect) for e in exprs(graph) for s in e.stages for r in reads(s))


def gathered(table: Array, axis: int = 1) -> Graph:
    m = Model("gathered")
    x = m.input("x", 2, 24, 3)
    at = m.builder.constant(table.astype(np.int64), "at")
    return m.finish(m.op("gather", x, at, attrs=AxisAttrs(axis)))


ROWS, COLUMNS = np.arange(24)[:, None], np.arange(9)
TABLES = {
    "window": np.clip(ROWS + COLUMNS - 4, 0, 23),
    "circular": (ROWS + COLUMNS) % 24,
    "negative": np.arange(-1, -25, -1),
    "mixed": np.arange(-12, 12),
    "interleaved": np.arange(24) % 2 * 12 + np.arange(24) // 2,
    "equal": np.full((2, 3), -1),
}


@pytest.mark.parametrize("name", list(TABLES))
def test_gathers_read_in_order(name: str) -> None:
    changed = agree(gathered(TABLES[name]))
    assert chosen(changed) == 0
    assert not changed.constants


def test_windows_with_ends_read_a_longer_operand_at_even_distances() -> None:
    for name, size in (("window", 24 + 9 - 1), ("circular", 24 + 9 - 1)):
        changed = agree(gathered(TABLES[name]))
        first, second = changed.nodes
        assert [d.const for d in first.outputs[0].type.shape] == [2, size, 3]
        assert second.inputs == first.outputs
    assert len(agree(gathered(TABLES["interleaved"])).nodes) == 1


def test_gathers_at_other_constant_places() -> None:
    m = Model("other")
    x = m.input("x", 6, 8)
    flat = np.stack(np.broadcast_arrays(np.arange(5)[:, None], np.arange(3) * 2 + 1), axis=-1)
    pairs = m.builder.constant(flat.astype(np.int64), "pairs")
    places = m.builder.constant((np.arange(6)[:, None] + np.arange(8)) % 6, "each")
    one = m.op("gather_nd", x, pairs, attrs=GatherNdAttrs(0))
    two = m.op("gather_elements", x, places, attrs=AxisAttrs(0))
    assert chosen(agree(m.finish(one, two))) == 0


def test_a_table_without_formula_stays_data() -> None:
    table = np.random.default_rng(1).permutation(24)
    graph = gathered(table)
    assert compute_constants(graph, TYPICAL) is graph


def test_places_outside_are_refused_before() -> None:
    with pytest.raises(UserError):
        check_indices(gathered(np.arange(1, 25)))


def test_factors_stay_as_they_are() -> None:
    m = Model("factors")
    x = m.input("x", 8, 16)
    triangle = m.builder.constant(np.tril(np.ones((16, 16), np.float32)), "ones")
    graph = m.finish(m.op("matmul", x, triangle))
    assert compute_constants(graph, TYPICAL) is graph


def added(mask: Array) -> Graph:
    m = Model("added")
    x = m.input("x", 2, *mask.shape)
    return m.finish(m.op("add", x, m.builder.constant(mask, "mask")))


def test_numbers_that_are_added() -> None:
    causal = np.tril(np.ones((24, 40), np.bool_))
    low = np.float32(np.finfo(np.float32).min)
    computed: Sequence[Array] = (
        np.where(causal, np.float32(0), np.float32(-INF)),
        np.where(causal, np.float32(1.5), low),
        (np.arange(40) - np.arange(24)[:, None]).astype(np.float32),
    )
    for mask in computed:
        changed = agree(added(mask))
        assert not changed.constants
    masks: Sequence[Array] = (
        np.where(causal, np.float32(0), np.float32(np.nan)),
        np.where(causal, np.float32(0), np.float32(1)) + 2 * np.eye(24, 40, dtype=np.float32),
        np.full((24, 40), 2, np.float32),
        np.arange(960, dtype=np.float32).reshape(24, 40) / 7,
    )
    for mask in masks:
        graph = added(mask)
        assert compute_constants(graph, TYPICAL) is graph


class Dear(CpuKernels):
    """Prices a kernel by its number of operations."""

    def alone(self, expr: Expr, constants: Sequence[bool]) -> float:
        return float(sum(isinstance(n, Apply) for s in expr.stages for n in walk(*s.body)))


def test_prices_decide_for_values_alone() -> None:
    mask = np.where(np.tril(np.ones((1024, 1024), np.bool_)), np.float32(0), np.float32(-INF))
    priced = CoreChooser(CoreModel(16, 32), Pricer(shipped_machine("icelake-server")))
    assert not compute_constants(added(mask), priced).constants
    graph = added(mask[:8, :8])
    assert compute_constants(graph, Dear(CoreModel(16, 32))) is graph
    changed = compute_constants(gathered(TABLES["window"]), Dear(CoreModel(16, 32)))
    assert chosen(changed) == 0


def test_negative_zeros_are_told_apart() -> None:
    causal = np.tril(np.ones((24, 40), np.bool_))
    zeros = np.where(causal, np.float32(-0.0), np.float32(0.0))
    (result,) = evaluate_graph(
        compute_constants(added(zeros), TYPICAL), {"x": np.full((2, 24, 40), -0.0, np.float32)}
    ).values()
    np.testing.assert_array_equal(np.signbit(result[0]), causal)


def test_a_concatenation_without_kernel_keeps_its_parts() -> None:
    m = Model("joined")
    x = m.input("x", 8, 64, 512)
    front = m.builder.constant(np.tril(np.ones((8, 64), np.float32)), "front")
    total = m.op("reduce_sum", x, attrs=ReduceAttrs((2,), False))
    graph = m.finish(m.op("exp", m.op("concat", front, total, attrs=ConcatAttrs(1))))
    changed = compute_constants(graph, TYPICAL)
    assert "concat" in [n.op.name for n in changed.nodes]


def test_an_update_of_a_state_keeps_its_op() -> None:
    m = Model("state")
    past, x = m.input("past", 8, 16), m.input("x", 8, 16)
    mask = m.builder.constant(np.tril(np.ones((8, 16), np.bool_)), "mask")
    new = m.op("where", mask, past, x)
    graph = m.builder.finish([new], ((new, past),))
    assert compute_constants(graph, TYPICAL) is graph


def test_constants_behind_a_condition() -> None:
    m = Model("behind")
    x = m.input("x", 8, 16)
    constant = m.builder.constant(np.tril(np.ones((8, 16), np.float32)), "known")
    concatenations = [
        m.op("concat", *pair, attrs=ConcatAttrs(1)) for pair in ((constant, x), (x, constant))
    ]
    agree(m.finish(*concatenations))


def masked(rows: int, columns: int) -> Graph:
    """Returns values below the diagonal of a constant mask, and before a constant position."""
    m = Model("masked")
    x = m.input("x", 2, rows, columns)
    causal = np.tril(np.ones((1, rows, columns), np.bool_), 2)
    lowest = m.builder.constant(np.where(causal, 0, -INF).astype(np.float32), "lowest")
    first = m.builder.constant(np.arange(columns, dtype=np.int64), "columns")
    last = m.builder.constant(np.full((1,), columns - 4, np.int64), "last")
    early = m.op("less", first, last)
    hidden = m.op("exp", m.op("add", x, lowest))
    return m.finish(m.op("where", early, hidden, m.scalar(-1.0)))


@pytest.mark.parametrize(
    "planner", [lambda: CoreChooser(CoreModel(16, 32)), BlockChooser], ids=["cpu", "gpu"]
)
def test_kernels_compute_masks_and_ranges(planner: Callable[[], KernelChooser]) -> None:
    graph = masked(24, 40)
    lowering = lower(graph, LoweringContext(planner(), arena_planner(), FULL), Trace())
    (kernel,) = [s.kernel for s in lowering.placed.steps if s.kernel is not None]
    assert [v.name for v in kernel.operands if v.type.rank > 1] == ["x"]
    section = [part() for part in lowering.weights.parts()]
    packed = np.concatenate(section) if section else np.zeros(0, np.uint8)
    check(graph, (lowering.program, list(lowering.kernels), packed), 1)
    x = np.random.default_rng(0).standard_normal((2, 24, 40)).astype(np.float32)
    reference = evaluate_graph(graph, {"x": x})[graph.outputs[0].name]
    assert (reference[:, 0, 3:36] == 0).all()
    assert (reference[:, :, 36:] == -1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(0, 7), (3, 0)])
def test_constants_of_no_elements_have_no_formula(dtype: type, shape: tuple[int, ...]) -> None:
    m = Model("nothing")
    agree(m.finish(m.transpose(m.builder.constant(np.zeros(shape, dtype), "none"), 1, 0)))
