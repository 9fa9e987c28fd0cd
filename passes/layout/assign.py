"""Chooses the layout of every stored value by a rule.

    conv -> relu -> conv          values [n, c, h, w] stored (n, h, w, c), the input of the second
                                  convolution with a halo of zeros as wide as its padding

Requires a partitioned graph.  Establishes a layout for each stored value:

- Values that the caller, C functions or control flow see are row-major.
- States to which the run appends rows may have room behind their rows (`state_room.py`).
- Values that windows read and write have channels last, so that no layout changes in a network.
- Values with padded reads get a halo that holds the fill value, so that the reads need no checks.
  If the value belongs to the caller, the kernel reads a padded copy of it.
- The operands of a concatenation without a kernel lie in parts of its result.
- Planes, the parts of a value at each index of its first axis, begin in different cache sets if a
  kernel reads an element of each of them for a single result.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from math import prod
from typing import TypeAlias

from tcc.frozen import entity, frozen
from tcc.ir.expr import Expr, ExprBuilder, Stage, extent, reads, with_reads
from tcc.ir.expr.scalar import Read, Scalar, read
from tcc.ir.graph import Graph, Node, Value, Values
from tcc.ir.index import (
    Index,
    Indices,
    Quotient,
    as_int,
    atoms,
    bounds,
    const,
    factor_of,
    free_vars,
    linear_in,
    substitute,
    var_of,
    within,
)
from tcc.ir.layout import Layout, axis_order, part_of, permuted, row_major, set_apart, with_halo
from tcc.ir.op import Trait
from tcc.ir.types import TensorType
from tcc.known import all_known
from tcc.ops.shapes import Shape, replaced
from tcc.passes.fuse.compose import compose
from tcc.passes.fuse.concat_in_place import ConcatPart, Join
from tcc.passes.fuse.guards import Guards, split_guards
from tcc.passes.fuse.node_kinds import NodeKind, classify, seen_by_others
from tcc.passes.fuse.partition import Group, partition
from tcc.passes.fuse.split import Kernel as Kernel  # other rooms import it from here
from tcc.passes.fuse.split import split
from tcc.passes.layout.pad_planes import crowded
from tcc.passes.layout.state_room import state_layouts
from tcc.passes.layout.weights import Rounded
from tcc.schedule.alternatives import NO_TIME, Seconds
from tcc.schedule.backend import KernelModel
from tcc.schedule.footprint import LINE
from tcc.schedule.nest import trips, typical
from tcc.zipped import zip_equal

# A function from the indices of an element of a copy to its indices in the source.
Place: TypeAlias = Callable[[Indices], Iterable[Index]]


@entity
class ProgramStep:
    """A step of a run: a kernel, or a node that is not a kernel, such as a call or control flow.

    If `every` is not empty, the kernel compacts its operand: along storage dimension d, it keeps
    each `every[d]`-th element.  Nothing reads the operand later, so the result may overlap it.
    """

    kernel: Kernel | None
    node: Node | None = None
    every: tuple[int, ...] = ()

    @property
    def condition(self) -> Value | None:
        """Returns the condition under which the step runs; None if it always runs."""
        return None if self.kernel is None else self.kernel.condition

    @property
    def results(self) -> Values:
        """Returns the values that the step stores."""
        return self.kernel.results if self.kernel else self.node.outputs if self.node else ()


@entity
class Placed:
    """The steps of a graph in order, and the layouts of the values that they store.

    `containers`: maps a value that lies in a part of another value to that other value.
    `rounded`: the constants that are stored with less precision than in the model.
    `weight_types`: the stored types of the weights of contractions, if less than f32 is requested.
    `surface`: for inputs and outputs that are packed, by name, the types that callers see.
    """

    graph: Graph
    steps: tuple[ProgramStep, ...]
    layouts: Mapping[Value, Layout]
    containers: Mapping[Value, Value]
    rounded: tuple[Rounded, ...] = ()
    weight_types: Mapping[Value, str] = field(default_factory=dict)
    surface: Mapping[str, TensorType] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Returns the kernels that always run, in their order."""
        return always_running(self.steps)

    def visible(self, outer: Mapping[Value, Graph] | None) -> dict[Value, Graph]:
        """Returns the graph of each constant that the steps can read.  `outer` has those of the
        graphs around this graph, or is None."""
        return {**(outer or {}), **dict.fromkeys(self.graph.constants, self.graph)}

    def with_kernels(self, of: Callable[[Kernel], Kernel]) -> tuple[ProgramStep, ...]:
        """Returns the steps with `of(kernel)` in place of each kernel."""
        return tuple(s if s.kernel is None else replace(s, kernel=of(s.kernel)) for s in self.steps)


