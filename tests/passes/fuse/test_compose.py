"""The cost of composing a group stays low, because the partition composes once for each candidate
node."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from tcc.ir.graph import GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.passes.fuse import compose
from tcc.schedule.limits import TYPICAL_LIMITS


def test_a_chain_of_nodes_is_inlined_without_being_rebuilt() -> None:
    """A stage that reads another stage elementwise takes over its body unchanged."""
    builder = GraphBuilder("chain")
    value = first = builder.input("x", tensor(F32, 4, 5))
    for _ in range(60):
        (value,) = builder.add(OPS["exp"], (value,), None)
    graph = builder.finish([value])
    with patch.object(compose, "substitute_indices") as substituted:
        expr, operands = compose.compose(graph.nodes, graph.outputs)
    assert len(expr.stages) == 1
    assert operands == (first,)
    substituted.assert_not_called()


@pytest.mark.parametrize(
    ("readers", "exchange", "stored"),
    [
        (2, 0.3, True),  # 3 operations against 8 bytes
        (2, 0.4, False),
        (3, 0.4, True),  # 6 operations against 12 bytes
        (3, 0.6, False),
    ],
)
def test_work_is_repeated_where_that_takes_less_than_to_store_it(
    readers: int, exchange: float, stored: bool
) -> None:
    builder = GraphBuilder("repeated")
    x, y = (builder.input(name, tensor(F32, 4, 5)) for name in "xy")
    (work,) = builder.add(OPS["add"], (x, y), None)
    names = ("reduce_sum", "reduce_max", "reduce_min")[:readers]
    results = [builder.add(OPS[n], (work,), ReduceAttrs((1,), False))[0] for n in names]
    graph = builder.finish(results)
    limits = replace(TYPICAL_LIMITS, exchange=exchange)
    expr, _ = compose.compose(graph.nodes, graph.outputs, limits)
    assert len(expr.stages) == readers + stored
