"""Every strategy of every op computes, on ranks in lockstep, what the op's reference computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tcc.distributed.greedy import expr_of
from tcc.distributed.mesh import Mesh
from tcc.distributed.shard import sharded
from tcc.distributed.sharding import Partial, Split
from tcc.distributed.strategies import Strategy, strategies, whole
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.op import Tolerance
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tests.lib.op_matrix.cases import CASES, Case, check, each, reference

from .lockstep import Array, on_ranks

RANKS = (2, 3, 4)
DIVIDED = [case for case in CASES if case.op.expr is not None]


def one_node(case: Case, strategy: Strategy, ranks: int) -> tuple[Graph, dict[Node, Strategy]]:
    """A graph of the case's node, and its choice of strategies.

    An operand that is a part of a sum is the sum of an input with a row for each rank.  Every
    second operand is a constant.
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
    rows = b.input(f"x{number}", TensorType(type.dtype, (b_const(ranks), *type.shape)))
    (operand,) = b.add(OPS["reduce_sum"], [rows], OPS["reduce_sum"].attrs(axes=(0,), keep=False))
    node = b.producer(operand)
    assert node is not None
    choice[node] = Strategy((Split(0),), (Partial("sum"),))
    return operand