def always_running(steps: Iterable[ProgramStep]) -> tuple[Kernel, ...]:
    """Returns the kernels among `steps` that always run, in their order."""
    return tuple(s.kernel for s in steps if s.kernel and s.condition is None)


def operand_reads(kernel: Kernel) -> Iterator[tuple[Stage, Read, Value]]:
    """Yields (stage, read, operand) for every read of an operand."""
    for stage in kernel.expr.stages:
        for node in reads(stage):
            if isinstance(node.source, int):
                yield stage, node, kernel.operands[node.source]


def operand_of(kernel: Kernel, node: Read) -> Value:
    """Returns the operand that `node` reads."""
    assert isinstance(node.source, int)
    return kernel.operands[node.source]


def copy_of(
    source: Value, target: Value, loc: str, place: Place = tuple, fill: float | None = None
) -> Kernel:
    """Returns a kernel that copies: element `at` of `target` is element `place(at)` of `source`, or
    `fill` if that lies outside."""
    builder = ExprBuilder(source.type)
    at = builder.point(target.type)
    expr = builder.finish(at, builder.read(0, *place(at), fill=fill))
    return Kernel(expr, (source,), (target,), loc)


def on_others(
    kernel: Kernel, replacements: Mapping[Value, Value], read_of: Callable[[Read, Value], Scalar]
) -> Kernel:
    """Returns `kernel` with operands replaced by `replacements`.  `read_of(read, operand)` returns
    what takes the place of a read of a replaced operand."""

    def moved(node: Read) -> Scalar:
        operand = kernel.operands[node.source] if isinstance(node.source, int) else None
        return node if operand is None or operand not in replacements else read_of(node, operand)

    stages = tuple(with_reads(stage, moved) for stage in kernel.expr.stages)
    operands = tuple(replacements.get(v, v) for v in kernel.operands)
    expr = replace(kernel.expr, params=tuple(v.type for v in operands), stages=stages)
    return replace(kernel, expr=expr, operands=operands)


@frozen
class _Halo:
    widths: tuple[tuple[int, int], ...]  # (before, after) of each logical axis, in elements
    fill: float


