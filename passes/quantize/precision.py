"""Stores values between kernels in narrower types than f32, where the user asks for it.

    kernel { y = sum(k) x[i, k] * w[k, j] }           --precision bf16 on a CPU that multiplies bf16
      ->  x, w in bf16;  y = sum(k) f32(x[i, k]) * f32(w[k, j])

    kernel { y = sum(k) x[i, k] * w[k, j] }                                         --weights int8
      ->  w in i8, s in bf16;  y = sum(k) x[i, k] * (f32(w[k, j]) * f32(s[k // 32, j]))

    kernel { y = sum(k) x[i, k] * (f32(level[k, j]) * s[k // 32, j]) }              --precision bf16
      ->  x in bf16;  y = sum(k) f32(x[i, k]) * (f32(bf16(level[k, j])) * s[k // 32, j])

    kernel { s = norm(x);  y = sum(k) s[i, k] * w[k, j] }
      ->  s in bf16, w in bf16, in the kernel

Requires layouts.  Establishes casts where kernels read and write narrow values, and where a stage
writes values that a later stage of its kernel multiplies in bf16 pairs.  All arithmetic is f32, and
products of bf16 pairs are summed in f32.  Inputs, outputs, and operands of C functions and control
flow keep their types.

Activations are stored in bf16 if a contraction can then multiply pairs of bf16 in one instruction.
Otherwise they stay f32.  The activations of small batches stay in the caches, so the conversions
would cost more time than the smaller traffic saves.

Levels of at most eight bits are exact in bf16.  So they are multiplied in pairs too, and only x is
rounded: a scale multiplies the sum over its group.

Weights are the constants that contractions multiply.  If no instruction multiplies pairs of bf16,
a narrow weight is converted to f32 at each use.  So a weight that is used many times in a run stays
f32.  Tables of embeddings stay f32, because a run reads few of their rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import TypeGuard

import numpy as np
from tcc.cached import cached_method
from tcc.frozen import frozen
from tcc.ir.expr import Expr, Stage, extent, known_extent, reads, with_reads
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    StageRef,
    cast,
    read,
    read_from,
    walk,
)
from tcc.ir.graph import ConstantStore, Graph, Handle, Value, Values
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
from tcc.ir.types import BF16, F16, F32, I8, DType, TensorType
from tcc.ops.shapes import replaced
from tcc.passes.fuse.node_kinds import seen_by_others
from tcc.passes.layout.assign import Kernel, Placed, operand_of, operand_reads
from tcc.passes.layout.weights import Rounded
from tcc.passes.quantize.level_pairs import is_level, level_read, with_paired_levels
from tcc.passes.quantize.quantize_weights import group_size, rounded, scales_of, stored_levels
from tcc.passes.quantize.round_factors import cheaper_factors
from tcc.passes.quantize.round_stages import rounding_stage, with_cast, with_rounded
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.nest import long_loops, multiplied, multiplied_parts

# Smaller constants stay f32, unless a contraction of bf16 pairs needs them.
_LARGE = 1 << 14


@frozen
class Precision:
    """The narrow types that values may have.

    `floats`: the storage type of floats: f32, bf16 or f16.
    `bits`: the bits of quantised weights; 0 if weights are not quantised.
    `pairs`: True if the processor has an instruction that multiplies pairs of bf16.
    `uses`: the limit for weights that no such instruction multiplies.  A weight is stored narrow
    only if at most this many results use each element (`schedule.cpu.narrow_storage.most_uses`).
    `everywhere`: True if all values between kernels are narrow, not only factors of contractions.
    `level_bytes`: I8 or U8, the type of levels whose other factors become bytes; None: none do.
    """

    floats: DType = F32
    bits: int = 0
    pairs: bool = False
    uses: float = inf
    everywhere: bool = False
    level_bytes: DType | None = None


FULL = Precision()


@frozen
class _Replacement:
    """The values that replace an operand of a kernel.

    `value_of(read, first)` returns the scalar that replaces `read`, a read of the operand.  The
    values become operands of the kernel; `first` is the operand number of the first value.
    """

    values: Values
    value_of: Callable[[Read, int], Scalar]


@frozen
class _Matmul:
    """A contraction in a kernel: it sums products of the scalar `other` and of `weight`.

    `weight` reads a constant.  If `computed`, it reads levels, and a scalar that is computed from
    them is the factor.
    """

    kernel: Kernel
    stage: Stage
    other: Scalar
    weight: Read
    computed: bool = False

    @property
    def constant(self) -> Value:
        return operand_of(self.kernel, self.weight)


def narrowed(
    placed: Placed,
    precision: Precision,
    outer: Mapping[Value, Graph] | None = None,
    planner: KernelChooser | None = None,
) -> Placed:
    """Returns `placed` with values stored in the types of `precision`.

    Returns `placed` itself if `precision` has no narrow type.  For a body, `outer` maps each
    constant of an enclosing graph to that graph.  Prices of `planner` decide `cheaper_factors`.
    """
    if precision.floats is F32 and not precision.bits:
        return placed
    return _Narrowing(placed, precision, placed.visible(outer), planner).run()


class _Narrowing:
    def __init__(
        self,
        placed: Placed,
        precision: Precision,
        constants: Mapping[Value, Graph],
        planner: KernelChooser | None,
    ) -> None:
        self.placed, self.precision, self.constants = placed, precision, constants
        self.planner = planner
        self.kernels = placed.kernels
        self.new_constants: dict[Value, Handle] = {}
        self.rounded: list[Rounded] = []
        self.types: dict[Value, str] = {}
        self.floats: dict[Value, _Replacement | None] = {}
        matmuls = [p for k in self.kernels for p in _matmuls(k, constants)]
        self.quantized = {
            p: quantised for p in matmuls if (quantised := self._quantized(p)) is not None
        }
        self.matmuls = [p for p in matmuls if p not in self.quantized and not _batched(p)]
        levels = [replace(p, computed=True) for p in self.quantized]
        stored_levels = [p for k in self.kernels for p in _level_matmuls(k, constants)]
        self.pairs_levels = self._exchanges() and precision.level_bytes is None
        if self.pairs_levels:
            self.matmuls += [p for p in (*levels, *stored_levels) if not _batched(p)]
        self.activations = self._activations()
        self._note_levels(levels, stored_levels)
        self.weights = dict.fromkeys(p.constant for p in matmuls)

    def run(self) -> Placed:
        narrow = {
            v: Value(v.name, TensorType(self.precision.floats, v.shape)) for v in self.activations
        }
        steps = self.placed.with_kernels(lambda kernel: self._kernel(kernel, narrow))
        layouts = {narrow.get(v, v): layout for v, layout in self.placed.layouts.items()}
        containers = {narrow.get(v, v): narrow.get(w, w) for v, w in self.placed.containers.items()}
        graph = self.placed.graph
        graph = replace(graph, constants={**graph.constants, **self.new_constants})
        types = {v: self.types.get(v, v.dtype.name) for v in self.weights}
        return Placed(graph, steps, layouts, containers, tuple(self.rounded), weight_types=types)

    def _kernel(self, kernel: Kernel, narrow: Mapping[Value, Value]) -> Kernel:
        replacements: dict[Value, _Replacement] = {
            v: in_floats(narrow[v]) for v in kernel.operands if v in narrow
        }
        weights = {p.constant for p in self._matmuls_of(kernel) if not p.computed and self._pays(p)}
        for value in kernel.operands:
            if value in weights and value in self.constants:
                replacement = self._float_weight(kernel, value)
                replacements |= {} if replacement is None else {value: replacement}
        replacements |= {p.constant: s for p, s in self.quantized.items() if p.kernel is kernel}
        results = tuple(narrow.get(v, v) for v in kernel.results)
        inside = self._rounded(kernel)
        if replacements or results != kernel.results or inside is not kernel:
            kernel = with_operands(inside, replacements, results)
            if self.pairs_levels:
                kernel = replace(kernel, expr=with_paired_levels(kernel.expr))
        if self.planner is None or not self._exchanges():
            return kernel
        known = {*self.constants, *self.new_constants}
        return cheaper_factors(kernel, self.placed.layouts, known, self.planner)

    def _matmuls_of(self, kernel: Kernel) -> list[_Matmul]:
        return [p for p in self.matmuls if p.kernel is kernel]

    # ---- activations --------------------------------------------------------------------------

    def _activations(self) -> set[Value]:
        """Returns the activations to store in the narrow type.

        They are the activations that a contraction multiplies in pairs of bf16, and values that
        share their storage.  With `everywhere`, they are all values between kernels that may be
        narrow.
        """
        everywhere = self.precision.everywhere
        if not everywhere and not self._exchanges():
            return set()
        results = {v for k in self.kernels for v in k.results} | {*self.placed.containers.values()}
        candidates = results - seen_by_others(self.placed.graph)
        candidates = {v for v in candidates if v.dtype is F32}
        for kernel in self.kernels:
            candidates -= {v for _, node, v in operand_reads(kernel) if not _exact(node)}
            candidates -= _summed(kernel) if everywhere else set()
        paired = (_paired_with(p, self.placed.layouts) for p in self.matmuls)
        narrow = set(candidates) if everywhere else candidates.intersection(paired)
        # A value and its parts share one storage, hence one type: narrow only if all of them can
        # be.
        for shared in _storages(self.placed.containers):
            if not shared <= candidates:
                narrow -= shared
            elif shared & narrow:
                narrow |= shared
        return narrow

    def _paired(self, matmul: _Matmul) -> bool:
        with_ = _paired_with(matmul, self.placed.layouts)
        return with_ in self.activations or (isinstance(with_, StageRef) and self._exchanges())

    def _exchanges(self) -> bool:
        """Returns True if values that stages of a kernel exchange are stored in bf16.

        They are rounded only for contractions that multiply pairs of bf16.
        """
        narrow = self.precision.floats is BF16 and self.precision.pairs
        return narrow and not self.precision.everywhere

    def _rounded(self, kernel: Kernel) -> Kernel:
        """Returns `kernel` with stage results in bf16 where its contractions multiply pairs."""
        numbers = {stage: n for n, stage in enumerate(kernel.expr.stages)}
        readers_of: dict[StageRef, frozenset[int]] = {}
        for matmul in self._matmuls_of(kernel) if self._exchanges() else ():
            source = _paired_with(matmul, self.placed.layouts)
            if isinstance(source, StageRef):
                readers = readers_of.get(source, frozenset())
                readers_of[source] = readers | {numbers[matmul.stage]}
        return (
            replace(kernel, expr=with_rounded(kernel.expr, readers_of, BF16))
            if readers_of
            else kernel
        )

    # ---- weights ------------------------------------------------------------------------------

    def _pays(self, matmul: _Matmul) -> bool:
        """Returns True if a narrow weight makes a contraction faster.

        It does if instructions multiply pairs of bf16.  Otherwise each use converts the weight.
        Then it does only if a weight has few uses, so that reading it as f32 would take longer than
        the conversions.
        """
        return self._paired(matmul) or _uses(matmul) <= self.precision.uses

    def _float_weight(self, kernel: Kernel, value: Value) -> _Replacement | None:
        floats = self.precision.floats
        if floats is F32 or value.dtype is not F32:
            return None
        if not all(_exact(node) for _, node, v in operand_reads(kernel) if v is value):
            return None
        count = value.type.count or 0
        needed = any(p.constant is value and self._paired(p) for p in self._matmuls_of(kernel))
        if count < _LARGE and not needed:
            return None
        if value not in self.floats:
            self.floats[value] = None
            store, handle = self._source(value)
            if store.fact(fits, (handle,), floats):
                self._note(value, floats.name, floats.name if needed else "")
                narrow = store.derive(partial(rounded, dtype=floats), floats.name, [handle])
                constant = self._constant(value, narrow, floats, value.shape)
                self.floats[value] = in_floats(constant)
        return self.floats[value]

    def _quantized(self, matmul: _Matmul) -> _Replacement | None:
        """Returns the levels and scales that replace a matmul's weight; None if it is not
        quantised.
        """
        value, axis = matmul.constant, _summed_axis(matmul)
        count = value.type.count or 0
        times = sum(v is value for _, _, v in operand_reads(matmul.kernel))
        if not self.precision.bits or axis is None or count < _LARGE or times > 1:
            return None
        return self._levels(value, axis)

    @cached_method
    def _levels(self, value: Value, axis: int) -> _Replacement | None:
        store, handle = self._source(value)
        shape = value.shape
        length = as_int(shape[axis]) or 0
        # An odd number of 4-bit levels does not fill whole bytes.
        bits = 8 if length % 2 else self.precision.bits
        if not store.fact(fits, (handle,), F32):
            return None
        size, form = group_size(length), f"of {bits} bits along {axis}"
        make = partial(scales_of, axis=axis, bits=bits)
        scales = store.derive(make, f"scales {form}", [handle])
        make = partial(stored_levels, axis=axis, bits=bits)
        levels = store.derive(make, f"levels {form}", [handle, scales])
        values = (
            self._constant(value, levels, I8, replaced(shape, axis, shape[axis] // (8 // bits))),
            self._constant(value, scales, BF16, replaced(shape, axis, shape[axis] // size)),
        )
        self.types[value] = f"int{bits}"

        def value_of(node: Read, first: int) -> Scalar:
            at = node.indices
            level = level_read(node, first, axis, bits)
            group = read(first + 1, replaced(at, axis, at[axis] // size), BF16)
            return cast(level, F32) * cast(group, F32)

        return _Replacement(values, value_of)

    def _note_levels(self, levels: Sequence[_Matmul], stored_levels: Sequence[_Matmul]) -> None:
        """Notes the constants that become levels, and the operands that levels round."""
        pairs = [p for p in (*levels, *stored_levels) if self.pairs_levels and self._paired(p)]
        rounding = {p.constant for p in pairs}
        for value in dict.fromkeys(p.constant for p in levels):
            self._note(value, self.types[value], BF16.name if value in rounding else "")
        for value in dict.fromkeys(p.constant for p in stored_levels):
            if value in rounding:
                self._note(value, value.dtype.name, BF16.name)

    def _note(self, value: Value, type: str, operands: str) -> None:
        store, handle = self._source(value)
        self.types[value] = type
        sources = store.sources(handle)
        first = {store.sources(other): other for other in reversed([*store.handles()])}
        parts = [first[name,] for name in sources if (name,) in first]
        is_reordering = len(sources) == 1 or (
            "" not in sources
            and store.fact(_byte_sum, (handle,)) == sum(store.fact(_byte_sum, (p,)) for p in parts)
        )
        names = tuple(filter(None, sources))
        self.rounded.append(Rounded(names, type, operands, is_reordering))

    def _source(self, value: Value) -> tuple[ConstantStore, Handle]:
        graph = self.constants[value]
        return graph.store, graph.constants[value]

    def _constant(self, source: Value, handle: Handle, dtype: DType, shape: Indices) -> Value:
        value = Value(f"{source.name}.{dtype.name}", TensorType(dtype, shape))
        self.new_constants[value] = handle
        return value


def fits(arrays: Sequence[Array], dtype: DType) -> bool:
    """Returns True if f32 arrays can be rounded to `dtype`; for f32, if they are finite."""
    if dtype is F32:
        return all(np.isfinite(array).all() for array in arrays)
    return all(rounded(array, dtype) is not None for array in arrays)


def _byte_sum(arrays: Sequence[Array]) -> int:
    """Returns the sum of all bytes, which does not depend on the order of the elements."""
    return sum(int(array.ravel().view(np.uint8).sum(dtype=np.uint64)) for array in arrays)


# ---- replacements of reads ----------------------------------------------------------------------


def in_floats(value: Value) -> _Replacement:
    dtype = value.dtype

    def value_of(node: Read, first: int) -> Scalar:
        return cast(read_from(node, first, dtype), node.dtype)

    return _Replacement((value,), value_of)


def with_operands(
    kernel: Kernel, replacements: Mapping[Value, _Replacement], results: Values
) -> Kernel:
    """Returns `kernel` with operands replaced, and results cast to the types of `results`."""
    values: list[Value] = []
    first: list[int] = []
    for value in kernel.operands:
        first.append(len(values))
        values += replacements[value].values if value in replacements else (value,)

    def narrow_read(node: Read) -> Scalar:
        if not isinstance(node.source, int):
            return node
        number = first[node.source]
        replacement = replacements.get(kernel.operands[node.source])
        return (
            read_from(node, number) if replacement is None else replacement.value_of(node, number)
        )

    stages = tuple(with_reads(s, narrow_read) for s in kernel.expr.stages)
    params = tuple(v.type for v in values)
    rounded = cast_results(Expr(params, stages, kernel.expr.outputs), [v.dtype for v in results])
    return replace(kernel, expr=canonical(rounded), operands=tuple(values), results=results)


def cast_results(expr: Expr, dtypes: Sequence[DType]) -> Expr:
    """Returns `expr` with results of the types `dtypes`.

    A result is rounded where it is stored: in its own stage if nothing else reads the result and
    the stage has no reduction, else in an additional stage.
    """
    stages, outputs = list(expr.stages), list(expr.outputs)
    read_again = {r.source for s in stages for r in reads(s)}
    for number, dtype in enumerate(dtypes):
        ref = outputs[number]
        stage = stages[ref.stage]
        if stage.body[ref.component].dtype is dtype:
            continue
        if stage.monoid is None and ref not in read_again and outputs.count(ref) == 1:
            stages[ref.stage] = with_cast(stage, ref.component, dtype)
            continue
        stages.append(rounding_stage(stage, ref, dtype))
        outputs[number] = StageRef(len(stages) - 1)
    return Expr(expr.params, tuple(stages), tuple(outputs))


# ---- properties of kernels -----------------------------------------------------------------------


def _summed(kernel: Kernel) -> set[Value]:
    """Returns the operands that a stage sums without multiplying them, such as partial sums.

    Rounding a partial sum would add an error as large as rounding all of its terms.
    """
    accesses = operand_reads(kernel)
    return {v for stage, node, v in accesses if stage.monoid == "sum" and node in stage.body}


def _matmuls(kernel: Kernel, constants: Mapping[Value, Graph]) -> Iterator[_Matmul]:
    """Yields the f32 contractions of `kernel` in which a factor is a read of a constant."""
    for stage, a, b in _contractions(kernel):
        weight, other = (a, b) if _is_weight(a, kernel, constants) else (b, a)
        if _is_weight(weight, kernel, constants):
            yield _Matmul(kernel, stage, other, weight)


def _level_matmuls(kernel: Kernel, constants: Mapping[Value, Graph]) -> Iterator[_Matmul]:
    """Yields the f32 contractions of `kernel` in which a factor is computed from constant levels
    that are exact in bf16.
    """
    for stage, a, b in _contractions(kernel):
        for other, weight in ((a, b), (b, a)):
            levels = [part for part in multiplied_parts(weight) if is_level(part)]
            nodes = [n for part in levels for n in walk(part) if isinstance(n, Read)]
            if isinstance(other, Read) and nodes and _is_weight(nodes[0], kernel, constants):
                yield _Matmul(kernel, stage, other, nodes[0], computed=True)


def _contractions(kernel: Kernel) -> Iterator[tuple[Stage, Scalar, Scalar]]:
    """Yields the f32 contractions of `kernel` with their two factors."""
    for stage in kernel.expr.stages:
        factors = multiplied(stage)
        if factors is not None and stage.body[0].dtype is F32:
            yield stage, factors.a, factors.b


def _is_weight(factor: Scalar, kernel: Kernel, constants: Mapping[Value, Graph]) -> TypeGuard[Read]:
    if not isinstance(factor, Read) or not isinstance(factor.source, int):
        return False
    return not factor.indirect and kernel.operands[factor.source] in constants


def _storages(containers: Mapping[Value, Value]) -> list[set[Value]]:
    """Returns the sets of values that share memory.

    `containers` maps a part to the value that it is a part of.  A set has a value, its parts, and
    their parts.
    """
    storage_of: dict[Value, set[Value]] = {}
    for part, root in containers.items():
        while root in containers:
            root = containers[root]
        storage_of.setdefault(root, {root}).add(part)
    return list(storage_of.values())


def _uses(matmul: _Matmul) -> int:
    """Returns how many results use an element of the weight.

    A loop of symbolic extent counts as a loop of one iteration.
    """
    moving = free_vars(*matmul.weight.indices)
    return prod(known_extent(v) or 1 for v in matmul.stage.iters if v not in moving)


def _batched(matmul: _Matmul) -> bool:
    """Returns True if a loop over results indexes both factors, as in a batched matmul.

    Winograd's matmuls of transformed filters are batched.  Rounding their factors would lose more
    precision than their error policy allows.
    """
    other_reads = [n for n in walk(matmul.other) if isinstance(n, Read)]
    ours = {var_of(index) for node in other_reads for index in node.indices}
    theirs = {var_of(index) for index in matmul.weight.indices}
    return any(v in ours & theirs and known_extent(v) != 1 for v in matmul.stage.iters)


def _paired_with(matmul: _Matmul, layouts: Mapping[Value, Layout]) -> Value | StageRef | None:
    """Returns the source of the other factor if bf16 instructions can multiply it in pairs.

    The source is a value or a stage's result.  Its elements 2n and 2n + 1 along the sum must be
    adjacent in memory, and the weight must depend on a loop that the other factor does not depend
    on: vectors run along that loop.  Returns None if pairs are not possible.
    """
    other, weight = matmul.other, matmul.weight
    if not isinstance(other, Read) or other.indirect or not _exact(other):
        return None
    source: Value | StageRef
    if isinstance(other.source, StageRef):
        source = other.source
        sizes = (extent(v) for v in matmul.kernel.expr.stages[source.stage].iters)
        layout = row_major(tuple(sizes))
    else:
        source = operand_of(matmul.kernel, other)
        layout = layouts.get(source) or row_major(source.shape)
    place = offset(layout, other.indices)
    inner = [v for v in long_loops(matmul.stage) if _side_by_side(place, v)]
    if not inner:
        return None
    # A computed factor is joined to pairs in registers.
    axis = _axis_of(weight, inner[0])
    if not matmul.computed and var_of(weight.indices[axis]) is not inner[0]:
        return None
    return source if {*free_vars(*weight.indices)} - {*free_vars(*other.indices)} else None


def _side_by_side(place: Index, var: Var) -> bool:
    """Returns True if the elements at steps 2n and 2n + 1 of the loop `var` are adjacent.

    `place` is the offset of an element in memory.
    """
    pair = 2 * iterator("pair", ceildiv(extent(var), 2))
    return substitute(place, {var: pair + 1}) - substitute(place, {var: pair}) is const(1)


def _axis_of(node: Read, var: Var) -> int:
    """Returns the first axis whose index depends on `var`; the last axis if no index does."""
    moving = (n for n, index in enumerate(node.indices) if var in free_vars(index))
    return next(moving, len(node.indices) - 1)


def _summed_axis(matmul: _Matmul) -> int | None:
    """Returns the axis along which a weight matrix is summed; None if the weight is not a matrix.

    The weight of a convolution with a window is not a matrix: rounding it costs much accuracy and
    saves little.
    """
    loops = long_loops(matmul.stage)
    shape = matmul.constant.shape
    if len(loops) != 1 or matmul.constant.dtype is not F32 or matmul.weight.fill is not None:
        return None
    if sum(as_int(n) != 1 for n in shape) != 2 or (len(shape) > 2 and _uses(matmul) > 1):
        # The weight of a 1 x 1 convolution counts as a matrix only if the image has a single
        # position.
        return None
    axis = _axis_of(matmul.weight, loops[0])
    return axis if var_of(matmul.weight.indices[axis]) is loops[0] else None


def _exact(node: Read) -> bool:
    """Returns True if bf16 and f16 represent the fill value of a read exactly, or if it has
    none.
    """
    if node.fill is None:
        return True
    fill = np.asarray([node.fill], np.float32)
    narrow = (rounded(fill, dtype) for dtype in (BF16, F16))
    return all(n is not None and n[0] == fill[0] for n in narrow)
