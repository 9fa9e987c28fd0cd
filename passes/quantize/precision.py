"""What values are stored as between kernels, where less than f32 is asked for.

    kernel { y = sum(k) x[i, k] * w[k, j] }           --precision bf16 on a CPU that multiplies bf16
      ->  x, w in bf16;  y = sum(k) f32(x[i, k]) * f32(w[k, j])

    kernel { y = sum(k) x[i, k] * w[k, j] }                                         --weights int8
      ->  w in i8, s in bf16;  y = sum(k) x[i, k] * (f32(w[k, j]) * f32(s[k // 32, j]))

    kernel { s = norm(x);  y = sum(k) s[i, k] * w[k, j] }
      ->  s in bf16, w in bf16, in the kernel

Requires layouts.  Establishes casts where kernels read and write, and where their stages exchange
what products of pairs read; all arithmetic stays f32.  Inputs, outputs and what C functions and
control flow see keep their types.  Weights are what contractions multiply.  Activations are stored
in bf16 where that lets a contraction multiply pairs of bf16 at once, whether kernels exchange them
or the stages of one; elsewhere the conversions would cost more than the bytes, for activations of
small batches stay in the caches.  So would those of a weight that a run uses often: without pairs,
it stays f32, and so exact, as do the tables of embeddings, of which a run reads few rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import TypeGuard

import numpy as np
from tcc.ir.expr import Expr, Stage, extent, known_extent, reads, with_reads
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    apply,
    cast,
    index_value,
    literal,
    read,
    read_from,
    walk,
)
from tcc.ir.graph import Graph, Handle, Value, Values
from tcc.ir.index import (
    Index,
    Indices,
    Var,
    as_int,
    ceildiv,
    const,
    free_vars,
    iterator,
    substitute,
    var_of,
)
from tcc.ir.layout import Layout, offset, row_major
from tcc.ir.op import Array
from tcc.ir.types import BF16, F16, F32, I8, I32, DType, TensorType, element_count
from tcc.ops.algebra.levels import nibbles
from tcc.passes.fuse.compose import canonical
from tcc.passes.fuse.partition import seen_by_others
from tcc.passes.layout.assign import Kernel, Placed, operand_reads
from tcc.passes.layout.weights import Rounded
from tcc.passes.quantize.quantize_weights import group_size, quantized, rounded
from tcc.passes.quantize.round_stages import rounding_stage, with_rounded
from tcc.record import record
from tcc.schedule.nest import multiplied

# Constants of fewer elements stay as they are unless a product of pairs needs them.
_LARGE = 1 << 14


@record
class Precision:
    """`floats` is what floats may be stored as (f32, bf16, f16); `bits` the width of quantised
    weights, 0 for none; `pairs` whether the processor multiplies pairs of bf16; `uses` how often
    a run may use a weight that is narrow without pairs (`schedule.cpu.narrow_storage.most_uses`);
    `everywhere` whether all that kernels exchange is narrow."""

    floats: DType = F32
    bits: int = 0
    pairs: bool = False
    uses: float = inf
    everywhere: bool = False


FULL = Precision()


@record
class _Stored:
    """What takes an operand's place: `values`, and a read of the operand in terms of them.

    `value_of` gets the read and the number of the first of the values.
    """

    values: Values
    value_of: Callable[[Read, int], Scalar]


@record
class _Matmul:
    """A sum of products of two reads, `weight` being a constant's."""

    kernel: Kernel
    stage: Stage
    other: Scalar
    weight: Read

    @property
    def constant(self) -> Value:
        return _operand(self.kernel, self.weight)


def narrowed(
    placed: Placed,
    precision: Precision,
    constants: Mapping[Value, Graph],
) -> Placed:
    """`placed` with values stored as `precision` says; itself where that is f32.

    `constants` are those of the graph and the graphs around it.
    """
    if precision.floats is F32 and not precision.bits:
        return placed
    return _Narrowing(placed, precision, constants).run()


