"""Every strategy of every op computes, on ranks in lockstep, the result of the op's reference."""

from __future__ import annotations

import numpy as np
from tcc.distributed.blocks import LoopBlock, loop_block
from tcc.distributed.free_axes import free_strategies
from tcc.distributed.offers import expr_of
from tcc.distributed.sharding import Partial, Split, local_type
from tcc.distributed.strategies import Strategy, strategies
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply, index_value, literal
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import const, free_vars
from tcc.ir.op import Tolerance
from tcc.ir.types import BOOL, I64, DType, TensorType, integer_limits
from tcc.ops import OPS

from tests.lib.op_matrix.cases import CASES, Case, check, each, reference, rows, some

from .lockstep import Array, on_ranks
from .one_axis import sharded

RANKS = (2, 3, 4)
DIVISIBLE = tuple(case for case in CASES if case.op.expr or case.op.free_axes)
# `scripts/plan_bars --only strategies` checks all samples.
SAMPLES = some(DIVISIBLE, 1)


def one_node(case: Case, strategy: Strategy, ranks: int) -> tuple[Graph, dict[Node, Strategy]]:
    """Returns a graph of the case's node, and its choice of strategies.

    A partial operand is the sum over an input that has one row per rank. Every second operand is a
    constant.
    """
    b = GraphBuilder("g")
    operands: list[Value | None] = []
    choice: dict[Node, Strategy] = {}
    arrays = zip(case.operands, case.types, strategy.operands, strict=True)
    for number, (array, type, sharding) in enumerate(arrays):
        if array is None or type is None:
            operands.append(None)
        elif isinstance(sharding, Partial):
            operands.append(partial_operand(b, type, number, ranks, choice))
        elif isinstance(sharding, Split) and sharding.block:
            operands.append(padded_operand(b, type, number, ranks, sharding, choice))
        elif number % 2 == 0:
            operands.append(b.input(f"x{number}", type))
        else:
            operands.append(b.constant(array, f"c{number}", type.dtype))
    outputs = b.add(case.op, operands, case.sample.attrs)
    node = b.producer(outputs[0])
    assert node is not None
    return b.finish(outputs), {**choice, node: strategy}


def partial_operand(
    b: GraphBuilder, type: TensorType, number: int, ranks: int, choice: dict[Node, Strategy]
) -> Value:
    """Adds an input with one row per rank, and its sum over the rows, which the ranks divide."""
    rows = TensorType(type.dtype, (const(ranks), *type.shape))
    e = ExprBuilder(rows)
    at, (row,) = e.point(type), e.iters(ranks)
    total = e.finish(at, e.read(0, row, *at), over=(row,), monoid="sum")
    (operand,) = b.add(
        OPS["expression"], [b.input(f"x{number}", rows)], OPS["expression"].attrs(total)
    )
    node = b.producer(operand)
    assert node is not None
    choice[node] = Strategy(
        (Split(0),), (Partial("sum"),), ((0, LoopBlock(free_vars(row)[0], 1, 1, ranks)),)
    )
    return operand


def padded_operand(
    b: GraphBuilder,
    type: TensorType,
    number: int,
    ranks: int,
    split: Split,
    choice: dict[Node, Strategy],
) -> Value:
    """Adds an input whose padding the ranks fill with large numbers or NaN."""
    x, e = b.input(f"x{number}", type), ExprBuilder(type)
    at = e.point(type)
    size = type.shape[split.axis]
    is_inside = index_value(at[split.axis], I64) < size
    body = apply("select", is_inside, e.read(0, *at), literal(poison(type.dtype), type.dtype))
    row = OPS["expression"]
    (operand,) = b.add(row, [x], row.attrs(e.finish(at, body)))
    node = b.producer(operand)
    assert node is not None
    block = loop_block(free_vars(at[split.axis])[0], ranks, split)
    assert block is not None
    choice[node] = Strategy((split,), (split,), ((0, block),))
    return operand


def poison(dtype: DType) -> float | int | bool:
    if dtype.is_float:
        return float("nan")
    return True if dtype is BOOL else integer_limits(dtype)[1]


