"""Plans the kernel of every step: storage of each operand, packed weights, schedule, tile program.

    matmul(x, w) with w constant [768, 3072]
      ->  w stored as [48, 768, 64] (panels), x and y in place, blocks 6 x 64, k by 4

Requires layouts.  Establishes one tile kernel a distinct structure: equal layers share it, because
expressions are interned and kernels hold no names, addresses or weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from typing import TypeAlias

from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Handle, Value
from tcc.ir.index import (
    Index,
    Var,
    as_int,
    ceildiv,
    const,
    divisor_of,
    free_vars,
    linear_in,
    of_atom,
)
from tcc.ir.layout import Layout, axis_vars, layout, row_major
from tcc.ir.tile import TileKernel
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import BF16, I8, U8, DType, element_count
from tcc.passes.fuse.partition import Lowers
from tcc.passes.fuse.split import Divides
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.layout.assign import Kernel
from tcc.passes.tile.cpu.lower import lower
from tcc.record import record
from tcc.schedule.cpu.candidates import PANELS, cheapest
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.nest import anchor, depends, of_bytes, product, stride, trips, weight, work

# What a core does in a nanosecond: body operations of a contraction, and of anything else.
CONTRACTION_RATE, PLAIN_RATE = 200, 10
# A thread that gets less to do than this costs more than it saves.
LEAST_NANOSECONDS = 1000
# By how much the price of a kernel may grow that has a constant as another program has it: prices
# tell panels apart no better.
_SHARED = 1.08
# Constants smaller than this many elements are left as they are.
_SMALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A tile kernel with its schedule; shared by all launches of equal structure."""

    kernel: TileKernel
    schedule: Schedule | BlockSchedule
    group: TileGroup


@dataclass(frozen=True, slots=True, eq=False)
class PlannedKernel:
    """One launch: what it runs, and where each operand lies (constants in their own layout)."""

    bound: Bound
    operands: tuple[tuple[Value, Layout], ...]
    results: tuple[tuple[Value, Layout], ...]
    loc: str


_Structure: TypeAlias = tuple[Expr, tuple[Storage, ...], tuple[Storage, ...]]
_Planned: TypeAlias = tuple[tuple[Storage, ...], Bound]