def assign_layouts(
    graph: Graph,
    groups: Sequence[Group],
    model: KernelModel,
) -> Placed:
    """Returns layouts for all values that the groups of `graph` store.  If `model.gaps`, values may
    have halos, and padding between their planes."""
    guards = split_guards(graph)
    guarded_graph = guards.graph
    users = guarded_graph.users()
    waiting: list[tuple[Value, Values]] = []
    available = {*graph.inputs, *guards.flags.values()} - guarded_graph.producers().keys()
    steps: list[ProgramStep] = []
    windows: set[Value] = set()
    joins: list[Join] = []
    for group in groups:
        results = group.results(guarded_graph, users)
        available.update(results)
        if group.join is not None:
            copies, join = _joined(group.join, _location(group))
            steps += (ProgramStep(copy) for copy in copies)
            joins.append(join)
            continue
        if classify(group.sink) is NodeKind.OPAQUE:
            steps.append(ProgramStep(None, group.sink))
            continue
        pieces = _pieces(group, results, model)
        steps += map(ProgramStep, pieces)
        members = (v for n in group.members for v in n.outputs)
        waiting += ((v, results) for v in members if v in guards.flags)
        for guarded in [pair for pair in waiting if guards.flags[pair[0]] in available]:
            waiting.remove(guarded)
            steps += map(ProgramStep, _direct_kernels(guards, *guarded, available, model))
        slides = [n for n in group.members if Trait.WINDOW in n.op.traits]
        shapes = [v.shape for n in slides for v in n.outputs]
        windows.update(v for v in results if v.shape in shapes)
    containers = {p.value: join.result for join in joins for p in join.parts}
    pinned = seen_by_others(graph)
    # A visible value has a fixed layout, and so have its parts.
    for join in reversed(joins):
        pinned.update(p.value for p in join.parts if join.result in pinned)
    last = _channels_last(steps, windows, pinned, containers)
    halos = (
        _of_wholes(_halos(graph.constants, always_running(steps)), joins, pinned)
        if model.gaps
        else {}
    )
    steps, padded = _pad_pinned(steps, pinned, halos)
    last |= padded
    layouts: dict[Value, Layout] = {}
    stored_values = (v for step in steps for v in step.results)
    for value in (*graph.inputs, *stored_values, *(j.result for j in joins)):
        layouts[value] = _layout(value, value in last, halos.get(value), value in pinned)
    for value in _crowded(steps, joins, pinned) if model.gaps else ():
        if layouts[value].fill is None:
            layouts[value] = set_apart(layouts[value], LINE // value.dtype.bytes)
    for join in reversed(joins):
        for p in join.parts:
            shape = p.value.shape
            layouts[p.value] = part_of(layouts[join.result], shape, join.axis, p.start)
    layouts |= state_layouts(graph)
    return Placed(graph, tuple(steps), layouts, containers)


def usual_layouts(
    kernel: Kernel, constants: Collection[Value], gaps: bool
) -> Mapping[Value, Layout]:
    """Returns the layouts that a kernel's values would have inside a network.  Channels are last if
    a stage slides a window.  With `gaps`, values may have halos."""
    last = any(map(_slides, kernel.expr.stages))
    halos = _halos(constants, [kernel]) if gaps else {}
    values = (v for v in (*kernel.operands, *kernel.results) if v not in constants)
    return {v: _layout(v, last, halos.get(v), False) for v in values}


def _pieces(group: Group, results: Values, model: KernelModel) -> tuple[Kernel, ...]:
    """Returns the kernels into which a group is cut."""
    kernel = Kernel(*compose(group.members, results, model.limits), results, _location(group))

    def is_legal(expr: Expr) -> bool:
        return model.legal(expr, (False,) * len(expr.params))

    def seconds(expr: Expr) -> Seconds:
        return model.alone(expr, (False,) * len(expr.params)) or NO_TIME

    return split(kernel, None if model.scratch else is_legal, model.limits, seconds, model.ledger)


def _direct_kernels(
    guards: Guards, value: Value, results: Values, available: Collection[Value], model: KernelModel
) -> Iterator[Kernel]:
    """Yields kernels that compute `results` again, with direct sums for the guarded `value`.  They
    run only if the guard's flag is set."""
    graph = guards.repeated(value, results, available)
    users = graph.users()
    for group in partition(graph, model):
        for kernel in _pieces(group, group.results(graph, users), model):
            loc = f"{kernel.loc} (direct, where a tile fails)"
            yield replace(kernel, loc=loc, condition=guards.flags[value])


def _slides(stage: Stage) -> bool:
    """Returns True if a stage slides a window: an index has a result loop and a summed loop."""
    summed, iters = set(stage.reduce), set(stage.iters)
    moving = (set(free_vars(i)) for node in reads(stage) for i in node.indices)
    return any(v & summed and v & iters for v in moving)


def _layout(value: Value, last: bool, halo: _Halo | None, pinned: bool) -> Layout:
    shape = value.shape
    if pinned:
        return row_major(shape)
    rank = len(shape)
    channels_last = (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))
    base = permuted(shape, channels_last) if last or halo else row_major(shape)
    if halo is None:
        return base
    # The halo of a logical axis lies at the place of the axis in storage.
    return with_halo(base, tuple(halo.widths[axis] for axis in axis_order(base) or ()), halo.fill)


