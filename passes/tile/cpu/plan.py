"""Plans kernels for cores: panels of packed weights, and schedules by price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from tcc.ir.expr import Expr, known_extent, substitute_sizes
from tcc.ir.expr.scalar import Read
from tcc.ir.index import (
    Index,
    Substitution,
    Var,
    const,
    divisor_of,
    free_vars,
    linear_in,
    substitute,
)
from tcc.ir.layout import Layout, resized
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.tile.overwrite import stored_once
from tcc.ir.types import BF16, I8, U8, DType
from tcc.passes.fuse.cpu_legality import CpuKernels, is_cpu_kernel
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.plan import (
    Bound,
    KernelKey,
    KernelPlanner,
    Planned,
    Words,
    packable,
    packed_layout,
)
from tcc.schedule.cpu.candidates import PANELS, cheapest
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.work import group_bytes
from tcc.schedule.nest import anchor, contraction_factors, depends, of_bytes, stride, trips
from tcc.schedule.open_sizes import other_sizes, table_sizes

# By how much the price of a kernel may grow that has a constant as another program has it: prices
# tell panels apart no better.
_SHARED = 1.08

_Sizes: TypeAlias = tuple[tuple[Var, Index], ...]


class CorePlanner(CpuKernels, KernelPlanner):
    """Plans kernels for cores of one kind."""

    def __init__(self, core: CoreModel, pricer: Pricer | None = None) -> None:
        """`pricer`: schedules near the analytic one are priced, and the cheapest taken; `priced`
        then counts them.  Without one the analytic schedule is taken."""
        CpuKernels.__init__(self, core, pricer)
        KernelPlanner.__init__(self)
        self._structures: dict[KernelKey, Structure] = {}
        # Where constants lie by their contents, as the first kernel of all programs has them.
        self._lie: dict[str, Layout] = {}
        self._alike: dict[tuple[KernelKey, tuple[Layout, ...]], Planned] = {}

    @property
    def prices_layouts(self) -> bool:
        return self.pricer is not None

    def prices_as(self, other: CorePlanner) -> bool:
        """Whether both have prices, and the same for every kernel."""
        if self.pricer is None or other.pricer is None:
            return False
        return (self.core, self.pricer.key) == (other.core, other.pricer.key)

    def settled(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        """Programs of one model share constants: a kernel has them as those planned before it,
        unless that would make it slower."""
        planned = self._as_before(key, digests)
        for digest, storage in zip(digests, planned[0], strict=True):
            if digest is not None:
                self._lie.setdefault(digest, storage.layout)
        return planned

    def _as_before(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        planned = self._known[key]
        lie = [s.layout for s in planned[0]]
        wanted = tuple(self._lie.get(d or "", own) for d, own in zip(digests, lie, strict=True))
        if self.pricer is None or wanted == tuple(lie):
            return planned
        if (key, wanted) not in self._alike:
            self._alike[key, wanted] = self._on(key, wanted, self.pricer) or planned
        return self._alike[key, wanted]

    def _on(self, key: KernelKey, wanted: tuple[Layout, ...], pricer: Pricer) -> Planned | None:
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
            group, schedule = structure.with_knobs(Knobs(panel=panel))
            if pricer.price(group, schedule).seconds <= most:
                return packed, self._bound(structure, Knobs(panel=panel))
        return None

    def estimate(self, key: KernelKey) -> float:
        """The price under the analytic schedule.  Requires a pricer."""
        return self.price(*self._structure(key).with_knobs(Knobs()))

    def alone(self, expr: Expr, constants: Sequence[bool]) -> float | None:
        return None if self.pricer is None else KernelPlanner.alone(self, expr, constants)

    def units(self, bound: Bound) -> Fraction:
        schedule = bound.schedule
        assert isinstance(schedule, Schedule)
        loops = (v for v in bound.group.common if v.name in schedule.parallel)
        units = Fraction(1)
        for loop in loops:
            unit, known = schedule.unit(loop.name), known_extent(loop)
            units *= Fraction(trips(loop), unit) if known is None else -(-known // unit)
        return units

    def _structure(self, key: KernelKey) -> Structure:
        if key not in self._structures:
            self._structures[key] = self._cheapest_form(key)
        return self._structures[key]

    def _cheapest_form(self, key: KernelKey) -> Structure:
        """The form of the least price under the analytic schedule, the first of equal ones."""
        expr, operands, _ = key
        forms = self.forms(expr)
        if len(forms) > 1:
            constants = tuple(s.constant for s in operands)
            forms = tuple(f for f in forms if is_cpu_kernel(expr, constants, f)) or forms
        structures = [Structure(key, form) for form in forms]
        if len(structures) == 1:
            return structures[0]
        return min(structures, key=lambda s: self.price(*s.with_knobs(Knobs())))

    def bind(self, key: KernelKey) -> Planned:
        structure = self._structure(key)
        knobs = Knobs()
        if self.pricer is not None:
            found = cheapest(structure.with_knobs, self.pricer, structure.resized)
            knobs, self.priced = found.knobs, self.priced + found.priced
        return structure.packed(knobs), self._bound(structure, knobs)

    def _bound(self, structure: Structure, knobs: Knobs) -> Bound:
        """The kernel, with results past the caches where that saves time, whatever the schedule.

        Sizes that are open may be small."""
        group, schedule = structure.with_knobs(knobs)
        kernel = lower(group, schedule)
        if (
            self.pricer
            and not group.sizes
            and self.pricer.machine.bypasses(group_bytes(group, constants=False))
        ):
            once = (n for n in kernel.results if stored_once(kernel, group, n))
            kernel = replace(kernel, nontemporal=tuple(once))
        if self.pricer is None:
            return Bound(kernel, schedule, group)
        resized, tabulated = structure.resized(knobs), structure.tabulated(knobs)
        return Bound(kernel, schedule, group, resized, tabulated)


class Structure:
    """A kernel's expression and storage, and what schedules make of them."""

    def __init__(self, key: KernelKey, core: CoreModel) -> None:
        self._key, self._core = key, core
        self._plain = build_group(*key, limits=core.limits)
        # Of all knobs, only those of blocks change what constants are packed for.
        self._packed: dict[tuple[int | None, ...], tuple[Storage, ...]] = {}
        self._groups: dict[tuple[Storage, ...], TileGroup] = {key[1]: self._plain}
        self._by_knobs: dict[Knobs, tuple[TileGroup, Schedule]] = {}
        self._resized: dict[tuple[tuple[Storage, ...], _Sizes], TileGroup] = {}

    @cached_property
    def _loops(self) -> TileGroup:
        return build_group(*self._key, collapsed=False, limits=self._core.limits)

    def packed(self, knobs: Knobs) -> tuple[Storage, ...]:
        """The operands, with the constants packed for the schedule under `knobs`."""
        operands = self._key[1]
        if not any(s.constant for s in operands):
            return operands
        key = (knobs.panel, knobs.wide)
        if key not in self._packed:
            schedule = choose(self._plain, replace(self._core, knobs=knobs))
            self._packed[key] = pack_constants(self._loops, schedule, operands)
        return self._packed[key]

    def with_knobs(self, knobs: Knobs) -> tuple[TileGroup, Schedule]:
        """The group with its constants packed so, and the schedule."""
        if knobs not in self._by_knobs:
            expr, _, results = self._key
            packed = self.packed(knobs)
            if packed not in self._groups:
                self._groups[packed] = build_group(expr, packed, results, limits=self._core.limits)
            group = self._groups[packed]
            self._by_knobs[knobs] = group, choose(group, replace(self._core, knobs=knobs))
        return self._by_knobs[knobs]

    @cached_property
    def _other_sizes(self) -> tuple[Substitution, ...]:
        return other_sizes(self._plain.sizes)

    def resized(self, knobs: Knobs) -> tuple[TileGroup, ...]:
        """The group under `knobs` at further sets of sizes than the typical one."""
        return self._at(knobs, self._other_sizes)

    def tabulated(self, knobs: Knobs) -> tuple[TileGroup, ...]:
        """The group under `knobs` at the sets of sizes of which a manifest has the time."""
        sizes = self._plain.sizes
        return self._at(knobs, table_sizes(sizes) if sizes else ())

    def _at(self, knobs: Knobs, sets: Sequence[Substitution]) -> tuple[TileGroup, ...]:
        packed = self.packed(knobs)
        return tuple(self._sized(packed, tuple(sizes.items())) for sizes in sets)

    def _sized(self, packed: tuple[Storage, ...], sizes: _Sizes) -> TileGroup:
        if (packed, sizes) not in self._resized:
            expr, _, results = self._key
            at = dict(sizes)
            storages = ([_resized(s, at) for s in each] for each in (packed, results))
            self._resized[packed, sizes] = build_group(
                substitute_sizes(expr, at), *storages, limits=self._core.limits
            )
        return self._resized[packed, sizes]


