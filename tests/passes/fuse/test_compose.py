"""What composing a group costs, which the partition asks for with every node that might join."""

from __future__ import annotations

from unittest.mock import patch

from tcc.ir.graph import GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.fuse import compose


def test_a_chain_of_nodes_is_inlined_without_being_rebuilt() -> None:
    """A stage that reads another element by element takes its body over as it is."""
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
