"""Known factors and shifts behind linear nodes go into the known operands of these.

    %a = conv(%x, %w) ; %b = batch_normalization(%a, ...)      %b = conv(%x, %w', %bias')
    %a = matmul(%x, %w) ; %b = mul(%a, %scale)                 %b = matmul(%x, %w')
    %b = batch_normalization(%x, ...)                          %a = mul(%x, %s) ; %b = add(%a, %t)
    %a = mul(%x, 2.5) ; %b = matmul(%y, %a)                    %c = matmul(%y, %x) ; mul(%c, 2.5)

Nodes are told by their expressions alone.  A map takes every element x to x * scale + shift, of
known numbers.  A node is linear in known operands where each part of its sums has one of them as a
factor: a scale goes into these if the place of an element there determines it, and a shift into an
operand that is added as it is, be it one that the op takes and the node lacks.  A number goes
behind a node that makes fewer elements than it multiplies.  New constants are computed in f64 and
rounded once.
Requires folded constants.  Establishes that no scale of f32 or f64 that could be folded is left
directly behind a linear node, and that a map has at most two operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
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
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, bodies, uses, walk_nodes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, nonnegative
from tcc.ir.op import Array, OpSpec, Types
from tcc.ir.types import I64, TensorType, element_count
from tcc.passes.derive.affine import Size, loops_of, units
from tcc.passes.derive.algebra.cost import count
from tcc.passes.derive.algebra.fold import evaluated
from tcc.passes.derive.algebra.terms import WIDE, depended, is_near_one
from tcc.passes.derive.convert import from_expr
from tcc.passes.derive.edit import (
    depends,
    drop_unused,
    inlined,
    moved,
    placed,
    renumbered,
    spliced,
    used,
)
from tcc.passes.derive.record import Factor, Region, Stage, shape_of, widens
from tcc.passes.derive.rules.neutral import folded
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.emit import emit
from tcc.record import record

# Sets of known operands that are tried for the scale behind one node.
_SETS = 16


def fold_factors(graph: Graph) -> Graph:
    """`graph` with what can be folded in known operands; itself where nothing can."""
    # What leaves the range of a type is looked for, and not folded.
    with np.errstate(all="ignore"):
        while (changed := rewritten(graph, _Fold(graph).visit)) is not graph:
            graph = changed
    return graph


# ---- maps ---------------------------------------------------------------------------------------


def _degrees(stage: Stage, sources: Collection[int]) -> Mapping[Scalar, frozenset[int]]:
    """Of each part of a body the degrees, in what is read of `sources`, of its own parts: none for
    0, and 2 for all that is not linear."""
    assert isinstance(stage.body, tuple)
    done: dict[Scalar, frozenset[int]] = {}
    for node in walk(*stage.body):
        parts = [done[c] for c in children(node)]
        every = frozenset[int]().union(*parts)
        found: Set[int]
        match node:
            case Arg():
                found = {int(stage.factors[node.number].source in sources)}
            case Const():
                found = {0} if node.value else set()
            case Cast(arg=arg) if arg.dtype in WIDE and widens(arg.dtype, node.dtype):
                found = every
            case Apply(function="neg" | "add" | "sub"):
                found = every
            case Apply(function="mul"):
                found = {min(a + b, 2) for a in parts[0] for b in parts[1]}
            case Apply(function="div") if parts[1] == {0}:
                found = parts[0]
            case Apply(function="select") if parts[0] <= {0}:
                found = parts[1] | parts[2]
            case _:
                found = {0} if every <= {0} else {2}
        done[node] = frozenset(found)
    return done


def _slope(body: Scalar, degrees: Mapping[Scalar, frozenset[int]]) -> Scalar:
    """What x is multiplied by in a scalar that is linear in x."""
    slopes: dict[Scalar, Scalar] = {}
    for node in walk(body):
        slopes[node] = literal(int(1 in degrees[node]), node.dtype)
        if isinstance(node, Apply) and 1 in degrees[node]:
            kept = {"mul": (0, 1), "div": (1,), "select": (0,)}.get(node.function, ())
            parts = (
                arg if n in kept and 1 not in degrees[arg] else slopes[arg]
                for n, arg in enumerate(node.args)
            )
            slopes[node] = apply(node.function, *parts)
        elif isinstance(node, Cast) and 1 in degrees[node]:
            slopes[node] = cast(slopes[node.arg], node.dtype)
    return slopes[body]


@record
class _Map:
    """Each result of `stage` is the element of `x` at its own place times `scale` plus `shift`,
    which are of known factors; None stands for 1 and 0."""

    stage: Stage
    x: Factor
    scale: Scalar | None
    shift: Scalar | None


def _region(node: Node) -> Region | None:
    """What a node with one result of wide floats computes; None for another node."""
    if len(node.outputs) != 1 or node.outputs[0].type.dtype not in WIDE:
        return None
    found = node_expr(node)
    return None if found is None else from_expr(found)


@lru_cache(maxsize=1024)
def _map_of(region: Region, number: int) -> _Map | None:
    """The region as a map of parameter `number`; None where it is none."""
    stage = region.stages[0]
    read = [n for n, f in enumerate(stage.factors) if f.source == number]
    body = _only(stage)
    if len(region.stages) > 1 or len(read) != 1 or stage.monoid or body is None:
        return None
    x = stage.factors[read[0]]
    degrees = _degrees(stage, (number,))
    if not {1} <= degrees[body] <= {0, 1} or not _is_whole(region, stage, x):
        return None
    (scale,) = folded((_slope(body, degrees),), {}, computes=True)
    start = replaced(body, {argument(read[0], x.dtype): literal(0, x.dtype)})
    is_one = isinstance(scale, Const) and scale.value == 1
    return _Map(stage, x, None if is_one else scale, start if 0 in degrees[body] else None)


def _only(stage: Stage) -> Scalar | None:
    """The only component of a body; None of leaves and of several."""
    return stage.body[0] if isinstance(stage.body, tuple) and len(stage.body) == 1 else None


def _is_whole(region: Region, stage: Stage, factor: Factor) -> bool:
    """Whether every result of a stage reads the element at its own place."""
    assert factor.source is not None
    own = zip(factor.forms, units(len(stage.loops)), stage.iters, strict=False)
    same = all(form == loop or (size == 1 and not loops_of(form)) for form, loop, size in own)
    return same and shape_of(region, factor.source) == stage.iters


@record
class _Known:
    """A map of operand `number` of a node, which reads `arrays`."""

    map: _Map
    arrays: Sequence[Array | None]
    number: int

    def own(self, scalar: Scalar) -> Array | None:
        """A scalar of the map by the places of the operand, as of `by_place`."""
        return self.by_place(scalar, self.map.stage, self.map.x, self.map.stage.iters)

    def by_place(
        self, scalar: Scalar, stage: Stage, factor: Factor, shape: Sequence[Size]
    ) -> Array | None:
        """A scalar of the map in f64, by the places of what `factor` reads for the results of
        `stage`; 1 long along axes on which it does not depend, and 1 where nothing is read.

        None where it is not finite, or two results of one place differ.
        """
        numbers = sorted({n.number for n in walk(scalar) if isinstance(n, Arg)})
        read = [self.map.stage.factors[n] for n in numbers]
        wanted = {k for k in depended(read) if stage.loops[k] != 1}
        axes = [n for n, form in enumerate(factor.forms) if loops_of(form) & wanted]
        loops = sorted(wanted.union(*(loops_of(factor.forms[n]) for n in axes)))
        sizes = tuple(stage.loops[k] for k in loops)
        if not wanted <= depends(factor) or not all(isinstance(s, int) and s for s in sizes):
            return None
        maps = placed(loops, len(stage.loops))
        own = maps[: len(stage.iters)]
        index = [Factor(None, 0, (factor.forms[n],), I64) for n in axes]
        factors = (*(moved(f, own, sizes) for f in read), *(moved(f, maps, sizes) for f in index))
        body = renumbered((scalar,), {old: new for new, old in enumerate(numbers)})
        body += tuple(argument(n, I64) for n in range(len(read), len(factors)))
        values, *found = evaluated(Stage(sizes, (), None, factors, body), self._array)
        at: list[Any] = [0] * len(shape)
        for n, where in zip(axes, found, strict=True):
            at[n] = where
            if where.min() < 0 or where.max() >= shape[n]:
                return None
        made = np.ones([count((size,)) if n in axes else 1 for n, size in enumerate(shape)])
        made[tuple(at)] = values
        return made if np.isfinite(values).all() and (made[tuple(at)] == values).all() else None

    def _array(self, factor: Factor) -> Array:
        found = None if factor.source is None else self.arrays[factor.source]
        assert found is not None
        return np.asarray(found, np.float64) if factor.dtype.is_float else found

    def applied(self, b: GraphBuilder, x: Value, **steps: Scalar | None) -> Replacement:
        """Operations on `x`, by name, with scalars of the map; None where these are not finite."""
        for op, scalar in steps.items():
            array = None if scalar is None else self.own(scalar)
            if scalar is not None and array is None:
                return None
            if array is not None:
                lead = next((n for n, size in enumerate(array.shape) if size > 1), array.ndim)
                known = array.reshape(array.shape[lead:]).astype(x.type.dtype.carrier)
                if not np.isfinite(known).all():
                    return None
                x = emit(b, op, x, b.constant(known, op))
        return (x,)


def _known(b: GraphBuilder, node: Node, inputs: Inputs) -> _Known | None:
    """A node as a map of its only operand that is not known; None for another."""
    arrays = [None if v is None else b.array(v) for v in inputs]
    unknown = [n for n, v in enumerate(inputs) if v is not None and arrays[n] is None]
    region = _region(node) if len(unknown) == 1 else None
    found = None if region is None else _map_of(region, unknown[0])
    return None if found is None else _Known(found, arrays, unknown[0])


# ---- linear nodes -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _is_linear(region: Region, operands: Sequence[int]) -> bool:
    """Whether each part of the sums that results are has one of some operands as a factor, each of
    which is read once; and what stages read of each other, they read at their own places."""
    linear = set(operands)
    for number, stage in enumerate(region.stages):
        read = [f for f in stage.factors if f.source in linear]
        if not read:
            continue
        whole = all(f.source in operands or _is_whole(region, stage, f) for f in read)
        filled = any(f.fill is not None and f.fill.value for f in read)
        body = _only(stage) if stage.monoid in (None, "sum") else None
        if body is None or filled or not whole or _degrees(stage, linear)[body] != {1}:
            return False
        linear.add(~number)
    once = all(_reads(region, n) == 1 for n in operands)
    return once and ~region.outputs[0][0] in linear


@lru_cache(maxsize=1024)
def _addend(region: Region, number: int) -> tuple[float, Scalar] | None:
    """The number that parameter `number` is multiplied by and then added to every result, and what
    it is added to; None where results are no such sums."""
    last = region.stages[region.outputs[0][0]]
    body = None if last.monoid or _reads(region, number) != 1 else _only(last)
    if not isinstance(body, Apply) or body.function != "add":
        return None
    rest, term = body.args
    by = 1.0
    match term:
        case Apply(function="mul", args=(of, Const(value=value))):
            term, by = of, float(value)
    read = uncast(term)
    added = isinstance(read, Arg) and last.factors[read.number].source == number
    return (by, rest) if added and by else None


def _reads(region: Region, number: int) -> int:
    """How many accesses of a region read a parameter."""
    return sum(f.source == number for stage in region.stages for f in stage.factors)


@lru_cache(maxsize=1024)
def _with_addend(op: OpSpec, types: Types, attrs: Any, type: TensorType) -> Region | None:
    """An op with one more operand, where that is all that its results have added; else None."""
    if op.expr is None or len(types) >= op.numbers[1]:
        return None
    try:
        before, after = (from_expr(op.expr(t, attrs)) for t in (types, (*types, type)))
    except ValueError:
        return None
    number, found = len(after.stages) - 1, _addend(after, len(types))
    if found is None:
        return None
    bare = spliced(after, number, (used(after.stages[-1]._replace(body=(found[1],))),))
    whole = inlined(bare, number, 0) if isinstance(found[1], Arg) else None
    bare = bare if whole is None else drop_unused(spliced(bare, number, (whole,)))
    return after if bare[1:] == before[1:] else None


# ---- folding ------------------------------------------------------------------------------------


class _Fold:
    """One sweep; `uses` counts the readers of each value: outputs count twice, and so does what a
    body reads of the graph around it, which stays there."""

    def __init__(self, graph: Graph) -> None:
        self.uses = dict.fromkeys(graph.outputs, 2)
        for node in walk_nodes(graph):
            self.uses.update((v, 2) for body in bodies(node) for v in body.outputs)
        for node in walk_nodes(graph):
            for value in uses(node):
                self.uses[value] = self.uses.get(value, 0) + 1

    def visit(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        known = _known(b, node, inputs)
        if known is None:
            return self._behind(b, node, inputs)
        x, old = inputs[known.number], node.inputs[known.number]
        assert x is not None
        assert old is not None
        producer = b.producer(x) if self.uses[old] == 1 else None
        made = None if producer is None else _folded(b, producer, known)
        body = known.map.stage.body
        assert isinstance(body, tuple)
        if made is not None or sum(isinstance(n, Apply) for n in walk(*body)) <= 2:
            return made
        return known.applied(b, x, mul=known.map.scale, add=known.map.shift)

    def _behind(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        """A node with the number that an operand is multiplied by behind it, where that multiplies
        fewer elements: numbers near one alone, so that nothing overflows that did not before."""
        region = _region(node)
        for n, (value, old) in enumerate(zip(inputs, node.inputs, strict=True)):
            producer = None if value is None else b.producer(value)
            if region is None or producer is None or old is None or self.uses[old] != 1:
                continue
            known = _known(b, producer, producer.inputs)
            x = None if known is None else producer.inputs[known.number]
            scale = None if known is None or known.map.shift else known.map.scale
            if known is None or x is None or scale is None or not _is_linear(region, (n,)):
                continue
            saved = element_count(x.type.shape) - element_count(node.outputs[0].type.shape) - 1
            array = known.own(scale) if nonnegative(saved) else None
            if array is not None and array.size == 1 and is_near_one(array.item()):
                (y,) = b.add(node.op, [*inputs[:n], x, *inputs[n + 1 :]], node.attrs)
                return known.applied(b, y, mul=scale)
        return None


def _folded(b: GraphBuilder, producer: Node, after: _Known) -> Replacement:
    """The producer of a map's operand with the map in its own operands; None where they do not
    take it."""
    region, inputs = _region(producer), [*producer.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    if region is None:
        return None
    wide = ((n, v) for n, v in enumerate(inputs) if v is not None and v.type.dtype in WIDE)
    arrays = {n: array for n, v in wide if (array := b.array(v)) is not None}
    shifts: dict[int, Array] = {}
    shift = after.map.shift
    for more, n, by, array in () if shift is None else _addends(producer, region, arrays):
        assert shift is not None
        plus = after.by_place(shift, *_reader(more, n), array.shape)
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
        inputs[n : n + 1] = [b.constant(changed, "bias" if old is None else old.name)]
    (y,) = b.add(producer.op, inputs, producer.attrs, loc=producer.loc)
    return after.applied(b, y, add=None if shifts else shift)


def _addends(
    producer: Node, region: Region, arrays: Mapping[int, Array]
) -> Iterator[tuple[Region, int, float, Array]]:
    """Operands that are added to the results: the region that has each, the number that it is
    multiplied by, and its array, which is 0 for one that the node lacks and its op takes."""
    for n, array in arrays.items():
        if (found := _addend(region, n)) is not None:
            yield region, n, found[0], array
    types, result = region.params, producer.outputs[0].type
    for dim in dict.fromkeys(result.shape):
        size = as_int(dim)
        more = _with_addend(producer.op, types, producer.attrs, TensorType(result.dtype, (dim,)))
        found = None if more is None else _addend(more, len(types))
        if more is not None and found is not None and size is not None:
            yield more, len(types), found[0], np.zeros(size, result.dtype.carrier)


def _scales(
    region: Region, arrays: Mapping[int, Array], scale: Scalar, after: _Known
) -> dict[int, Array] | None:
    """The scale by the places of operands in which the region is linear; None where there are none
    or a place does not tell."""
    sets = chain.from_iterable(combinations(arrays, n + 1) for n in range(len(arrays)))
    linear = next((each for each in islice(sets, _SETS) if _is_linear(region, each)), ())
    found = {n: after.by_place(scale, *_reader(region, n), arrays[n].shape) for n in linear}
    told = {n: array for n, array in found.items() if array is not None}
    return told if told and len(told) == len(found) else None


def _reader(region: Region, number: int) -> tuple[Stage, Factor]:
    """The stage that reads a parameter, and its access."""
    return next((s, f) for s in region.stages for f in s.factors if f.source == number)


def _changed(array: Array, scale: Array | None, shift: Array | None) -> Array:
    """An array times `scale` plus `shift`, in f64 and rounded once."""
    if scale is not None and shift is None:
        # The loop runs in f64 in small pieces: no copy of large weights in f64.
        return np.multiply(array, scale, out=np.empty_like(array), casting="same_kind")
    wide = array.astype(np.float64) * (1.0 if scale is None else scale)
    return (wide + (0.0 if shift is None else shift)).astype(array.dtype)