def _crowded(
    steps: Sequence[ProgramStep], joins: Sequence[Join], pinned: Collection[Value]
) -> list[Value]:
    """Returns the computed values whose planes need padding between them.  Values whose storage is
    shared, or visible to callers, calls or control flow, are left out."""
    kernels = always_running(steps)
    computed = {v for k in kernels for v in k.results}
    visible = {*pinned, *(v for j in joins for v in (j.result, *(p.value for p in j.parts)))}
    crowded_values = (v for k in kernels for v in crowded(k.expr, k.operands, k.results))
    return [v for v in dict.fromkeys(crowded_values) if v in computed and v not in visible]


def _location(group: Group) -> str:
    named = group.anchor or group.sink
    more = len(group.members) - 1
    return named.loc + (f" (+{more})" if more else "")


def pinned_values(placed: Placed) -> set[Value]:
    """Returns the values whose storage callers, calls or control flow decide, values that contain
    them, and values that lie in them."""
    pinned = seen_by_others(placed.graph)
    pinned |= {parent for piece, parent in placed.containers.items() if piece in pinned}
    return pinned | {piece for piece, parent in placed.containers.items() if parent in pinned}


# ---- concatenations without a kernel ---------------------------------------------------------


def _joined(join: Join, loc: str) -> tuple[list[Kernel], Join]:
    """Returns (kernels, join).  In `join`, each part lies in the result; `kernels` copy the parts
    that are stored elsewhere."""
    copies: list[Kernel] = []
    parts: list[ConcatPart] = []
    for number, part in enumerate(join.parts):
        value = part.value
        if not part.placed:
            value = Value(f"{join.result.name}.part{number}", part.value.type)
            copies.append(copy_of(part.value, value, f"{loc} (part {number})"))
        parts.append(ConcatPart(value, part.start, True))
    return copies, replace(join, parts=tuple(parts))


def _of_wholes(
    halos: dict[Value, _Halo], joins: Sequence[Join], pinned: Collection[Value]
) -> dict[Value, _Halo]:
    """Returns `halos` with the halos of parts moved to the concatenated values that contain them.
    Along the joined axis a moved halo has width 0, because the next part lies there.  So reads
    beyond a part along this axis are still checked."""
    merged = dict(halos)
    for join in joins:
        if join.result in pinned:
            continue
        part_halos = [merged.pop(p.value) for p in join.parts if p.value in merged]
        part_halos = [_Halo(replaced(h.widths, join.axis, (0, 0)), h.fill) for h in part_halos]
        part_halos += [merged.pop(join.result)] if join.result in merged else []
        if part_halos and len({h.fill for h in part_halos}) == 1:
            merged[join.result] = _widest(part_halos)
    return merged


# ---- channels last --------------------------------------------------------------------------


def _channels_last(
    steps: Sequence[ProgramStep],
    windows: set[Value],
    pinned: set[Value],
    containers: Mapping[Value, Value],
) -> set[Value]:
    """Returns the values that are stored with channels last.  They are results of windows, values
    computed from results of windows axis by axis, and concatenations of these values."""
    values_last: set[Value] = set()
    for kernel in always_running(steps):
        followers = _following(kernel, values_last)
        for value in kernel.results:
            if value in pinned or value.rank < 3:
                continue
            if value in windows or value in followers or _blends(kernel, values_last):
                values_last.add(value)
                while value in containers:
                    value = containers[value]
                    values_last.add(value)
    return values_last


def _following(kernel: Kernel, values_last: Collection[Value]) -> set[Value]:
    """Returns the results that are computed axis by axis from an operand in `values_last`, directly
    or through other stages."""
    following: set[int] = set()
    for number, stage in enumerate(kernel.expr.stages):
        for node in reads(stage):
            source = node.source
            if isinstance(source, int):
                follows = kernel.operands[source] in values_last
            else:
                follows = source.stage in following
            if follows and _axis_by_axis(stage, node):
                following.add(number)
    outputs = zip_equal(kernel.results, kernel.expr.outputs)
    return {value for value, ref in outputs if ref.stage in following}