class KernelPlanner:
    """Plans kernels for one target and remembers them by structure.

    `lowers` is what the target asks of kernels, see `partition`; `gaps` whether values may lie with
    gaps, see `assign_layouts`; `divides` cuts long sums, see `split`; `updates` whether a kernel
    updates slices, not a function of the host.
    """

    lowers: Lowers | None = None
    gaps = True
    updates = False
    divides: Divides | None = None

    def __init__(self, registers: CoreModel, pricer: Pricer | None = None) -> None:
        """`pricer`: schedules near the analytic one are priced, and the cheapest taken; `priced`
        then counts them.  Without one the analytic schedule is taken."""
        self.registers, self.pricer = registers, pricer
        self.priced = 0
        self._known: dict[_Structure, _Planned] = {}
        self._seconds: dict[_Structure, float] = {}
        self._structures: dict[_Structure, Structure] = {}
        # Where constants lie by their contents, as the first kernel of all programs has them.
        self._lie: dict[str, Layout] = {}
        self._alike: dict[tuple[_Structure, tuple[Layout, ...]], _Planned] = {}

    def plan(
        self, kernel: Kernel, layouts: Mapping[Value, Layout], constants: Mapping[Value, Handle]
    ) -> PlannedKernel:
        """The planned kernel of a step.  Values without a layout are row-major (outer values).

        Programs of one model share constants: a kernel has them as those planned before it, unless
        that would make it slower.
        """
        key = _structure(kernel, layouts, constants)
        _, _, results = key
        if key not in self._known:
            self._known[key] = self.bind(*key)
        digests = [constants[v].digest if v in constants else None for v in kernel.operands]
        packed, bound = self._as_before(key, digests)
        for digest, storage in zip(digests, packed, strict=True):
            if digest is not None:
                self._lie.setdefault(digest, storage.layout)
        return PlannedKernel(
            bound,
            tuple((v, s.layout) for v, s in zip(kernel.operands, packed, strict=True)),
            tuple((v, s.layout) for v, s in zip(kernel.results, results, strict=True)),
            kernel.loc,
        )

    def _as_before(self, key: _Structure, digests: Sequence[str | None]) -> _Planned:
        planned = self._known[key]
        lie = [s.layout for s in planned[0]]
        wanted = tuple(self._lie.get(d or "", own) for d, own in zip(digests, lie, strict=True))
        if self.pricer is None or wanted == tuple(lie):
            return planned
        if (key, wanted) not in self._alike:
            self._alike[key, wanted] = self._on(key, wanted, self.pricer) or planned
        return self._alike[key, wanted]

    def _on(self, key: _Structure, wanted: tuple[Layout, ...], pricer: Pricer) -> _Planned | None:
        """The kernel on operands that lie so, by the width of its panels; None where it has no such
        schedule, or only dearer ones."""
        _, bound = self._known[key]
        assert isinstance(bound.schedule, Schedule)
        structure = self._structure(key)
        most = pricer.price(bound.group, bound.schedule).seconds * _SHARED
        for panel in PANELS:
            packed = structure.packed(Knobs(panel=panel))
            if tuple(s.layout for s in packed) != wanted:
                continue
            group, schedule = structure.turned(Knobs(panel=panel))
            if pricer.price(group, schedule).seconds <= most:
                return packed, Bound(lower(group, schedule), schedule, group)
        return None

    def seconds(
        self, kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
    ) -> float:
        """The price of a step under the analytic schedule, near that which `plan` would choose.

        Requires a pricer.
        """
        key = _structure(kernel, layouts, constants)
        if key not in self._seconds:
            assert self.pricer is not None
            group, schedule = self._structure(key).turned(Knobs())
            self._seconds[key] = self.pricer.price(group, schedule).seconds
        return self._seconds[key]

    @property
    def estimates(self) -> int:
        """How many different kernels `seconds` has priced."""
        return len(self._seconds)

    def _structure(self, key: _Structure) -> Structure:
        if key not in self._structures:
            self._structures[key] = Structure(*key, self.registers)
        return self._structures[key]

    def bind(
        self, expr: Expr, operands: tuple[Storage, ...], results: tuple[Storage, ...]
    ) -> tuple[tuple[Storage, ...], Bound]:
        """The operands with constants packed, and the kernel: what targets differ in."""
        structure = self._structure((expr, operands, results))
        knobs = Knobs()
        if self.pricer is not None:
            found = cheapest(structure.turned, self.pricer)
            knobs, self.priced = found.knobs, self.priced + found.priced
        group, schedule = structure.turned(knobs)
        return structure.packed(knobs), Bound(lower(group, schedule), schedule, group)


class Structure:
    """A kernel's expression and storage, and what schedules make of them."""

    def __init__(
        self,
        expr: Expr,
        operands: tuple[Storage, ...],
        results: tuple[Storage, ...],
        registers: CoreModel,
    ) -> None:
        self._parts = (expr, operands, results)
        self._registers = registers
        self._plain = build_group(expr, operands, results)
        # Of all knobs, only those of blocks change what constants are packed for.
        self._packed: dict[tuple[int | None, ...], tuple[Storage, ...]] = {}
        self._groups: dict[tuple[Storage, ...], TileGroup] = {operands: self._plain}
        self._loops: TileGroup | None = None
        self._turned: dict[Knobs, tuple[TileGroup, Schedule]] = {}

    def packed(self, knobs: Knobs) -> tuple[Storage, ...]:
        """The operands, with the constants packed for the schedule under `knobs`."""
        expr, operands, results = self._parts
        if not any(s.constant for s in operands):
            return operands
        key = (knobs.panel, knobs.wide)
        if key not in self._packed:
            schedule = choose(self._plain, replace(self._registers, knobs=knobs))
            if self._loops is None:
                self._loops = build_group(expr, operands, results, collapsed=False)
            self._packed[key] = pack_constants(self._loops, schedule, operands)
        return self._packed[key]

    def turned(self, knobs: Knobs) -> tuple[TileGroup, Schedule]:
        """The group with its constants packed so, and the schedule."""
        if knobs not in self._turned:
            expr, _, results = self._parts
            packed = self.packed(knobs)
            if packed not in self._groups:
                self._groups[packed] = build_group(expr, packed, results)
            group = self._groups[packed]
            self._turned[knobs] = group, choose(group, replace(self._registers, knobs=knobs))
        return self._turned[knobs]


