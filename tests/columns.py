"""A small hand-written partition of a graph: ranks divide the columns of every matmul's
constant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ops import OPS
from tcc.ops.collective import CollectiveAttrs
from tcc.passes.graph.emit import emit
from tcc.passes.graph.fold_constants import fold_constants


def by_columns(ranks: int) -> Callable[[Graph], Graph]:
    """Returns a step that divides the columns of constant matrices whose column count `ranks`
    divides."""
    return lambda graph: fold_constants(rewritten(graph, partial(_divided, ranks)))


def _divided(ranks: int, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    if node.op.name != "matmul" or inputs[0] is None or inputs[1] is None:
        return None
    x, w = inputs[0], b.array(inputs[1])
    if w is None or w.ndim != 2 or w.shape[1] % ranks:
        return None
    return [all_columns(b, emit(b, "matmul", x, own_columns(b, inputs[1], w, ranks)), ranks)]


def own_columns(b: GraphBuilder, value: Value, w: np.ndarray[Any, Any], ranks: int) -> Value:
    """Returns a rank's columns of a constant, negated twice so that constant folding has work on
    every rank."""
    parts = [np.ascontiguousarray(part) for part in np.split(w, ranks, 1)]
    columns_of_ranks = b.constant_per_rank(parts, f"{value.name}.columns", sources=b.sources(value))
    return emit(b, "neg", emit(b, "neg", columns_of_ranks))


def all_columns(b: GraphBuilder, own: Value, ranks: int) -> Value:
    """Returns the columns of all ranks side by side."""
    row, shape = OPS["all_gather"], own.type.shape
    last = len(shape) - 1
    to_front = emit(b, "transpose", own, perm=(last, *range(last)))
    (gathered,) = b.add(row, [to_front], CollectiveAttrs(ranks))
    return emit(b, "transpose", gathered, perm=(*range(1, last + 1), 0))