def _axis_by_axis(stage: Stage, node: Read) -> bool:
    return len(node.indices) == len(stage.iters) and all(
        set(free_vars(i)) <= {v, *stage.reduce} for i, v in zip_equal(node.indices, stage.iters)
    )


def _blends(kernel: Kernel, values_last: set[Value]) -> bool:
    """Returns True if a stage computes with a source whose last axis its channel loop indexes.  The
    source is an operand without channels last, or a stage's result read at a constant index."""
    for stage in kernel.expr.stages:
        if stage.monoid is not None or len(stage.iters) < 3:
            continue
        if all(isinstance(s, Read) for s in stage.body):
            continue
        for node in reads(stage):
            if len(node.indices) < 3:
                continue
            last = var_of(node.indices[-1]) is stage.iters[1]
            if isinstance(node.source, int):
                other = kernel.operands[node.source] not in values_last
            else:
                sizes = map(extent, kernel.expr.stages[node.source.stage].iters)
                fixed = zip_equal(node.indices, sizes)
                other = any(as_int(i) is not None and as_int(n) != 1 for i, n in fixed)
            if last and other:
                return True
    return False


# ---- halos ------------------------------------------------------------------------------------


def _halos(constants: Collection[Value], kernels: Iterable[Kernel]) -> dict[Value, _Halo]:
    """Returns the halos that keep padded reads of values inside their storage.  A value has no halo
    if its readers have different fill values, or if storing the halo takes longer than checking its
    reads."""
    halos_of: dict[Value, list[_Halo]] = {}
    for kernel in kernels:
        for stage, value, node in _padded_reads(kernel):
            if value in constants:
                continue
            widths = all_known(map(_overhang, node.indices, value.shape))
            # A halo stores its fill value as f64. Large integers may change there, and NaN equals
            # no value.
            if node.fill is None or (fill := float(node.fill)) != node.fill:
                continue
            if widths is not None and any(map(any, widths)):
                halo = _Halo(widths, fill)
                if _pays(halo, value, stage):
                    halos_of.setdefault(value, []).append(halo)
    agreed = ((v, halos) for v, halos in halos_of.items() if len({h.fill for h in halos}) == 1)
    return {value: _widest(halos) for value, halos in agreed}


def _pays(halo: _Halo, value: Value, stage: Stage) -> bool:
    """Returns True if `stage` reads `value` at least as often as the halo has elements: a halo
    saves a check for each read, and costs a store for each of its elements."""
    padded, shape = _padded_shape(value, halo), value.shape
    halo_elements = prod(map(typical, padded)) - prod(map(typical, shape))
    return halo_elements <= prod(map(trips, stage.loops))


def _widest(halos: Sequence[_Halo]) -> _Halo:
    """Returns the smallest halo that contains all of `halos`; they have one fill value."""
    axes = zip_equal(*(h.widths for h in halos))
    widths = tuple((max(a for a, _ in axis), max(b for _, b in axis)) for axis in axes)
    return _Halo(widths, halos[0].fill)


def _padded_reads(kernel: Kernel) -> Iterator[tuple[Stage, Value, Read]]:
    """Yields (stage, value, read) for the reads of a kernel that a halo may make faster.  They have
    a fill value, and the kernel reads their elements several times."""
    for stage, node, value in operand_reads(kernel):
        if node.fill is None or node.indirect:
            continue
        if stage.monoid is not None or sum(r.source == node.source for r in reads(stage)) > 1:
            yield stage, value, node