def _resized(storage: Storage, sizes: Substitution) -> Storage:
    shape = tuple(substitute(n, sizes) for n in storage.shape)
    return replace(storage, shape=shape, layout=resized(storage.layout, sizes))


# ---- packing ------------------------------------------------------------------------------------


def pack_constants(
    group: TileGroup, schedule: Schedule, operands: Sequence[Storage]
) -> tuple[Storage, ...]:
    """Layouts for constants such that blocks of the vector loop are contiguous in them, and follow
    each other as the schedule walks them.

    `group` is not collapsed, so that each loop runs along one axis of each operand.
    """
    packed = list(operands)
    main = anchor(group)
    for number, stage in enumerate(group.stages):
        if stage is main or contraction_factors(stage) is not None:
            nest = schedule.nest(number)
            _pack(packed, group, stage, nest, _walked(stage, schedule.parallel + nest.order))
    return tuple(packed)


def _walked(stage: GroupStage, order: Sequence[str]) -> tuple[Var, ...]:
    """A stage's loops, first those that `order` names; a collapsed loop a.b.c is three of them."""
    names = [name for loop in order for name in loop.split(".")]
    named = {v.name: v for v in stage.loops}
    return tuple(dict.fromkeys((*(named[n] for n in names if n in named), *stage.loops)))