def _structure(
    kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
) -> _Structure:
    operands = tuple(
        Storage(v.type.dtype, v.type.shape, _layout_of(v, layouts), v in constants)
        for v in kernel.operands
    )
    results = tuple(
        Storage(v.type.dtype, v.type.shape, _layout_of(v, layouts)) for v in kernel.results
    )
    return kernel.expr, operands, results


def _layout_of(value: Value, layouts: Mapping[Value, Layout]) -> Layout:
    found = layouts.get(value)
    return row_major(value.type.shape) if found is None else found


# ---- threads ------------------------------------------------------------------------------------


def least_units(bound: Bound) -> int:
    """Units of a kernel that are worth a thread of their own."""
    plain = sum(work(s) * weight(s) for s in bound.group.stages if product(s) is None)
    contracted = sum(work(s) * weight(s) for s in bound.group.stages if product(s) is not None)
    nanoseconds = plain // PLAIN_RATE + contracted // CONTRACTION_RATE
    return max(1, ceil(LEAST_NANOSECONDS * _units(bound) / max(nanoseconds, 1)))


def _units(bound: Bound) -> Fraction:
    """Units that do a kernel's work; of a loop of open size as many as do the trips that are
    counted of it, which may be less than one."""
    schedule = bound.schedule
    if isinstance(schedule, BlockSchedule):
        return Fraction(prod(trips(axis) for axis in bound.kernel.axes))
    loops = (v for v in bound.group.common if v.name in schedule.parallel)
    units = Fraction(1)
    for loop in loops:
        unit, known = schedule.unit(loop.name), as_int(extent(loop))
        units *= Fraction(trips(loop), unit) if known is None else -(-known // unit)
    return units


# ---- packing ------------------------------------------------------------------------------------


def pack_constants(
    group: TileGroup, schedule: Schedule, operands: Sequence[Storage]
) -> tuple[Storage, ...]:
    """Layouts for constants such that blocks of the vector loop are contiguous in them.

    `group` is not collapsed, so that each loop runs along one axis of each operand.
    """
    packed = list(operands)
    main = anchor(group)
    for number, stage in enumerate(group.stages):
        if stage is main or product(stage) is not None:
            _pack(packed, group, stage, schedule.nest(number))
    return tuple(packed)


def _pack(packed: list[Storage], group: TileGroup, stage: GroupStage, nest: Nest) -> None:
    """Sets the layouts of the constants that one stage reads."""
    if nest.vector is None:
        return
    # A collapsed loop a.b.c runs fastest along c.
    fastest = nest.vector.rpartition(".")[2]
    vector = next((v for v in (*stage.iters, *stage.reduce) if v.name == fastest), None)
    if vector is None:
        return
    block = nest.block(nest.vector)
    panels = product(stage) is not None and vector not in stage.reduce
    for node, access in stage.accesses.items():
        if access.buffer >= len(packed):  # what another stage computed
            continue
        storage = packed[access.buffer]
        if not packable(group, node, access, storage):
            continue
        step = stride(access, vector)
        if step == 0 or (step == 1 and not panels):
            continue
        loops = (*stage.iters, *stage.reduce)
        words = _words(stage, node, vector, storage.dtype) if panels else None
        found = _packed(storage, node, vector, loops, block if panels else 1, words)
        packed[access.buffer] = replace(storage, layout=found or storage.layout)


def packable(group: TileGroup, node: Read, access: Access, storage: Storage) -> bool:
    """Whether `node` is the only read of a constant, and of whole elements of it."""
    if not storage.constant or not _chooses_whole(node, access):
        return False
    readers = [a for s in group.stages for a in s.accesses.values() if a.buffer == access.buffer]
    count = as_int(element_count(storage.shape))
    return len(readers) == 1 and count is not None and count >= _SMALL


def _chooses_whole(node: Read, access: Access) -> bool:
    """Whether an index that data choose runs along an axis of its own, as the number of a matrix,
    and nothing else needs a guard."""
    chosen = {v for v, _ in node.indirect}
    if any(not chosen.issuperset(free_vars(guard.index)) for guard in access.guards):
        return False
    used = [chosen.intersection(free_vars(index)) for index in node.indices]
    at = zip(used, node.indices, strict=True)
    return all(not u or (len(u) == 1 and index is of_atom(*u)) for u, index in at)


@record
class _Words:
    """The axis of which `count` neighbours lie in one word."""

    axis: int
    count: int


def _words(stage: GroupStage, node: Read, vector: Var, dtype: DType) -> _Words | None:
    """The axis of a bf16 or byte factor whose neighbours lie side by side: that of the innermost
    sum, if the other factor is repeated over the lanes.

    A CPU multiplies the neighbours in a word at once, or takes them apart with few instructions.
    """
    factors = product(stage)
    count = 2 if dtype is BF16 else 4 if dtype in (I8, U8) and of_bytes(stage) else 1
    if count == 1 or factors is None or as_int(extent(stage.reduce[-1])) == 1:
        return None
    if vector in depends(stage, factors.a) and vector in depends(stage, factors.b):
        return None
    moving = [n for n, index in enumerate(node.indices) if stage.reduce[-1] in free_vars(index)]
    linear = linear_in(node.indices[moving[0]], stage.reduce[-1]) if len(moving) == 1 else None
    if linear is None or linear[0] is not const(1) or divisor_of(linear[1]) % count:
        return None
    return _Words(moving[0], count)


def permuted_constant(
    storage: Storage, node: Read, vector: Var, loops: tuple[Var, ...]
) -> Layout | None:
    """A layout with axes in the order of `loops`, but that of `vector` last; None where several
    axes run along it."""
    return _packed(storage, node, vector, loops, 1, None)


def _packed(
    storage: Storage,
    node: Read,
    vector: Var,
    loops: tuple[Var, ...],
    block: int,
    words: _Words | None,
) -> Layout | None:
    """Axes in loop order, the vector loop's axis last, cut into panels of `block`.

    The neighbours of `words` come side by side, inside the panel.
    """
    moving = [n for n, index in enumerate(node.indices) if vector in free_vars(index)]
    if len(moving) != 1:
        return None
    (axis,) = moving
    linear = linear_in(node.indices[axis], vector)
    if linear is None or linear[0] is not const(1):
        return None

    def depth(other: int) -> tuple[int, int]:
        used = (loops.index(v) for v in free_vars(node.indices[other]) if v in loops)
        return max(used, default=-1), other

    others = sorted((n for n in range(len(storage.shape)) if n != axis), key=depth)
    axes = axis_vars(storage.shape)
    apart = {} if words is None or words.axis == axis else {words.axis: words.count}
    sizes = [ceildiv(storage.shape[n], apart.get(n, 1)) for n in others]
    indices = [axes[n] // apart.get(n, 1) for n in others]
    inside = [(const(count), axes[n] % count) for n, count in apart.items()]
    panel = _panel(block, linear[1], storage.shape[axis])
    if panel is None:
        sizes, indices = [*sizes, storage.shape[axis]], [*indices, axes[axis]]
    else:
        sizes = [ceildiv(storage.shape[axis], panel), *sizes, const(panel)]
        indices = [axes[axis] // panel, *indices, axes[axis] % panel]
    sizes, indices = [*sizes, *(n for n, _ in inside)], [*indices, *(i for _, i in inside)]
    fill = None if panel is None and not inside else 0.0
    return layout(storage.shape, tuple(sizes), tuple(indices), fill)


def _panel(block: int, rest: Index, size: Index) -> int | None:
    """The panel width: `block`, or less where other loops step the same axis."""
    if block <= 1 or as_int(size) == block:
        return None
    steps = divisor_of(rest)
    if steps == 0:
        return block
    return next((w for w in (block, 64, 32, 16) if w <= block and steps % w == 0), None)
