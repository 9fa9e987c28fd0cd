"""Folds constant factors and shifts behind linear nodes into the constant operands of these nodes.

    %a = conv(%x, %w) ; %b = batch_normalization(%a, ...)      %b = conv(%x, %w', %bias')
    %a = matmul(%x, %w) ; %b = mul(%a, %scale)                 %b = matmul(%x, %w')
    %b = batch_normalization(%x, ...)                          %a = mul(%x, %s) ; %b = add(%a, %t)
    %a = mul(%x, 2.5) ; %b = matmul(%y, %a)                    %c = matmul(%y, %x) ; mul(%c, 2.5)

Nodes are recognised by their expressions alone.  A map computes x * scale + shift for every element
x, with constant scale and shift.  A node is linear in a set of constant operands if every term of
its results has exactly one of them as a factor.  There are three foldings:

- The scale of a map behind a linear node is folded into the node's set of constant operands.  Each
  element of these operands must affect only results with the same scale.
- The shift of a map behind a node is folded into an operand that the node adds unchanged, or into a
  bias that the op accepts and the node lacks.
- A scalar factor in front of a node moves behind it, if the node has fewer results than the scalar
  multiplies.

New constants are computed in f64 and rounded once.

Requires folded constants.  Establishes that no scale of f32 or f64 that could be folded is left
directly behind a linear node, and that a map has at most two operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    Const,
    Scalar,
    apply,
    argument,
    cast,
    children,
    literal,
    replaced,
    uncast,
    walk,
)
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, uses, walk_graphs, walk_nodes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, nonnegative
from tcc.ir.op import Array, OpSpec, Types
from tcc.ir.region import Factor, Region, RegionStage, shape_of, widens
from tcc.ir.region.affine import Size, loops_of, units
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import (
    depends,
    drop_unused,
    inlined,
    loop_maps,
    mapped,
    renumbered,
    spliced,
    without_unused,
)
from tcc.ir.region.neutral import folded
from tcc.ir.types import I64, TensorType, element_count
from tcc.known import all_known
from tcc.passes.derive.algebra.cost import count
from tcc.passes.derive.algebra.fold import evaluated
from tcc.passes.derive.algebra.terms import WIDE, accesses, is_near_one, loops_of_factors
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.emit import emit
from tcc.zipped import zip_equal

# To fold a scale, at most this many sets of constant operands are tried for a node.
_SETS = 16


def fold_factors(graph: Graph) -> Graph:
    """Returns `graph` with factors and shifts folded into constant operands.

    Returns `graph` itself if none can be folded.
    """
    # A constant that leaves the range of its type is not folded, so NumPy's warnings are off.
    with np.errstate(all="ignore"):
        while (changed := rewritten(graph, _Fold(graph).visit)) is not graph:
            graph = changed
    return graph


# ---- maps ---------------------------------------------------------------------------------------


def _degrees(stage: RegionStage, sources: Collection[int]) -> Mapping[Scalar, frozenset[int]]:
    """Returns for each scalar of a body the degrees of its terms in the values read from `sources`.

    For example, x * w + 1 has the degrees {1, 0} in x.  Zero has no term, hence no degree.  A
    function that is not linear has degree 2.
    """
    assert isinstance(stage.body, tuple)
    degrees: dict[Scalar, frozenset[int]] = {}
    for node in walk(*stage.body):
        parts = [degrees[c] for c in children(node)]
        every = frozenset[int]().union(*parts)
        own_degrees: Set[int]
        match node:
            case Arg():
                own_degrees = {int(stage.factors[node.number].source in sources)}
            case Const():
                own_degrees = {0} if node.value else set()
            case Cast(arg=arg) if arg.dtype in WIDE and widens(arg.dtype, node.dtype):
                own_degrees = every
            case Apply(function="neg" | "add" | "sub"):
                own_degrees = every
            case Apply(function="mul"):
                own_degrees = {min(a + b, 2) for a in parts[0] for b in parts[1]}
            case Apply(function="div") if parts[1] == {0}:
                own_degrees = parts[0]
            case Apply(function="select") if parts[0] <= {0}:
                own_degrees = parts[1] | parts[2]
            case _:
                own_degrees = {0} if every <= {0} else {2}
        degrees[node] = frozenset(own_degrees)
    return degrees


def _slope(body: Scalar, degrees: Mapping[Scalar, frozenset[int]]) -> Scalar:
    """Returns the factor of x in `body`, which is linear in x.

    `degrees` has the degrees in x, as from `_degrees`.
    """
    slopes: dict[Scalar, Scalar] = {}
    for node in walk(body):
        slopes[node] = literal(int(1 in degrees[node]), node.dtype)
        if isinstance(node, Apply) and 1 in degrees[node]:
            unchanged = {"mul": (0, 1), "div": (1,), "select": (0,)}.get(node.function, ())
            parts = (
                arg if n in unchanged and 1 not in degrees[arg] else slopes[arg]
                for n, arg in enumerate(node.args)
            )
            slopes[node] = apply(node.function, *parts)
        elif isinstance(node, Cast) and 1 in degrees[node]:
            slopes[node] = cast(slopes[node.arg], node.dtype)
    return slopes[body]


@frozen
class _Map:
    """A stage that computes x * `scale` + `shift` for every element x of a tensor.

    `x` is the access to the element at the result's own indices.  `scale` and `shift` are
    expressions of constant factors; None stands for a scale of 1, and for a shift of 0.
    """

    stage: RegionStage
    x: Factor
    scale: Scalar | None
    shift: Scalar | None


def _region(node: Node) -> Region | None:
    """Returns the region of a node with a single result of f32 or f64; None for another node."""
    if len(node.outputs) != 1 or node.result.dtype not in WIDE:
        return None
    expr = node_expr(node)
    return None if expr is None else from_expr(expr)


@lru_cache(1024)
def _map_of(region: Region, number: int) -> _Map | None:
    """Returns the map x * scale + shift that a region computes of parameter `number`; None if it
    computes something else."""
    stage = region.stages[0]
    places = [n for n, f in enumerate(stage.factors) if f.source == number]
    body = _only(stage)
    if len(region.stages) > 1 or len(places) != 1 or stage.monoid or body is None:
        return None
    x = stage.factors[places[0]]
    degrees = _degrees(stage, (number,))
    if not {1} <= degrees[body] <= {0, 1} or not _is_whole(region, stage, x):
        return None
    (scale,) = folded((_slope(body, degrees),), {}, computes=True)
    start = replaced(body, {argument(places[0], x.dtype): literal(0, x.dtype)})
    is_one = isinstance(scale, Const) and scale.value == 1
    return _Map(stage, x, None if is_one else scale, start if 0 in degrees[body] else None)


def _only(stage: RegionStage) -> Scalar | None:
    """Returns the scalar of a body with a single component; None for another body or a leaf."""
    return stage.body[0] if isinstance(stage.body, tuple) and len(stage.body) == 1 else None


def _is_whole(region: Region, stage: RegionStage, factor: Factor) -> bool:
    """Returns True if result [i, j, ...] of a stage reads, through `factor`, element [i, j, ...].

    The source must also have the shape of the stage.
    """
    assert factor.source is not None
    loop_forms = zip(factor.forms, units(len(stage.loops)), stage.iters, strict=False)
    is_identity = all(
        form == loop or (size == 1 and not loops_of(form)) for form, loop, size in loop_forms
    )
    return is_identity and shape_of(region, factor.source) == stage.iters


@frozen
class _NodeMap:
    """A node that computes a map of its operand `number`.

    `arrays` has the arrays of the node's constant operands.
    """

    map: _Map
    arrays: Sequence[Array | None]
    number: int

    def at_operand(self, scalar: Scalar) -> Array | None:
        """Returns the values of a scalar of the map, in the shape of the map's operand: what
        `by_place` returns for this operand."""
        return self.by_place(scalar, self.map.stage, self.map.x, self.map.stage.iters)

    def by_place(
        self, scalar: Scalar, stage: RegionStage, factor: Factor, shape: Sequence[Size]
    ) -> Array | None:
        """Returns the values of a scalar of the map, as an f64 array that broadcasts to `shape`.

        `shape` is the shape of the tensor t that `stage` reads through `factor`.  If a result of
        the stage reads t[i], array[i] is the scalar's value at this result.  If no result reads
        t[i], array[i] is 1.  Axes on which the scalar does not depend have size 1.  Returns None if
        a value is not finite, or if results that read the same t[i] have different values.
        """
        numbers = sorted({n.number for n in walk(scalar) if isinstance(n, Arg)})
        scalar_factors = [self.map.stage.factors[n] for n in numbers]
        needed_loops = {k for k in loops_of_factors(scalar_factors) if stage.loops[k] != 1}
        axes = [n for n, form in enumerate(factor.forms) if loops_of(form) & needed_loops]
        loops = sorted(needed_loops.union(*(loops_of(factor.forms[n]) for n in axes)))
        sizes = tuple(stage.loops[k] for k in loops)
        if not needed_loops <= depends(factor) or not all(isinstance(s, int) and s for s in sizes):
            return None
        maps = loop_maps(loops, len(stage.loops))
        result_maps = maps[: len(stage.iters)]
        index = [Factor(None, 0, (factor.forms[n],), I64) for n in axes]
        factors = (
            *(mapped(f, result_maps, sizes) for f in scalar_factors),
            *(mapped(f, maps, sizes) for f in index),
        )
        body = renumbered((scalar,), {old: new for new, old in enumerate(numbers)})
        body += tuple(argument(n, I64) for n in range(len(scalar_factors), len(factors)))
        values, *positions = evaluated(RegionStage(sizes, (), None, factors, body), self._array)
        at: list[Any] = [0] * len(shape)
        for n, position in zip_equal(axes, positions):
            at[n] = position
            if position.min() < 0 or position.max() >= shape[n]:
                return None
        array = np.ones([count((size,)) if n in axes else 1 for n, size in enumerate(shape)])
        array[tuple(at)] = values
        return array if np.isfinite(values).all() and (array[tuple(at)] == values).all() else None

    def _array(self, factor: Factor) -> Array:
        array = None if factor.source is None else self.arrays[factor.source]
        assert array is not None
        return np.asarray(array, np.float64) if factor.dtype.is_float else array

    def applied(self, b: GraphBuilder, x: Value, **steps: Scalar | None) -> Replacement:
        """Adds the nodes that apply this map, or a part of it, to `x`; returns the result.

        `steps` has an op for each scalar of the map: `mul=scale, add=shift` computes x * scale +
        shift.  None in place of a scalar leaves the op out.  Returns None if a scalar is not
        finite.
        """
        for op, scalar in steps.items():
            if scalar is None:
                continue
            array = self.at_operand(scalar)
            if array is None:
                return None
            lead = next((n for n, size in enumerate(array.shape) if size > 1), array.ndim)
            constant = array.reshape(array.shape[lead:]).astype(x.dtype.carrier)
            if not np.isfinite(constant).all():
                return None
            x = emit(b, op, x, b.constant(constant, op))
        return (x,)


def _node_map(b: GraphBuilder, node: Node, inputs: Inputs) -> _NodeMap | None:
    """Returns the map x * scale + shift that a node computes of its only operand that is not
    constant; None if it computes something else."""
    unknown = [n for n, v in enumerate(inputs) if v is not None and b.common(v) is None]
    region = _region(node) if len(unknown) == 1 else None
    linear_map = None if region is None else _map_of(region, unknown[0])
    if linear_map is None:
        return None
    return _NodeMap(linear_map, [*map(b.array, inputs)], unknown[0])


# ---- linear nodes -------------------------------------------------------------------------------


@lru_cache(1024)
def _is_linear(region: Region, operands: Sequence[int]) -> bool:
    """Returns True if each term of the results has exactly one of `operands` as a factor.

    Returns False also if several accesses read one operand, or if a stage reads another stage at
    indices other than its own.
    """
    linear = set(operands)
    for number, stage in enumerate(region.stages):
        linear_factors = [f for f in stage.factors if f.source in linear]
        if not linear_factors:
            continue
        is_aligned = all(
            f.source in operands or _is_whole(region, stage, f) for f in linear_factors
        )
        filled = any(f.fill is not None and f.fill.value for f in linear_factors)
        body = _only(stage) if stage.monoid in (None, "sum") else None
        if body is None or filled or not is_aligned or _degrees(stage, linear)[body] != {1}:
            return False
        linear.add(~number)
    once = all(len(accesses(region, n)) == 1 for n in operands)
    return once and ~region.outputs[0][0] in linear


@lru_cache(1024)
def _addend(region: Region, number: int) -> tuple[float, Scalar] | None:
    """Returns (by, base) if the results are base + by * p, where p is parameter `number`.

    `by` is a number other than 0, and `base` a scalar.  Returns None if the results have another
    form.
    """
    last = region.stages[region.outputs[0][0]]
    body = None if last.monoid or len(accesses(region, number)) != 1 else _only(last)
    if not isinstance(body, Apply) or body.function != "add":
        return None
    base, term = body.args
    by = 1.0
    match term:
        case Apply(function="mul", args=(of, Const(value=value))):
            term, by = of, float(value)
    access = uncast(term)
    is_parameter = isinstance(access, Arg) and last.factors[access.number].source == number
    return (by, base) if is_parameter and by else None


@lru_cache(1024)
def _with_addend(op: OpSpec, types: Types, attrs: Any, type: TensorType) -> Region | None:
    """Returns the region of an op that gets an additional last operand, such as a bias.

    `types` are the types of the op's present operands, and `type` is the type of the new operand.
    Returns None if the op accepts no more operands, or does more than add the new operand to its
    results.
    """
    if op.expr is None or len(types) >= op.arity[1]:
        return None
    try:
        before, after = (from_expr(op.expr(t, attrs)) for t in (types, (*types, type)))
    except ValueError:
        return None
    number, addend = len(after.stages) - 1, _addend(after, len(types))
    if addend is None:
        return None
    bare = spliced(after, number, (without_unused(after.stages[-1]._replace(body=(addend[1],))),))
    merged = inlined(bare, number, 0) if isinstance(addend[1], Arg) else None
    bare = bare if merged is None else drop_unused(spliced(bare, number, (merged,)))
    return after if bare[1:] == before[1:] else None


# ---- folding ------------------------------------------------------------------------------------


class _Fold:
    """A single pass over the nodes of a graph.

    `uses` counts the readers of each value, including bodies that capture it.  A value with several
    readers is not folded.  An output of a graph or body counts as two readers, so that it is never
    folded.
    """

    def __init__(self, graph: Graph) -> None:
        self.uses = Counter(value for node in walk_nodes(graph) for value in uses(node))
        for part in walk_graphs(graph):
            self.uses.update(part.outputs * 2)

    def visit(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        node_map = _node_map(b, node, inputs)
        if node_map is None:
            return self._behind(b, node, inputs)
        x, old = inputs[node_map.number], node.inputs[node_map.number]
        assert x is not None
        assert old is not None
        producer = b.producer(x) if self.uses[old] == 1 else None
        folded_producer = None if producer is None else _folded(b, producer, node_map)
        body = node_map.map.stage.body
        assert isinstance(body, tuple)
        if folded_producer is not None or sum(isinstance(n, Apply) for n in walk(*body)) <= 2:
            return folded_producer
        return node_map.applied(b, x, mul=node_map.map.scale, add=node_map.map.shift)

    def _behind(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        """Moves the scalar factor of an operand behind the node, where it multiplies fewer
        elements.

        Only numbers near 1 are moved, so that no new overflow arises.
        """
        region = _region(node)
        for n, (value, old) in enumerate(zip_equal(inputs, node.inputs)):
            producer = b.producer(value)
            if region is None or producer is None or old is None or self.uses[old] != 1:
                continue
            node_map = _node_map(b, producer, producer.inputs)
            x = None if node_map is None else producer.inputs[node_map.number]
            scale = None if node_map is None or node_map.map.shift else node_map.map.scale
            if node_map is None or x is None or scale is None or not _is_linear(region, (n,)):
                continue
            saved = element_count(x.shape) - element_count(node.result.shape) - 1
            array = node_map.at_operand(scale) if nonnegative(saved) else None
            if array is not None and array.size == 1 and is_near_one(array.item()):
                (y,) = b.add(node.op, [*inputs[:n], x, *inputs[n + 1 :]], node.attrs)
                return node_map.applied(b, y, mul=scale)
        return None


def _folded(b: GraphBuilder, producer: Node, after: _NodeMap) -> Replacement:
    """Returns a copy of `producer` with the map `after` folded into its constant operands.

    `producer` computes the map's operand.  Returns None if the map cannot be folded into the
    constant operands of `producer`.
    """
    region, inputs = _region(producer), [*producer.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    if region is None:
        return None
    wide = ((n, v) for n, v in enumerate(inputs) if v is not None and v.dtype in WIDE)
    arrays = {n: array for n, v in wide if (array := b.array(v)) is not None}
    shifts: dict[int, Array] = {}
    shift = after.map.shift
    for more, n, by, array in () if shift is None else _addends(producer, region, arrays):
        assert shift is not None
        plus = after.by_place(shift, *accesses(more, n)[0], array.shape)
        if plus is not None:
            region, arrays[n], shifts[n] = more, array, plus / by
            break
    scale = after.map.scale
    scales = {} if scale is None else _scales(region, arrays, scale, after)
    if scales is None or not (scales or shifts):
        return None
    for n in sorted({*scales, *shifts}):
        changed = _changed(arrays[n], scales.get(n), shifts.get(n))
        if not np.isfinite(changed).all():
            return None
        old = inputs[n] if n < len(inputs) else None
        name = "bias" if old is None else old.name
        inputs[n : n + 1] = [b.constant(changed, name, sources=b.scaled_sources(old))]
    (y,) = b.add(producer.op, inputs, producer.attrs, loc=producer.loc)
    return after.applied(b, y, add=None if shifts else shift)


def _addends(
    producer: Node, region: Region, arrays: Mapping[int, Array]
) -> Iterator[tuple[Region, int, float, Array]]:
    """Yields the operands into which a shift can be folded, because they are added to the results.

    Each tuple is (region, index of the operand, number that multiplies the operand, its array).
    `region` is the node's region.  For a bias that the op accepts and the node lacks, `region` is
    the node's region with the bias, and the array is zeros.
    """
    for n, array in arrays.items():
        if (addend := _addend(region, n)) is not None:
            yield region, n, addend[0], array
    types, result = region.params, producer.result.type
    for dim in dict.fromkeys(result.shape):
        size = as_int(dim)
        more = _with_addend(producer.op, types, producer.attrs, TensorType(result.dtype, (dim,)))
        addend = None if more is None else _addend(more, len(types))
        if more is not None and addend is not None and size is not None:
            yield more, len(types), addend[0], np.zeros(size, result.dtype.carrier)


def _scales(
    region: Region, arrays: Mapping[int, Array], scale: Scalar, after: _NodeMap
) -> dict[int, Array] | None:
    """Returns the factors to fold into constant operands, so that results are multiplied by
    `scale`.

    The keys are the indices of operands in which the region is linear.  Returns None if there are
    no such operands, or if an element of them affects results with different scales.
    """
    sets = chain.from_iterable(combinations(arrays, n + 1) for n in range(len(arrays)))
    linear = next(
        (operands for operands in islice(sets, _SETS) if _is_linear(region, operands)), ()
    )
    factors = all_known(
        after.by_place(scale, *accesses(region, n)[0], arrays[n].shape) for n in linear
    )
    return dict(zip_equal(linear, factors)) if factors else None


def _changed(array: Array, scale: Array | None, shift: Array | None) -> Array:
    """Returns an array times `scale` plus `shift`, computed in f64 and rounded once."""
    if scale is not None and shift is None:
        # NumPy computes in f64 in small pieces, so large weights are not copied to f64.
        return np.multiply(array, scale, out=np.empty_like(array), casting="same_kind")
    wide = array.astype(np.float64) * (1.0 if scale is None else scale)
    return (wide + (0.0 if shift is None else shift)).astype(array.dtype)
