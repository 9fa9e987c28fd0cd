"""Matmuls of rows with data-dependent matrices: layers of experts."""

from __future__ import annotations

from types import MappingProxyType

from tcc.ir.graph import Graph
from tcc.ir.types import F32, I64
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs

from tests.passes.fuse.models import Model

EXPERTS = 8


def layer(tokens: int, rows: int, depth: int, width: int) -> Graph:
    """Returns, for each token, its rows times one expert's weights, and the result times another
    matrix of the same expert."""
    m = Model("layer")
    x = m.input("x", tokens, rows, depth)
    index = m.input("index", tokens, dtype=I64)
    first, second = m.weight(EXPERTS, depth, width), m.weight(EXPERTS, width, depth)
    up, down = (m.op("gather", w, index, attrs=AxisAttrs(0)) for w in (first, second))
    hidden = m.op("relu", m.op("matmul", x, up))
    return m.finish(m.op("matmul", hidden, down))


def several(tokens: int, top: int, depth: int, width: int) -> Graph:
    """Returns, for each token, the sum of its matmuls with the weights of several experts."""
    m = Model("several")
    x = m.input("x", tokens, 1, 1, depth)
    index = m.input("index", tokens, top, dtype=I64)
    share = m.input("share", tokens, top, 1, 1, dtype=F32)
    matrices = m.op("gather", m.weight(EXPERTS, depth, width), index, attrs=AxisAttrs(0))
    products = m.op("mul", m.op("matmul", x, matrices), share)
    return m.finish(m.op("reduce_sum", products, attrs=ReduceAttrs((1,), False)))


def rows_of_a_table(tokens: int, depth: int, width: int) -> Graph:
    """Returns rows that are gathered one by one, times weights: no data-dependent matrices."""
    m = Model("rows_of_a_table")
    index = m.input("index", tokens, dtype=I64)
    vectors = m.op("gather", m.weight(EXPERTS, depth), index, attrs=AxisAttrs(0))
    return m.finish(m.op("matmul", vectors, m.weight(depth, width)))


GRAPHS = MappingProxyType(
    {
        "one_row": lambda: layer(3, 1, 64, 96),
        "many_rows": lambda: layer(3, 40, 64, 96),
        "several": lambda: several(4, 2, 64, 96),
    }
)