def rows_of(array: Array, ranks: int) -> Array:
    """Returns `ranks` rows whose sum is `array`; the sum is exact if halves of the elements are."""
    rows = np.zeros((ranks, *array.shape), array.dtype)
    rows[0] = array // 2 if array.dtype.kind in "iu" else array / 2
    rows[1] = array - rows[0] if array.dtype.kind in "iu" else array / 2
    return rows


def judge(case: Case, strategy: Strategy, ranks: int, expected: tuple[Array, ...]) -> None:
    graph, choice = one_node(case, strategy, ranks)
    divided = sharded(graph, choice, ranks)
    feeds = {}
    for value in graph.inputs:
        array = case.operands[int(value.name[1:])]
        assert array is not None
        is_partial = isinstance(strategy.operands[int(value.name[1:])], Partial)
        feeds[value.name] = rows_of(array, ranks) if is_partial else array
    kind = tolerance_of(case, strategy, divided)
    for outputs in on_ranks(divided, feeds, ranks):
        check(case, tuple(outputs.values()), expected, kind)


def tolerance_of(case: Case, strategy: Strategy, divided: Graph) -> Tolerance:
    """Returns EXACT if nothing is summed and the divided graph runs the op itself; else the
    tolerance of the op's row."""
    shardings = {*strategy.operands, *strategy.results}
    if shardings & {Partial("sum"), Partial("prod")}:
        return Tolerance.ACCUMULATE
    expr = expr_of(node_of(case))
    if expr is None:
        return Tolerance.EXACT
    sums = any(stage.monoid not in (None, "max", "min") for stage in expr.stages)
    is_same_op = any(node.op is case.op for node in divided.nodes)
    return case.op.tolerance if sums or not is_same_op else Tolerance.EXACT


@each(SAMPLES)
def test_every_strategy_computes_what_the_reference_does(case: Case) -> None:
    judged_strategies(case)


def judged_strategies(case: Case) -> int:
    """Checks all strategies of a sample; returns their number."""
    node = node_of(case)
    expected = reference(case)
    offers = [(n, strategy) for n in RANKS for strategy in strategies_of(node, n)[1:]]
    for ranks, strategy in offers:
        try:
            judge(case, strategy, ranks, expected)
        except Exception as error:
            error.add_note(f"{strategy} on {ranks} ranks")
            raise
    return len(offers)


def strategies_of(node: Node, ranks: int) -> tuple[Strategy, ...]:
    """Returns the strategies of a node, where on 4 ranks its readers ask for groups, copies and
    large blocks."""
    expr = expr_of(node)
    wishes = tuple(
        (number, split)
        for number, value in enumerate(node.outputs)
        for axis, size in enumerate(value.type.shape)
        for split in (Split(axis, 2), Split(axis, copies=2), Split(axis, block=size.const // 2 + 1))
        if ranks == 4 and has_blocks(value.type, split, ranks)
    )
    if expr is None:
        return free_strategies(node, ranks, wishes, ())
    return strategies(expr, ranks, wishes)


def has_blocks(type: TensorType, split: Split, ranks: int) -> bool:
    try:
        local_type(type, split, ranks)
    except ValueError:
        return False
    return True


def node_of(case: Case) -> Node:
    b = GraphBuilder("g")
    values = [None if t is None else b.input(f"x{n}", t) for n, t in enumerate(case.types)]
    node = b.producer(b.add(case.op, values, case.sample.attrs)[0])
    assert node is not None
    return node


# Rows whose samples offer only the strategy `whole`, and the reason.
_TYPE = "no collective takes its results' type"
OFFER_NOTHING = {
    "pack": "elements that share a byte are no block of an axis",
    "random_bits": _TYPE,
    "to_narrow": _TYPE,
    "unpack": _TYPE,
}


def test_rows_that_offer_nothing_are_listed() -> None:
    offers = {
        op.name: any(
            len(strategies_of(node_of(case), ranks)) > 1 for case in row for ranks in RANKS
        )
        for op, row in rows(DIVISIBLE).items()
    }
    assert {name for name, offer in offers.items() if not offer} == OFFER_NOTHING.keys()