def _pack(
    packed: list[Storage], group: TileGroup, stage: GroupStage, nest: Nest, loops: tuple[Var, ...]
) -> None:
    """Sets the layouts of the constants that one stage reads; `loops` as they are walked."""
    if nest.vector is None:
        return
    # A collapsed loop a.b.c runs fastest along c.
    fastest = nest.vector.rpartition(".")[2]
    vector = next((v for v in stage.loops if v.name == fastest), None)
    if vector is None:
        return
    block = nest.block(nest.vector)
    panels = contraction_factors(stage) is not None and vector not in stage.reduce
    for node, access in stage.accesses.items():
        if access.buffer >= len(packed):  # what another stage computed
            continue
        storage = packed[access.buffer]
        if not packable(group, node, access, storage):
            continue
        step = stride(access, vector)
        if step == 0 or (step == 1 and not panels):
            continue
        words = _words(stage, node, vector, storage.dtype) if panels else None
        found = packed_layout(storage, node, vector, loops, block if panels else 1, words)
        packed[access.buffer] = replace(storage, layout=found or storage.layout)


def _words(stage: GroupStage, node: Read, vector: Var, dtype: DType) -> Words | None:
    """The axis of a bf16 or byte factor whose neighbours lie side by side: that of the innermost
    sum, if the other factor is repeated over the lanes.

    A CPU multiplies the neighbours in a word at once, or takes them apart with few instructions.
    """
    factors = contraction_factors(stage)
    count = 2 if dtype is BF16 else 4 if dtype in (I8, U8) and of_bytes(stage) else 1
    if count == 1 or factors is None or known_extent(stage.reduce[-1]) == 1:
        return None
    if vector in depends(stage, factors.a) and vector in depends(stage, factors.b):
        return None
    moving = [n for n, index in enumerate(node.indices) if stage.reduce[-1] in free_vars(index)]
    linear = linear_in(node.indices[moving[0]], stage.reduce[-1]) if len(moving) == 1 else None
    if linear is None or linear[0] is not const(1) or divisor_of(linear[1]) % count:
        return None
    return Words(moving[0], count)
