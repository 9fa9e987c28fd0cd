"""Constants that follow from the places of their elements are computed, not read.

    %y = gather(%x, [[0,0,1],[0,1,2],[1,2,3],..])    y[i, j] = x[max(min(i + j - 1, n - 1), 0)]
    %y = add(%x, [[0, -inf], [0, 0]])                y[i, j] = x[i, j] + select(j < i + 1, 0, -inf)

As data, indices hide from a kernel in which order it reads, and masks what it may leave out; both
cost loads.  `index_forms` finds the formulas.  Where an index becomes an expression, a read at
places that data choose becomes an ordinary one.  Constants that are values themselves (masks,
positions) are computed where the node is predicted to take less time then.  Factors of
contractions, operands of windows and parts of concatenations without a kernel stay as they are.

Requires checks of indices in their place.  Establishes that no node reads at places that a constant
with a formula chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from tcc.ir.expr import Expr, Stage, extent
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import (
    IndexValue,
    Read,
    Scalar,
    StageRef,
    apply,
    cast,
    children,
    index_value,
    indices_in,
    literal,
    read,
    rebuild,
    uncast,
    walk,
)
from tcc.ir.graph import Graph, GraphBuilder, Node, walk_graphs
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, Indices, Var, as_int, free_vars, of_atom, substitute, within
from tcc.ir.op import Array, Trait
from tcc.ir.types import BOOL, I32, I64, DType
from tcc.ops import OPS
from tcc.passes.fuse.compose import compose, drop_unused, node_expr
from tcc.passes.fuse.concat_in_place import find_joins
from tcc.passes.fuse.partition import seen_by_others
from tcc.passes.graph.index_forms import condition_form, index_form
from tcc.schedule.backend import KernelModel
from tcc.schedule.nest import multiplied

# Places at which a scalar of constants is evaluated, by elements of these constants.
_PLACES = 4
# Elements by which arrays of more than two values are told.
_FIRST = 1 << 12
# Whole numbers up to this size are exact in f32.
_EXACT = 1 << 24


def compute_constants(graph: Graph, model: KernelModel) -> Graph:
    """`graph` with expressions for nodes whose constants follow from the places of their elements;
    itself where there is none.  `model` gives the prices of nodes."""
    joined = {
        node
        for part in walk_graphs(graph)
        for node in find_joins(part, seen_by_others(part), model.limits.launch_bytes)
    }
    return rewritten(graph, partial(_visit, joined, model))


def _visit(
    joined: Collection[Node], model: KernelModel, b: GraphBuilder, node: Node, inputs: Inputs
) -> Replacement:
    expr = node_expr(node)
    if expr is None or not node.outputs or Trait.WINDOW in node.op.traits or node in joined:
        return None
    arrays = {
        number: array
        for number, value in enumerate(inputs)
        if value is not None and not value.type.dtype.is_handle
        if (array := b.array(value)) is not None and array.size > 1
    }
    if not arrays:
        return None
    forms = _Forms(expr, arrays)
    new, used = drop_unused(forms.expr())
    if new == expr:
        return None
    row = OPS["expression"]
    made = Node(row, row.attrs(new), tuple(inputs[n] for n in used), node.outputs, node.loc)
    if not forms.streams and not _saves(node, made, b, model):
        return None
    return b.add(row, made.inputs, made.attrs)


def _saves(old: Node, new: Node, b: GraphBuilder, model: KernelModel) -> bool:
    """Whether a kernel of `new` is predicted to take less time than one of `old`; so it is where
    there are no prices."""
    seconds = []
    for node in (old, new):
        expr, operands = compose([node], node.outputs, model.limits)
        seconds.append(model.alone(expr, [b.array(v) is not None for v in operands]))
    before, after = seconds
    return before is None or after is None or after < before


# ---- the formulas of a node's constants ---------------------------------------------------------


class _Forms:
    """The expression of a node with formulas in place of its constants; `streams` tells whether
    a read is at places that no data choose any more."""

    def __init__(self, expr: Expr, arrays: Mapping[int, Array]) -> None:
        self._expr, self._arrays = expr, arrays
        self._done: dict[Scalar, Scalar] = {}
        self._pure: dict[Scalar, bool] = {}
        self.streams = False

    def expr(self) -> Expr:
        """The whole expression."""
        return replace(self._expr, stages=tuple(map(self._stage, self._expr.stages)))

    def _stage(self, stage: Stage) -> Stage:
        factors = multiplied(stage) if stage.reduce else None
        if factors is not None:
            kept = (s for s in (factors.a, factors.b) if isinstance(uncast(s), Read))
            self._done.update((s, s) for s in kept if self._is_pure(s))
        return replace(stage, body=tuple(map(self._formed, stage.body)))

    def _formed(self, scalar: Scalar) -> Scalar:
        if scalar not in self._done:
            form = self._form(scalar) if self._is_pure(scalar) else None
            self._done[scalar] = form or self._rebuilt(scalar)
        return self._done[scalar]

    def _rebuilt(self, scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Read) or not scalar.indirect:
            return rebuild(scalar, self._formed)
        kept: list[tuple[Var, Scalar]] = []
        known: dict[Var, Index] = {}
        for var, chosen in scalar.indirect:
            form = self._formed(chosen)
            if isinstance(form, IndexValue) and not isinstance(chosen, IndexValue):
                known[var] = form.index
            else:
                kept.append((var, form))
        self.streams |= bool(known)
        at = tuple(substitute(index, known) for index in scalar.indices)
        return read(
            scalar.source, at, scalar.dtype, fill=self._fill(scalar, at, kept), indirect=tuple(kept)
        )

    def _fill(self, node: Read, at: Indices, kept: Sequence[object]) -> bool | int | float | None:
        """The fill of a read at other indices, which needs none where they are inside."""
        source = node.source
        typed = (
            self._expr.params[source]
            if isinstance(source, int)
            else self._expr.stages[source.stage].types[source.component]
        )
        assert typed is not None
        inside = not kept and all(within(i, n) for i, n in zip(at, typed.shape, strict=True))
        return None if inside else node.fill

    def _is_pure(self, scalar: Scalar) -> bool:
        """Whether a scalar is made of constants at places that iterators of known extent choose."""
        for node in walk(scalar):
            if node not in self._pure:
                ends = (v.extent for i in indices_in(node) for v in free_vars(i))
                own = not isinstance(node, Read) or node.source in self._arrays
                still = all(e is not None and as_int(e) is not None for e in ends)
                self._pure[node] = own and still and all(self._pure[c] for c in children(node))
        return self._pure[scalar]

    def _form(self, scalar: Scalar) -> Scalar | None:
        """The formula of a scalar of constants; None where it reads none or has no formula."""
        nodes = walk(scalar)
        sources = {n.source for n in nodes if isinstance(n, Read)}
        bound = {v for n in nodes if isinstance(n, Read) for v, _ in n.indirect}
        used = (v for n in nodes for i in indices_in(n) for v in free_vars(i))
        iters = tuple(v for v in dict.fromkeys(used) if v not in bound)
        places = prod(as_int(extent(v)) or 0 for v in iters)
        if not iters or places > _PLACES * sum(self._arrays[n].size for n in sources):
            return None
        stage = Stage(iters, (), None, (scalar,))
        operands = [self._arrays.get(n) for n in range(len(self._expr.params))]
        (values,) = evaluate_expr(Expr(self._expr.params, (stage,), (StageRef(0),)), operands)
        return _form_of(values, tuple(map(of_atom, iters)), scalar.dtype)


def _form_of(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    if dtype is BOOL:
        return condition_form(values, at)
    if dtype in (I32, I64):
        form = index_form(values, at)
        return None if form is None else index_value(form, dtype)
    return _two_valued(values, at, dtype) or _whole(values, at, dtype) if dtype.is_float else None


def _whole(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    """An index that the whole numbers `values` are."""
    signed = (values == 0) & np.signbit(values)
    first = values.reshape(-1)[:_FIRST]
    if (first != np.rint(first)).any() or (values != np.rint(values)).any():
        return None
    if not (np.abs(values) <= _EXACT).all() or signed.any():
        return None
    form = index_form(values.astype(np.int64), at)
    return None if form is None or not form.terms else cast(index_value(form, I32), dtype)


def _two_valued(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    """A choice between the two numbers that `values` are."""
    bits = values.view(f"u{values.itemsize}")
    if len(np.unique(bits.reshape(-1)[:_FIRST])) > 2 or np.isnan(values).any():
        return None
    first = bits.reshape(-1)[0]
    mask = bits == first
    if mask.all() or len(np.unique(bits[~mask])) > 1:
        return None
    test = condition_form(mask, at)
    if test is None:
        return None
    one, other = (values.reshape(-1)[n].item() for n in (0, int(mask.argmin())))
    return apply("select", test, literal(one, dtype), literal(other, dtype))
