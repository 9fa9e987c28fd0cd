"""Replaces constants by formulas, if their elements can be computed from the elements' indices.

    %y = gather(%x, [[0,0,1],[0,1,2],[1,2,3],..])    y[i, j] = x[max(min(i + j - 1, n - 1), 0)]
    %y = add(%x, [[0, -inf], [0, 0]])                y[i, j] = x[i, j] + select(j < i + 1, 0, -inf)

If a table has the indices, the compiler does not know in which order a kernel reads.  If a table
has a mask, the compiler does not know which terms are masked.  Tables also cost loads.
`index_forms` finds the formulas.

If an index becomes a formula, a data-dependent read becomes an ordinary read.  Constants that are
values themselves, such as masks and positions, are computed if the node is then predicted to take
no more time.  A number that a condition selects becomes a literal, because its value decides which
terms of a sum count.  Factors of contractions, operands of windows, parts of concatenations without
a kernel, and updates of states stay as they are.

Requires that checks of indices are in place.  Establishes that no node has a data-dependent read
whose indices are a constant with a formula.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import TypeAlias

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder, Stage, known_extent
from tcc.ir.expr.comparisons import index_of
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import (
    Apply,
    Read,
    Scalar,
    Source,
    StageRef,
    apply,
    cast,
    children,
    index_value,
    indices_in,
    literal,
    read,
    rebuild,
    substitute_indices,
    uncast,
    walk,
)
from tcc.ir.graph import ConstantStore, Graph, GraphBuilder, Handle, Node, walk_graphs
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import (
    Indices,
    Var,
    as_int,
    bounds,
    const,
    free_vars,
    iterator,
    of_atom,
    step_in,
    substitute,
    var_of,
    within,
)
from tcc.ir.op import Array, Trait
from tcc.ir.types import BOOL, I32, I64, DType, TensorType
from tcc.ops import OPS
from tcc.ops.formula import choose
from tcc.ops.shapes import replaced
from tcc.passes.choose.content import site
from tcc.passes.fuse.compose import compose, drop_unused, node_expr
from tcc.passes.fuse.concat_in_place import find_joins
from tcc.passes.fuse.node_kinds import seen_by_others
from tcc.passes.graph.emit import express
from tcc.passes.graph.index_forms import Ends, IndexForm, condition_form, index_form
from tcc.schedule.backend import KernelModel
from tcc.schedule.nest import multiplied
from tcc.zipped import zip_equal

# A scalar is evaluated only if its values are at most _PLACES times as many as the elements of the
# constants that it reads.
_PLACES = 4
# About this many elements are checked first. They reject most arrays without a formula, before all
# elements are computed.
_FIRST = 1 << 12
# Maps a scalar and the constants that it reads to its formula.
_Formulas: TypeAlias = dict[tuple[Scalar, tuple[Handle, ...]], Scalar | None]
# Whole numbers up to this size are exact in f32.
_EXACT = 1 << 24


def compute_constants(graph: Graph, model: KernelModel) -> Graph:
    """Returns `graph` with constants replaced by formulas of their elements' indices.

    A node that read such a constant becomes an expression that computes its elements.  Returns
    `graph` itself if no constant is replaced.  `model` gives the prices of nodes.
    """
    fixed: set[Node] = set()
    for part in walk_graphs(graph):
        updated = {result for result, _ in part.aliases}
        fixed.update(n for n in part.nodes if not updated.isdisjoint(n.outputs))
        fixed.update(find_joins(part, seen_by_others(part), model.limits.launch_bytes))
    return rewritten(graph, partial(_visit, fixed, model, {}))


def _visit(
    fixed: Collection[Node],
    model: KernelModel,
    formulas: _Formulas,
    b: GraphBuilder,
    node: Node,
    inputs: Inputs,
) -> Replacement:
    expr = node_expr(node)
    if any(v is not None and v.dtype.is_handle for v in (*node.inputs, *node.outputs)):
        return None  # Expressions have no operands of strings or lists.
    if expr is None or not node.outputs or Trait.WINDOW in node.op.traits or node in fixed:
        return None
    constants = {
        number: handle for number, value in enumerate(inputs) if (handle := b.common(value))
    }
    if not constants:
        return None
    forms = _Forms(expr, constants, b.store, formulas)
    formed = forms.expr()
    if formed.stages == expr.stages:
        return None
    new, numbers = drop_unused(formed)
    row = OPS["expression"]
    if not forms.streams:
        read_still = tuple(inputs[n] for n in numbers)
        expression_node = Node(row, row.attrs(new), read_still, node.outputs, node.loc)
        saves = _saves(replace(node, inputs=inputs), expression_node, b, model)
        return b.add(row, read_still, expression_node.attrs) if saves else None
    extended = list(inputs)
    for source, repeated in forms.extended:
        extended += express(b, repeated, extended[source])
    return b.add(row, [extended[n] for n in numbers], row.attrs(new))


def _saves(old: Node, new: Node, b: GraphBuilder, model: KernelModel) -> bool:
    """Returns True if a kernel of `new` is predicted to take no more time than a kernel of `old`.

    `old` reads a constant that `new` computes.  Returns True also if there are no prices.
    """
    kernels = []
    for node in (old, new):
        expr, operands = compose([node], node.outputs, model.limits)
        kernels.append((expr, tuple(b.handle(v) is not None for v in operands)))
    before, after = (model.alone(*kernel) for kernel in kernels)
    if before is None or after is None:
        return True
    return model.ledger.either(
        lambda: site("constants", *kernels),
        ("computed", [after]),
        ("read", lambda: [before]),
        place=old.loc,
    )


# ---- the formulas of a node's constants ---------------------------------------------------------


class _Forms:
    """The expression of a node, with formulas in place of its constants.

    `streams` is True if a data-dependent read became an ordinary read.  `extended` has a pair for
    each additional operand: the index of an operand, and an expression that computes the additional
    operand from that operand.
    """

    def __init__(
        self,
        expr: Expr,
        constants: Mapping[int, Handle],
        store: ConstantStore,
        formulas: _Formulas,
    ) -> None:
        """Starts from `expr`, whose operands `constants` are in `store`.

        `formulas` caches formulas for other nodes with the same constants.
        """
        self._expr, self._constants, self._formulas = expr, constants, formulas
        self._store = store
        self._formed_of: dict[Scalar, Scalar] = {}
        self._pure: dict[Scalar, bool] = {}
        self._params = list(expr.params)
        self.extended: list[tuple[int, Expr]] = []
        self.streams = False

    def expr(self) -> Expr:
        """Returns the complete expression."""
        stages = tuple(map(self._stage, self._expr.stages))
        return Expr(tuple(self._params), stages, self._expr.outputs)

    def _stage(self, stage: Stage) -> Stage:
        factors = multiplied(stage) if stage.reduce else None
        if factors is not None:
            plain_factors = (s for s in (factors.a, factors.b) if isinstance(uncast(s), Read))
            self._formed_of.update((s, s) for s in plain_factors if self._is_pure(s))
        return replace(stage, body=tuple(map(self._formed, stage.body)))

    def _formed(self, scalar: Scalar) -> Scalar:
        if scalar not in self._formed_of:
            form = self._form(scalar) if self._is_pure(scalar) else None
            self._formed_of[scalar] = form or self._rebuilt(scalar)
        return self._formed_of[scalar]

    def _rebuilt(self, scalar: Scalar) -> Scalar:
        match scalar:
            case Apply(function="select", args=(test, *values)):
                literals = (self._number(v) or self._formed(v) for v in values)
                return apply("select", self._formed(test), *literals)
            case Read(indirect=(_, *_)):
                return self._formed_read(scalar)
            case Read(dtype=dtype) if dtype in (I32, I64):
                return self._number(scalar) or scalar
            case _:
                return _as_index(rebuild(scalar, self._formed))

    def _formed_read(self, scalar: Read) -> Scalar:
        """Returns a data-dependent read with formulas in place of indices that have a formula."""
        indirect: list[tuple[Var, Scalar]] = []
        source, at = scalar.source, scalar.indices
        for var, data_index in scalar.indirect:
            form = self._index_form(data_index) if self._is_pure(data_index) else None
            if form is None:
                indirect.append((var, self._formed(data_index)))
                continue
            self.streams = True
            axis = next((n for n, i in enumerate(at) if var_of(i) is var), None)
            if axis is not None and isinstance(source, int) and _repeats(form):
                source, first = self._extended(source, axis, form), bounds(form.plain)[0]
                at = tuple(substitute(i, {var: form.plain - (first or 0)}) for i in at)
            else:
                at = tuple(substitute(i, {var: form.index}) for i in at)
        inside = not indirect and all(
            within(i, n) for i, n in zip_equal(at, self._type(source).shape)
        )
        fill = None if inside else scalar.fill
        return read(source, at, scalar.dtype, fill=fill, indirect=tuple(indirect))

    def _number(self, scalar: Scalar) -> Scalar | None:
        """If `scalar` reads a constant with a single element, returns this element as a literal.

        Returns None for any other scalar.
        """
        if not isinstance(scalar, Read) or not isinstance(scalar.source, int):
            return None
        handle = self._constants.get(scalar.source)
        if handle is None or self._type(scalar.source).count != 1 or scalar.dtype.is_narrow:
            return None
        return literal(self._store.get(handle).item(), scalar.dtype)

    def _type(self, source: Source) -> TensorType:
        if isinstance(source, StageRef):
            return self._expr.stages[source.stage].types[source.component]
        param = self._params[source]
        assert param is not None
        return param

    def _extended(self, source: int, axis: int, form: IndexForm) -> int:
        """Returns the index of a new operand, which extends operand `source` along an axis.

        The new operand contains the elements that a clipped or circular index would read again.  So
        it can be read at indices that are linear in the loops.
        """
        low, high = bounds(form.plain)
        assert low is not None
        assert high is not None
        b = ExprBuilder(self._type(source))
        i = b.iters(*replaced(self._type(source).shape, axis, const(high - low + 1)))
        place = form.at(i[axis] + low)
        pair = source, b.finish(i, b.read(0, *replaced(i, axis, place)))
        if pair not in self.extended:
            self.extended.append(pair)
            self._params += pair[1].types
        return len(self._expr.params) + self.extended.index(pair)

    def _is_pure(self, scalar: Scalar) -> bool:
        """Returns True if a scalar depends only on constants and on iterators of numeric extent."""
        for node in walk(scalar):
            if node not in self._pure:
                ends = (v.extent for i in indices_in(node) for v in free_vars(i))
                constant = not isinstance(node, Read) or node.source in self._constants
                static = all(e is not None and as_int(e) is not None for e in ends)
                self._pure[node] = (
                    constant and static and all(self._pure[c] for c in children(node))
                )
        return self._pure[scalar]

    def _form(self, scalar: Scalar) -> Scalar | None:
        """Returns the formula of a scalar of constants; None if it has none."""
        dtype = scalar.dtype
        if not (dtype in (BOOL, I32, I64) or (dtype.is_float and not dtype.is_narrow)):
            return None
        sources = self._sources(scalar)
        key = scalar, tuple(self._constants[n] for n in sources)
        if key not in self._formulas:
            few = None if dtype is BOOL else self._values(scalar, sources, _FIRST)
            plausible = few is None or _may_have_form(few[0])
            values = self._values(scalar, sources) if plausible else None
            self._formulas[key] = None if values is None else _form_of(*values, dtype)
        return self._formulas[key]

    def _index_form(self, scalar: Scalar) -> IndexForm | None:
        values = self._values(scalar, self._sources(scalar))
        return None if values is None else index_form(*values)

    def _sources(self, scalar: Scalar) -> list[int]:
        """Returns the operands that a scalar reads."""
        sources = (n.source for n in walk(scalar) if isinstance(n, Read))
        return [n for n in dict.fromkeys(sources) if isinstance(n, int)]

    def _values(
        self, scalar: Scalar, sources: Sequence[int], limit: int | None = None
    ) -> tuple[Array, Indices] | None:
        """Evaluates a scalar of constants at all values of its iterators.

        Returns (values, iterators), where `values` has an axis for each iterator.  With `limit`,
        only the first values along each axis are computed, about `limit` in all.  Returns None if
        the scalar reads no constant, has many more values than the constants have elements, or is
        undefined at some positions.
        """
        nodes = walk(scalar)
        bound = {v for n in nodes if isinstance(n, Read) for v, _ in n.indirect}
        variables = (v for n in nodes for i in indices_in(n) for v in free_vars(i))
        iters = tuple(v for v in dict.fromkeys(variables) if v not in bound)
        sizes = [known_extent(v) or 0 for v in iters]
        most_places = _PLACES * sum(self._type(n).count or 0 for n in sources)
        if not iters or not 0 < prod(sizes) <= most_places:
            return None
        at = tuple(map(of_atom, iters))
        if limit is not None:
            room = ceil(limit ** (1 / len(iters)))
            short = [iterator(v.name, min(n, room)) for v, n in zip_equal(iters, sizes)]
            scalar = substitute_indices(scalar, dict(zip_equal(iters, short)))
            iters = tuple(free_vars(*short))
        stage = Stage(iters, (), None, (scalar,))
        operands = [
            self._store.get(self._constants[n]) if n in sources else None
            for n in range(len(self._expr.params))
        ]
        try:
            (values,) = evaluate_expr(Expr(self._expr.params, (stage,), (StageRef(0),)), operands)
        # Some index is inside its axis only if a condition around the scalar holds.
        except IndexError:
            return None
        return values, at


def _form_of(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    if dtype is BOOL:
        return condition_form(values, at)
    if dtype.is_integer:
        return _integer_index(values, at, dtype)
    return _two_valued(values, at, dtype) or _integer_index(values, at, dtype)


def _may_have_form(values: Array) -> bool:
    """Returns True if an array has at most two distinct values, or integers that may have a form.

    Along a line of n elements, a sum of digits changes by one step for each of its digits, which
    are at most log2(n) + 1.  A remainder doubles the number of steps.  A clipped end adds one step.
    """
    if len(np.unique(values)) <= 2:
        return True
    with np.errstate(invalid="ignore"):  # the remainder of an infinity is invalid, and no integer
        if not bool((values % 1 == 0).all()):
            return False
    steps = np.sort(np.diff(values.reshape(-1, values.shape[-1])))
    kinds = 1 + np.count_nonzero(np.diff(steps), axis=-1).max(initial=0)
    return bool(kinds <= 2 * values.shape[-1].bit_length() + 2)


def _as_index(scalar: Scalar) -> Scalar:
    """Returns a sum or product of index values as a single index value."""
    if not isinstance(scalar, Apply) or scalar.dtype not in (I32, I64):
        return scalar
    index = index_of(scalar)
    return scalar if index is None else index_value(index, scalar.dtype)


def _repeats(form: IndexForm) -> bool:
    """Returns True if an index is clipped or wraps around, and several positions have the same
    index."""
    loops = free_vars(form.plain)
    low, high = bounds(form.plain)
    even = all(step_in(form.plain, v) is not None for v in loops)
    if form.ends is Ends.OPEN or not even or low is None or high is None:
        return False
    return high - low + 1 < prod(known_extent(v) or 0 for v in loops)


def _two_valued(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    """Returns a selection between the two distinct numbers of `values`; None for other values."""
    bits = values.view(f"u{values.itemsize}")
    if np.isnan(values).any():
        return None
    first = bits.reshape(-1)[0]
    mask = bits == first
    if mask.all() or len(np.unique(bits[~mask])) > 1:
        return None
    test = condition_form(mask, at)
    if test is None:
        return None
    one, other = (values.reshape(-1)[n].item() for n in (0, int(mask.argmin())))
    return choose(test, literal(one, dtype), other)


def _integer_index(values: Array, at: Indices, dtype: DType) -> Scalar | None:
    """Returns a scalar that computes the integers `values` from the indices `at`.

    Returns None for other values, and for values that are all equal.
    """
    if values.dtype.kind == "f":
        largest = min(_EXACT, float(np.finfo(values.dtype).max))  # f16 cannot hold _EXACT
        if not (np.abs(values) <= largest).all() or (values % 1 != 0).any():
            return None
        if (np.signbit(values) & (values == 0)).any():
            return None
    form = index_form(values.astype(np.int64), at)
    if form is None or not form.index.terms:
        return None
    return cast(index_value(form.index, dtype if dtype.is_integer else I32), dtype)
