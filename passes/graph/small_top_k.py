"""Finds the few largest elements of a row without sorting it.

    %v, %i = top_k(%x) {k=2}   ->   m0, i0 = argmax(j) x[j] ;  m1, i1 = argmax(j != i0) x[j]

The gates of mixtures of experts select one to eight of few elements.  On a target without host
functions, a reduction finds each selected element.  Requires nothing.  Establishes that no top_k of
at most eight largest elements is left.  Equal elements keep their order, and NaN comes first.
"""

from collections.abc import Sequence

from tcc.ir.expr import MONOIDS, Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, apply, index_value
from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.types import BOOL, I64, TensorType
from tcc.ops.data.data_dependent import TopKAttrs
from tcc.ops.formula import choose, chosen
from tcc.ops.shapes import replaced
from tcc.passes.graph.emit import express
from tcc.zipped import zip_equal

_FEW = 8


def small_top_k(graph: Graph) -> Graph:
    """Returns `graph` with reductions in place of each `top_k` of few elements.

    Returns `graph` itself if nothing is replaced.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    attrs = node.attrs
    if not isinstance(attrs, TopKAttrs) or not attrs.largest or inputs[0] is None:
        return None
    count, x = as_int(attrs.k), inputs[0].type
    if count is None or not 1 <= count <= _FEW or x.dtype is BOOL:
        return None
    return express(b, _expr(x, attrs.axis, count), inputs[0])


def _expr(x: TensorType, axis: int, count: int) -> Expr:
    b = ExprBuilder(x)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    none = MONOIDS["argmax"].identity((x.dtype, I64))
    best: list[StageRef] = []
    for _ in range(count):
        at = b.iters(*before, *after)
        (j,) = b.iters(x.shape[axis])
        place = index_value(j, I64)
        terms: list[Scalar] = [b.read(0, *at[:axis], j, *at[axis:]), place]
        for earlier in best:
            is_taken = apply("eq", place, b.read(_place(earlier), *at))
            terms = [choose(is_taken, e, t) for e, t in zip_equal(none, terms)]
        best.append(b.stage(at, *terms, over=(j,), monoid="argmax"))

    def concatenated(parts: Sequence[StageRef]) -> StageRef:
        at = b.iters(*before, count, *after)
        line = replaced(at, axis)
        return b.stage(at, chosen(at[axis], [b.read(s, *line) for s in parts]))

    return b.done(concatenated(best), concatenated([*map(_place, best)]))


def _place(best: StageRef) -> StageRef:
    return StageRef(best.stage, 1)
