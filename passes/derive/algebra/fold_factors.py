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

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, islice
from typing import Any, TypeAlias

import numpy as np
from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    Const,
    Scalar,
    apply,
    argument,
    children,
    literal,
    walk,
)
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, bodies, uses, walk_nodes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, nonnegative
from tcc.ir.op import Array, OpSpec, Types
from tcc.ir.types import I64, TensorType, element_count
from tcc.passes.derive.affine import Size, loops_of, plain, units
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
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.emit import emit
from tcc.record import record

# Sets of known operands that are tried for the scale behind one node.
_SETS = 16
# a and b of a * x + b; None stands for 0.
_Linear: TypeAlias = "tuple[Scalar | None, Scalar | None]"


def fold_factors(graph: Graph) -> Graph:
    """`graph` with what can be folded in known operands; itself where nothing can."""
    # What leaves the range of a type is looked for, and not folded.
    with np.errstate(all="ignore"):
        while (changed := rewritten(graph, _Fold(graph).visit)) is not graph:
            graph = changed
    return graph


# ---- scalars ------------------------------------------------------------------------------------


def _linear(stage: Stage, sources: Collection[int]) -> _Linear | None:
    """a and b of a body a * x + b, x being what it reads of `sources`; None for another body.

    Of several reads a says nothing, but b is None where each part of the sum has one as a factor.
    """
    if isinstance(stage.body, expr.Stage) or len(stage.body) > 1:
        return None
    done: dict[Scalar, _Linear | None] = {}
    for node in walk(*stage.body):
        parts = [done[c] for c in children(node)]
        if isinstance(node, Arg) and stage.factors[node.number].source in sources:
            done[node] = literal(1, node.dtype), None
        elif all(p is not None and p[0] is None for p in parts):
            done[node] = None, None if isinstance(node, Const) and node.value == 0 else node
        else:
            known = [p for p in parts if p is not None]
            done[node] = _combined(node, known) if len(known) == len(parts) else None
    return done[stage.body[0]]


def _combined(node: Scalar, parts: Sequence[_Linear]) -> _Linear | None:
    """A scalar of which an operand depends on x, from its operands."""
    match node, parts:
        case Cast(arg=arg), [inner] if arg.dtype in WIDE and widens(arg.dtype, node.dtype):
            return inner
        case Apply(function="neg"), [(a, b)]:
            return _neg(a), _neg(b)
        case Apply(function="add"), [(a, b), (c, d)]:
            return _plus(a, c), _plus(b, d)
        case Apply(function="sub"), [(a, b), (c, d)]:
            return _plus(a, _neg(c)), _plus(b, _neg(d))
        case Apply(function="mul"), ([(a, b), (None, d)] | [(None, d), (a, b)]):
            return _times(a, d), _times(b, d)
        case Apply(function="div", args=(_, by)), [(a, b), (None, _)]:
            return a and apply("div", a, by), b and apply("div", b, by)
        case Apply(function="select", args=(test, *_)), [(None, _), (a, b), (c, d)]:
            return _either(test, a, c), _either(test, b, d)
    return None


def _neg(a: Scalar | None) -> Scalar | None:
    return a and apply("neg", a)