class _Narrowing:
    def __init__(
        self,
        placed: Placed,
        precision: Precision,
        constants: Mapping[Value, Graph],
    ) -> None:
        self.placed, self.precision, self.constants = placed, precision, constants
        self.kernels = placed.kernels
        self.made: dict[Value, Handle] = {}
        self.rounded: list[Rounded] = []
        self.types: dict[Value, str] = {}
        self.floats: dict[Value, _Stored | None] = {}
        self.levels: dict[tuple[Value, int], _Stored | None] = {}
        matmuls = {k: tuple(_matmuls(k, constants)) for k in self.kernels}
        self.quantized = {
            p: stored
            for k in self.kernels
            for p in matmuls[k]
            if (stored := self._quantized(p)) is not None
        }
        self.matmuls = {
            k: [p for p in found if p not in self.quantized and not _batched(p)]
            for k, found in matmuls.items()
        }
        self.activations = self._activations()
        self.weights = dict.fromkeys(p.constant for found in matmuls.values() for p in found)

    def run(self) -> Placed:
        narrow = {
            v: Value(v.name, TensorType(self.precision.floats, v.type.shape))
            for v in self.activations
        }
        steps = self.placed.with_kernels(lambda kernel: self._kernel(kernel, narrow))
        layouts = {narrow.get(v, v): where for v, where in self.placed.layouts.items()}
        wholes = {narrow.get(v, v): narrow.get(w, w) for v, w in self.placed.wholes.items()}
        graph = self.placed.graph
        graph = replace(graph, constants={**graph.constants, **self.made})
        types = {v: self.types.get(v, v.type.dtype.name) for v in self.weights}
        return Placed(graph, steps, layouts, wholes, tuple(self.rounded), weight_types=types)

    def _kernel(self, kernel: Kernel, narrow: Mapping[Value, Value]) -> Kernel:
        replaced: dict[Value, _Stored] = {
            v: _in_floats(narrow[v]) for v in kernel.operands if v in narrow
        }
        weights = {p.constant for p in self.matmuls.get(kernel, ()) if self._pays(p)}
        for value in kernel.operands:
            if value in weights and value in self.constants:
                stored = self._float_weight(kernel, value)
                replaced |= {} if stored is None else {value: stored}
        replaced |= {p.constant: s for p, s in self.quantized.items() if p.kernel is kernel}
        results = tuple(narrow.get(v, v) for v in kernel.results)
        inside = self._rounded(kernel)
        if not replaced and results == kernel.results and inside is kernel:
            return kernel
        return _rewritten(inside, replaced, results)

    # ---- activations --------------------------------------------------------------------------

    def _activations(self) -> set[Value]:
        """Values to store narrow: those that a product of pairs reads, and what shares their
        storage; or all."""
        everywhere = self.precision.everywhere
        if not everywhere and (self.precision.floats is not BF16 or not self.precision.pairs):
            return set()
        results = {v for k in self.kernels for v in k.results} | {*self.placed.wholes.values()}
        able = results - seen_by_others(self.placed.graph)
        able = {v for v in able if v.type.dtype is F32}
        for kernel in self.kernels:
            able -= {v for _, node, v in operand_reads(kernel) if not _exact(node)}
            able -= _summed(kernel) if everywhere else set()
        paired = (
            _paired_with(p, self.placed.layouts) for found in self.matmuls.values() for p in found
        )
        wanted = set(able) if everywhere else {v for v in paired if isinstance(v, Value)} & able
        # A whole and its parts are one storage: of one type, narrow only if all of them can be.
        for shared in _storages(self.placed.wholes):
            if not shared <= able:
                wanted -= shared
            elif shared & wanted:
                wanted |= shared
        return wanted

    def _paired(self, matmul: _Matmul) -> bool:
        with_ = _paired_with(matmul, self.placed.layouts)
        return with_ in self.activations or (isinstance(with_, StageRef) and self._exchanges())

    def _exchanges(self) -> bool:
        """Whether what stages exchange is rounded for products of pairs."""
        narrow = self.precision.floats is BF16 and self.precision.pairs
        return narrow and not self.precision.everywhere

    def _rounded(self, kernel: Kernel) -> Kernel:
        """`kernel` with what its stages exchange in bf16 where products of pairs read it."""
        numbers = {stage: n for n, stage in enumerate(kernel.expr.stages)}
        wanted: dict[StageRef, frozenset[int]] = {}
        for matmul in self.matmuls.get(kernel, ()) if self._exchanges() else ():
            source = _paired_with(matmul, self.placed.layouts)
            if isinstance(source, StageRef):
                readers = wanted.get(source, frozenset())
                wanted[source] = readers | {numbers[matmul.stage]}
        return replace(kernel, expr=with_rounded(kernel.expr, wanted, BF16)) if wanted else kernel

    # ---- weights ------------------------------------------------------------------------------

    def _pays(self, matmul: _Matmul) -> bool:
        """Whether a narrow weight makes a product faster: by pairs, or because so few results use
        it that reading it takes longer than widening it again and again."""
        return self._paired(matmul) or _uses(matmul) <= self.precision.uses

    def _float_weight(self, kernel: Kernel, value: Value) -> _Stored | None:
        if self.precision.floats is F32 or value.type.dtype is not F32:
            return None
        if not all(_exact(node) for _, node, v in operand_reads(kernel) if v is value):
            return None
        count = as_int(element_count(value.type.shape)) or 0
        needed = any(p.constant is value and self._paired(p) for p in self.matmuls[kernel])
        if count < _LARGE and not needed:
            return None
        if value not in self.floats:
            self.floats[value] = None
            array = rounded(self._array(value), self.precision.floats)
            if array is not None:
                new = self._constant(value, array, self.precision.floats)
                name = self.precision.floats.name
                self._note(value, name, name if needed else "")
                self.floats[value] = _in_floats(new)
        return self.floats[value]

    def _quantized(self, matmul: _Matmul) -> _Stored | None:
        """The weight of a matrix product as levels and scales."""
        value, axis = matmul.constant, _summed_axis(matmul)
        count = as_int(element_count(value.type.shape)) or 0
        times = sum(v is value for _, _, v in operand_reads(matmul.kernel))
        if not self.precision.bits or axis is None or count < _LARGE or times > 1:
            return None
        if (value, axis) not in self.levels:
            self.levels[value, axis] = self._levels(value, axis)
        return self.levels[value, axis]

    def _levels(self, value: Value, axis: int) -> _Stored | None:
        array = self._array(value)
        length = array.shape[axis]
        # An odd number of rows does not fill bytes.
        bits = 8 if length % 2 else self.precision.bits
        found = quantized(array, axis, bits)
        if found is None:
            return None
        levels, scales = found
        packed = nibbles(levels, axis) if bits == 4 else levels
        values = (self._constant(value, packed, I8), self._constant(value, scales, BF16))
        size = group_size(length)
        self._note(value, f"int{bits}", "")

        def value_of(node: Read, first: int) -> Scalar:
            at = node.indices
            level = _level(node, first, axis, bits)
            group = read(first + 1, _at(at, axis, at[axis] // size), BF16)
            return apply("mul", cast(level, F32), cast(group, F32))

        return _Stored(values, value_of)

    def _note(self, value: Value, type: str, operands: str) -> None:
        graph = self.constants[value]
        self.types[value] = type
        store, handle = graph.store, graph.constants[value]
        sources = store.sources(handle)
        first: dict[str, Handle] = {}
        for other in store.handles():
            for name in store.sources(other)[:1] if len(store.sources(other)) == 1 else ():
                first.setdefault(name, other)
        parts = [_bits_sum(store.get(first[name])) for name in sources if name in first]
        moved = len(sources) == 1 or sum(parts) == _bits_sum(store.get(handle))
        self.rounded.append(Rounded(sources, type, operands, moved))

    def _array(self, value: Value) -> Array:
        array = self.constants[value].constant(value)
        assert array is not None
        return array

    def _constant(self, source: Value, array: Array, dtype: DType) -> Value:
        shape = tuple(map(const, array.shape))
        value = Value(f"{source.name}.{dtype.name}", TensorType(dtype, shape))
        self.made[value] = self.placed.graph.store.put(array, dtype)
        return value


# ---- reads in other types -----------------------------------------------------------------------


def _in_floats(value: Value) -> _Stored:
    dtype = value.type.dtype

    def value_of(node: Read, first: int) -> Scalar:
        return cast(read_from(node, first, dtype), node.dtype)

    return _Stored((value,), value_of)


def _level(node: Read, first: int, axis: int, bits: int) -> Scalar:
    """The level that belongs to a read of the weight."""
    if bits == 8:
        return read(first, node.indices, I8)
    at = node.indices[axis]
    both = cast(read(first, _at(node.indices, axis, at // 2), I8), I32)
    # The wanted half goes to the top, and back with its sign.
    raised = apply("shift_left", both, index_value(28 - 4 * (at % 2), I32))
    return apply("shift_right", raised, literal(28, I32))


def _at(indices: Indices, axis: int, index: Index) -> Indices:
    return (*indices[:axis], index, *indices[axis + 1 :])


def _rewritten(kernel: Kernel, replaced: Mapping[Value, _Stored], results: Values) -> Kernel:
    """`kernel` with operands replaced, and results cast to the types of `results`."""
    values: list[Value] = []
    first: list[int] = []
    for value in kernel.operands:
        first.append(len(values))
        values += replaced[value].values if value in replaced else (value,)

    def moved(node: Read) -> Scalar:
        if not isinstance(node.source, int):
            return node
        number = first[node.source]
        stored = replaced.get(kernel.operands[node.source])
        return read_from(node, number) if stored is None else stored.value_of(node, number)

    stages = tuple(with_reads(s, moved) for s in kernel.expr.stages)
    params = tuple(v.type for v in values)
    rounded = cast_results(
        Expr(params, stages, kernel.expr.outputs), [v.type.dtype for v in results]
    )
    return replace(kernel, expr=canonical(rounded), operands=tuple(values), results=results)


def cast_results(expr: Expr, dtypes: Sequence[DType]) -> Expr:
    """`expr` with results of these types.  They are rounded when they are stored: in the stage that
    computes them if nothing else reads it and it sums nothing up, else in a stage of their own."""
    stages, outputs = list(expr.stages), list(expr.outputs)
    read_again = {r.source for s in stages for r in reads(s)}
    for number, dtype in enumerate(dtypes):
        ref = outputs[number]
        stage = stages[ref.stage]
        if stage.body[ref.component].dtype is dtype:
            continue
        if stage.monoid is None and ref not in read_again and outputs.count(ref) == 1:
            body = list(stage.body)
            body[ref.component] = cast(body[ref.component], dtype)
            stages[ref.stage] = replace(stage, body=tuple(body))
            continue
        stages.append(rounding_stage(stage, ref, dtype))
        outputs[number] = StageRef(len(stages) - 1)
    return Expr(expr.params, tuple(stages), tuple(outputs))


def _bits_sum(array: Array) -> int:
    """A sum over the elements' bits: equal for arrays with the same elements in any order."""
    return int(np.ascontiguousarray(array).view(np.uint8).sum(dtype=np.uint64))


# ---- questions ----------------------------------------------------------------------------------


def _operand(kernel: Kernel, node: Read) -> Value:
    assert isinstance(node.source, int)
    return kernel.operands[node.source]


def _summed(kernel: Kernel) -> set[Value]:
    """The operands whose elements are summed as they are: parts of sums among them, whose rounding
    would be that of all their terms."""
    found = operand_reads(kernel)
    return {v for stage, node, v in found if stage.monoid == "sum" and node in stage.body}


def _matmuls(kernel: Kernel, constants: Mapping[Value, Graph]) -> Iterator[_Matmul]:
    """The stages that sum products of something and a constant's elements, in f32."""
    for stage in kernel.expr.stages:
        found = multiplied(stage)
        if found is None or stage.body[0].dtype is not F32:
            continue
        a, b = found.a, found.b
        if _is_weight(a, kernel, constants):
            yield _Matmul(kernel, stage, b, a)
        elif _is_weight(b, kernel, constants):
            yield _Matmul(kernel, stage, a, b)


def _is_weight(factor: Scalar, kernel: Kernel, constants: Mapping[Value, Graph]) -> TypeGuard[Read]:
    if not isinstance(factor, Read) or not isinstance(factor.source, int):
        return False
    return not factor.indirect and kernel.operands[factor.source] in constants


def _storages(wholes: Mapping[Value, Value]) -> list[set[Value]]:
    """Each whole that is no part itself, with its parts and theirs."""
    found: dict[Value, set[Value]] = {}
    for part, whole in wholes.items():
        while whole in wholes:
            whole = wholes[whole]
        found.setdefault(whole, {whole}).add(part)
    return list(found.values())


def _long_loops(stage: Stage) -> list[Var]:
    return [v for v in stage.reduce if known_extent(v) != 1]


def _uses(matmul: _Matmul) -> int:
    """How many results of a run use an element of the weight; loops of symbolic size may be
    short."""
    moving = {v for index in matmul.weight.indices for v in free_vars(index)}
    sizes = (known_extent(v) or 1 for v in matmul.stage.iters if v not in moving)
    return prod(sizes)


def _batched(matmul: _Matmul) -> bool:
    """Whether a loop of the result runs along an axis of both factors, as in products of
    transformed filters: rounding these would lose more than the policy for them allows."""
    others = [n for n in walk(matmul.other) if isinstance(n, Read)]
    ours = {var_of(index) for node in others for index in node.indices}
    theirs = {var_of(index) for index in matmul.weight.indices}
    return any(v in ours & theirs and known_extent(v) != 1 for v in matmul.stage.iters)


def _paired_with(matmul: _Matmul, layouts: Mapping[Value, Layout]) -> Value | StageRef | None:
    """The value, or the stage's result, whose neighbours along a sum could be multiplied in pairs,
    if there is one: they lie side by side, and the weight has a loop of its own for the lanes."""
    other, weight = matmul.other, matmul.weight
    if not isinstance(other, Read) or other.indirect or not _exact(other):
        return None
    source: Value | StageRef
    if isinstance(other.source, StageRef):
        source = other.source
        sizes = (extent(v) for v in matmul.kernel.expr.stages[source.stage].iters)
        where = row_major(tuple(sizes))
    else:
        source = _operand(matmul.kernel, other)
        where = layouts.get(source) or row_major(source.type.shape)
    place = offset(where, other.indices)
    inner = [v for v in _long_loops(matmul.stage) if _side_by_side(place, v)]
    if not inner or var_of(weight.indices[_axis_of(weight, inner[0])]) is not inner[0]:
        return None
    ours = {v for i in other.indices for v in free_vars(i)}
    theirs = {v for i in weight.indices for v in free_vars(i)}
    return source if theirs - ours else None


def _side_by_side(place: Index, var: Var) -> bool:
    """Whether each even step along a loop and the next one are neighbours."""
    pair = 2 * iterator("pair", ceildiv(extent(var), 2))
    return substitute(place, {var: pair + 1}) - substitute(place, {var: pair}) is const(1)


def _axis_of(node: Read, var: Var) -> int:
    """The first axis that moves with `var`, the last one if none does."""
    moving = (n for n, index in enumerate(node.indices) if var in free_vars(index))
    return next(moving, len(node.indices) - 1)


def _summed_axis(matmul: _Matmul) -> int | None:
    """The axis of a matrix along which it is summed, None where the weight is no matrix: the
    windows of images are not, for what rounding them costs is large and what it saves little."""
    loops = _long_loops(matmul.stage)
    shape = matmul.constant.type.shape
    if len(loops) != 1 or matmul.constant.type.dtype is not F32 or matmul.weight.fill is not None:
        return None
    if sum(as_int(n) != 1 for n in shape) != 2 or (len(shape) > 2 and _uses(matmul) > 1):
        return None  # a window of one place is a matrix only if there is one place to put it
    axis = _axis_of(matmul.weight, loops[0])
    return axis if var_of(matmul.weight.indices[axis]) is loops[0] else None


def _exact(node: Read) -> bool:
    """Whether bf16 and f16 hold what a read sees outside the extent."""
    if node.fill is None:
        return True
    fill = np.asarray([node.fill], np.float32)
    narrow = (rounded(fill, dtype) for dtype in (BF16, F16))
    return all(n is not None and n[0] == fill[0] for n in narrow)