@lru_cache(1 << 14)
def _overhang(index: Index, size: Index) -> tuple[int, int] | None:
    """Returns (max(0, -low), max(0, high - (size - 1))), where low <= `index` <= high; None if no
    such bounds are known."""
    first = last = index
    for var in free_vars(index):
        linear = linear_in(index, var)
        if linear is None or var.extent is None:  # `bounds` handles the variables without an extent
            continue
        step = as_int(linear[0])
        if step is None:
            return None
        end = extent(var) - 1
        first = substitute(first, {var: const(0) if step > 0 else end})
        last = substitute(last, {var: end if step > 0 else const(0)})
    low, (smallest, largest) = bounds(first)[0], bounds(_with_remainders(last - size + 1))
    if low is None or largest is None:
        return None
    # The bound of an index that varies with a symbolic size may be far beyond all reads.
    if as_int(size) is None and (smallest is None or largest - smallest >= typical(size)):
        return None
    return max(0, -low), max(0, largest)


def _with_remainders(index: Index) -> Index:
    """Returns `index` with `n - n % 4` in place of `4 * (n // 4)`.  Then a term -n in the rest of
    the index cancels, which makes its bounds tight."""
    for atom in atoms(index):
        if isinstance(atom, Quotient):
            factor, remainder = factor_of(index, atom)
            multiple, divisor = as_int(factor), as_int(atom.den)
            if multiple is not None and divisor is not None and multiple % divisor == 0:
                index = (atom.num - atom.num % atom.den) * (multiple // divisor) + remainder
    return index


def _pad_pinned(
    steps: list[ProgramStep], pinned: set[Value], halos: Mapping[Value, _Halo]
) -> tuple[list[ProgramStep], set[Value]]:
    """Returns (steps, copies).  If a value of fixed layout needs a halo, the steps copy it into a
    padded value first and read the copy.

    The padding is a part of the copy's elements, so one kernel writes all of the copy.
    """
    copies = {
        v: Value(f"{v.name}.padded", replace(v.type, shape=_padded_shape(v, h)))
        for v, h in halos.items()
        if v in pinned
    }
    result: list[ProgramStep] = []
    copied: set[Value] = set()
    for step in steps:
        kernel = step.kernel
        if kernel is None or kernel.condition is not None:
            result.append(step)
            continue
        sources = {v for _, v, _ in _padded_reads(kernel) if v in copies}
        # Other reads must have the fill value of the halo, or none.
        sources -= {
            v
            for _, n, v in operand_reads(kernel)
            if v in sources and n.fill not in (None, halos[v].fill)
        }
        if not sources:
            result.append(step)
            continue
        for value in kernel.operands:
            if value in sources and value not in copied:
                copied.add(value)
                loc = f"{kernel.loc} (padding)"
                result.append(ProgramStep(_padding(value, copies[value], halos[value], loc)))
        result.append(ProgramStep(_read_padded(kernel, {v: copies[v] for v in sources}, halos)))
    return result, {copies[v] for v in copied}


def _padded_shape(value: Value, halo: _Halo) -> Shape:
    pairs = zip_equal(value.shape, halo.widths)
    return tuple(size + sum(widths) for size, widths in pairs)


def _padding(source: Value, target: Value, halo: _Halo, loc: str) -> Kernel:
    fill = source.dtype.carrier.type(halo.fill).item()
    return copy_of(source, target, loc, lambda at: _shifted(at, halo, -1), fill)


def _shifted(at: Indices, halo: _Halo, sign: int = 1) -> Indices:
    """Returns the indices in a padded copy of element `at` of its source; `sign` -1: reversed."""
    return tuple(i + before * sign for i, (before, _) in zip_equal(at, halo.widths))


def _read_padded(
    kernel: Kernel, copies: Mapping[Value, Value], halos: Mapping[Value, _Halo]
) -> Kernel:
    """Returns `kernel` with reads of padded copies; `copies` maps each value to its copy."""

    def padded(node: Read, value: Value) -> Scalar:
        at = _shifted(node.indices, halos[value])
        fill = None if all(map(within, at, copies[value].shape)) else node.fill
        return read(node.source, at, node.dtype, fill=fill, indirect=node.indirect)

    return on_others(kernel, copies, padded)