def _plus(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    return apply("add", a, b) if a and b else a or b


def _times(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    if a is None or b is None or _is_one(b):
        return b and a
    return b if _is_one(a) else apply("mul", a, b)


def _either(test: Scalar, a: Scalar | None, b: Scalar | None) -> Scalar | None:
    some = a or b
    if some is None or a is b:
        return a
    zero = literal(0, some.dtype)
    return apply("select", test, a or zero, b or zero)


def _is_one(scalar: Scalar | None) -> bool:
    return isinstance(scalar, Const) and scalar.value == 1


# ---- maps ---------------------------------------------------------------------------------------


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
    found = _linear(stage, (number,)) if len(region.stages) == 1 and not stage.monoid else None
    read = [f for f in stage.factors if f.source == number]
    if found is None or found[0] is None or len(read) > 1 or not _is_whole(region, stage, read[0]):
        return None
    return _Map(stage, read[0], None if _is_one(found[0]) else found[0], found[1])


def _is_whole(region: Region, stage: Stage, factor: Factor) -> bool:
    """Whether every result of a stage reads the element at its own place."""
    assert factor.source is not None
    own = zip(factor.forms, units(len(stage.loops)), stage.iters, strict=False)
    same = all(form == loop or (size == 1 and not loops_of(form)) for form, loop, size in own)
    return same and shape_of(region, factor.source) == stage.iters


@dataclass(frozen=True, slots=True)
class _Known:
    """A map, the arrays that its node reads, and the `number` of the operand that it maps."""

    map: _Map
    arrays: Sequence[Array | None]
    number: int

    @property
    def factor(self) -> float | None:
        """The scale where it is the same everywhere."""
        scale, stage = self.map.scale, self.map.stage
        found = None if scale is None else self.by_place(scale, stage, self.map.x, stage.iters)
        return float(found.item()) if found is not None and found.size == 1 else None

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

    def applied(self, b: GraphBuilder, x: Value, *steps: tuple[str, Scalar | None]) -> Replacement:
        """Operations on `x` with scalars of the map; None where they are not finite."""
        for op, scalar in steps:
            if scalar is None:
                continue
            array = self.by_place(
                scalar, self.map.stage, self.map.x, tuple(map(plain, x.type.shape))
            )
            if array is None:
                return None
            lead = next((n for n, size in enumerate(array.shape) if size > 1), array.ndim)
            known = array.reshape(array.shape[lead:]).astype(x.type.dtype.carrier)
            if not np.isfinite(known).all():
                return None
            x = emit(b, op, x, b.constant(known, op))
        return (x,)


# ---- linear nodes -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _is_linear(region: Region, operands: Sequence[int]) -> bool:
    """Whether each part of the sums that results are has one of some operands as a factor, each of
    which is read once; and what stages read of each other, they read at their own places."""
    linear = set(operands)
    for number, stage in enumerate(region.stages):
        read = [f for f in stage.factors if f.source in linear]
        found = _linear(stage, linear)
        if not read or found == (None, None):
            continue
        whole = all(f.source in operands or _is_whole(region, stage, f) for f in read)
        filled = any(f.fill is not None and f.fill.value for f in read)
        if found is None or found[1] or stage.monoid not in (None, "sum") or filled or not whole:
            return False
        linear.add(~number)
    once = all(_reads(region, n) == 1 for n in operands)
    return once and ~region.outputs[0][0] in linear


@lru_cache(maxsize=1024)
def _addend(region: Region, number: int) -> float | None:
    """The number that parameter `number` is multiplied by and then added to every result; None
    where results are no such sums."""
    last = region.stages[region.outputs[0][0]]
    found = None if last.monoid or _reads(region, number) != 1 else _linear(last, (number,))
    by = None if found is None else found[0]
    return float(by.value) if isinstance(by, Const) and by.value else None


def _reads(region: Region, number: int) -> int:
    """How many accesses of a region read a parameter."""
    return sum(f.source == number for stage in region.stages for f in stage.factors)


@lru_cache(maxsize=1024)
def _with_addend(op: OpSpec, types: Types, attrs: Any, type: TensorType) -> Region | None:
    """An op with one more operand, where that is all that its results have added; else None."""
    if op.expr is None or len(types) >= op.arity[1]:
        return None
    try:
        before, after = (from_expr(op.expr(t, attrs)) for t in (types, (*types, type)))
    except ValueError:
        return None
    number, last = len(after.stages) - 1, after.stages[-1]
    found = _linear(last, (len(types),))
    if not _addend(after, len(types)) or found is None or found[1] is None:
        return None
    bare = spliced(after, number, (used(last._replace(body=(found[1],))),))
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
        return known.applied(b, x, ("mul", known.map.scale), ("add", known.map.shift))

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
            if known is None or x is None or known.map.shift is not None:
                continue
            saved = element_count(x.type.shape) - element_count(node.outputs[0].type.shape) - 1
            if nonnegative(saved) and _is_linear(region, (n,)) and is_near_one(known.factor):
                (y,) = b.add(node.op, [*inputs[:n], x, *inputs[n + 1 :]], node.attrs)
                return known.applied(b, y, ("mul", known.map.scale))
        return None


def _known(b: GraphBuilder, node: Node, inputs: Inputs) -> _Known | None:
    """A node as a map of its only operand that is not known; None for another."""
    arrays = [None if v is None else b.array(v) for v in inputs]
    unknown = [n for n, v in enumerate(inputs) if v is not None and arrays[n] is None]
    region = _region(node) if len(unknown) == 1 else None
    found = None if region is None else _map_of(region, unknown[0])
    return None if found is None else _Known(found, arrays, unknown[0])


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
    scale, shift = after.map.scale, after.map.shift
    shifts: dict[int, Array] = {}
    for more, n, array in () if shift is None else _addends(producer, region, arrays):
        assert shift is not None
        plus = after.by_place(shift, *_reader(more, n), array.shape)
        if plus is not None:
            region, arrays[n], shifts[n] = more, array, plus / (_addend(more, n) or 1)
            break
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
    return after.applied(b, y, ("add", None if shifts else shift))


def _addends(
    producer: Node, region: Region, arrays: Mapping[int, Array]
) -> Iterator[tuple[Region, int, Array]]:
    """Operands that are added to the results, each with its array and the region that has it: those
    of the node, and zeros for one that its op would take."""
    yield from ((region, n, array) for n, array in arrays.items() if _addend(region, n))
    types, result = region.params, producer.outputs[0].type
    for dim in dict.fromkeys(result.shape):
        size = as_int(dim)
        more = _with_addend(producer.op, types, producer.attrs, TensorType(result.dtype, (dim,)))
        if more is not None and size is not None:
            yield more, len(types), np.zeros(size, result.dtype.carrier)


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
