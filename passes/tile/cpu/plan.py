"""Plans kernels for CPU cores: packs weights into panels, and chooses schedules by price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TypeAlias

from tcc.cached import cached_method
from tcc.ir.expr import Expr, known_extent, substitute_sizes
from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Value
from tcc.ir.index import (
    Index,
    Substitution,
    Var,
    as_int,
    const,
    divisor_of,
    free_vars,
    linear_in,
    substitute,
)
from tcc.ir.layout import Layout, resized
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.tile.overwrite import stored_once
from tcc.ir.types import BF16, I8, U8, DType, element_count
from tcc.passes.choose.content import site
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.layout.assign import Kernel
from tcc.passes.tile.cpu.divided_sums import divided_sum
from tcc.passes.tile.cpu.explain import limit_lines, rule_lines
from tcc.passes.tile.cpu.legality import CpuKernels, check_lowered, is_cpu_kernel
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.plan import (
    Bound,
    KernelChooser,
    KernelKey,
    Planned,
    Words,
    packable,
    packed_layout,
    selects_rows,
)
from tcc.schedule.alternatives import SILENT, Alternative, Ledger, Seconds, SiteOf
from tcc.schedule.backend import AnySchedule
from tcc.schedule.choice_text import is_object_text, text_of
from tcc.schedule.cpu.candidates import PANELS, cheapest
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.grain import least_units
from tcc.schedule.cpu.kernel_choice import CoreKernel, check, check_stages, read_kernel
from tcc.schedule.cpu.owners import ThreadTiles, other_grids
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.work import group_bytes
from tcc.schedule.loop_positions import by_name, by_position, extents_of_loops
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import anchor, contraction_factors, contracts, of_bytes, stride
from tcc.schedule.open_sizes import Times, other_sizes, table_sizes
from tcc.zipped import zip_equal

# Another program of the model may store a constant in some layout already. A kernel gets a second
# layout of the constant only if this saves more than the margin.
_SHARED = MARGINS["shared layout"]

_Sizes: TypeAlias = tuple[tuple[Var, Index], ...]


class CoreChooser(CpuKernels, KernelChooser):
    """Chooses kernels for cores of one kind, and packs their constants."""

    def __init__(
        self, core: CoreModel, pricer: Pricer | None = None, ledger: Ledger = SILENT
    ) -> None:
        """Without a `pricer`, each kernel gets the schedule that the rules choose.

        With a `pricer`, variants of this schedule are priced too, and the cheapest is used.
        """
        CpuKernels.__init__(self, core, pricer)
        KernelChooser.__init__(self, ledger)
        self._structures: dict[KernelKey, Structure] = {}
        self._forced_keys: set[KernelKey] = set()  # kernels whose schedule a line forces
        # For each kernel, the core model, with knobs, from which its schedule was chosen.
        self._cores: dict[Bound, CoreModel] = {}
        # For each constant, by digest, its layout in the first kernel that reads it.
        self._layout_of: dict[str, Layout] = {}
        self._on_layouts: dict[tuple[KernelKey, tuple[Layout, ...]], Planned] = {}
        # For each kernel and the periods of its operands, the kernel with other tiles.
        self._redivided: dict[tuple[Bound, tuple[float | None, ...]], Bound] = {}
        if pricer is not None:
            self.divides = partial(
                divided_sum, draft=self._draft, cores=pricer.machine.cores, ledger=ledger
            )

    @property
    def prices_layouts(self) -> bool:
        return self.pricer is not None

    def prices_as(self, other: CoreChooser) -> bool:
        """Returns True if both choosers have prices, and give every kernel the same price."""
        if self.pricer is None or other.pricer is None:
            return False
        return (self.core, self.pricer.key) == (other.core, other.pricer.key)

    def settled(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        """Returns the kernel that is chosen for `key`, or a variant of it with other layouts of
        constants.

        `digests` identify the constants.  If an earlier kernel of the model's programs stores one
        of them in another layout, this kernel uses that layout too, unless that would make it
        slower by more than a margin. A kernel that reads few rows of a table may also be slower by
        the time in which its copy of the table would be read once.
        """
        planned = self._as_before(key, digests)
        for digest, storage in zip_equal(digests, planned[0]):
            if digest is not None:
                self._layout_of.setdefault(digest, storage.layout)
        return planned

    def _as_before(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        planned = self._known[key]
        own_layouts = [s.layout for s in planned[0]]
        shared_layouts = tuple(
            self._layout_of.get(digest or "", layout)
            for digest, layout in zip_equal(digests, own_layouts)
        )
        if self.pricer is None or shared_layouts == tuple(own_layouts):
            return planned
        if (key, shared_layouts) not in self._on_layouts:
            self._on_layouts[key, shared_layouts] = (
                self._on(key, shared_layouts, self.pricer) or planned
            )
        return self._on_layouts[key, shared_layouts]

    def _on(self, key: KernelKey, layouts: tuple[Layout, ...], pricer: Pricer) -> Planned | None:
        """Returns the kernel of `key` whose operand n has the layout `layouts[n]`.

        Returns None if it cannot have these layouts, or if it would be too slow.
        """

        here = partial(site, "shared-layout", *key, layouts)
        _, bound = self._known[key]
        assert isinstance(bound.schedule, Schedule)
        price = pricer.price(bound.group, bound.schedule).seconds
        copies = _copied(self._known[key][0], layouts, bound.group) if selects_rows(key[0]) else 0
        price += Seconds(copies / pricer.machine.memory.reading(together=True))
        unshared = Alternative(False, price, name="layout of its own")
        shared = self._shared(key, layouts, here)
        if shared is None:
            # The decision is listed all the same, for a version with more widths of panels.
            self.ledger.decide(here, unshared, ())
            return None
        name, structure, knobs = shared
        group, schedule = structure.with_knobs(knobs)
        rule = Alternative(True, pricer.price(group, schedule).seconds, name=name)
        if not self.ledger.decide(here, rule, (unshared,), _SHARED).replacement:
            return None
        if key in self._forced_keys and not self.ledger.wanted(here):
            why = "the constants lie as the kernel of another program needs them"
            self.ledger.refuse(partial(site, self.kind, *key), why)
        if not isinstance(structure, LaidOut):
            self.ledger.name_exactly(here, lambda: structure.text(knobs))
        return structure.packed(knobs), self._bound(structure, knobs)

    def _shared(
        self, key: KernelKey, layouts: tuple[Layout, ...], here: SiteOf
    ) -> tuple[str, Structure, Knobs] | None:
        """Returns the name, structure and knobs of the kernel of `key` with constants in the given
        layouts.

        A line may force it with its schedule. None if no width of panels gives these layouts, and
        the kernel does not read a few rows of a table.
        """
        forced = self._forced(key, here)
        if forced is not None:
            if tuple(s.layout for s in forced.packed(forced.kernel.knobs)) == layouts:
                return text_of(forced.kernel), forced, forced.kernel.knobs
            self.ledger.refuse(here, "it packs constants in other layouts")
        structure = self._structure(key)
        for knobs in (Knobs(panel=panel) for panel in PANELS):
            if tuple(s.layout for s in structure.packed(knobs)) == layouts:
                return f"layout of panel {knobs.panel}", structure, knobs
        if selects_rows(key[0]):
            return "layout of another kernel", LaidOut(key, structure, layouts), Knobs()
        return None

    def redivided(
        self, key: KernelKey, bound: Bound, kernel: Kernel, periods: dict[Value, float | None]
    ) -> Bound:
        if self.pricer is None:
            return bound
        here = bound, tuple(map(periods.get, kernel.operands))
        if any(here[1]) and here not in self._redivided:
            self._redivided[here] = self._along_writers(key, *here)
        bound = self._redivided.get(here, bound)
        results = self._thread_tiles(bound.group, bound.schedule).result_periods()
        periods |= {v: results.get(n) for n, v in enumerate(kernel.results, len(kernel.operands))}
        return bound

    def _along_writers(
        self, key: KernelKey, bound: Bound, periods: tuple[float | None, ...]
    ) -> Bound:
        """Returns the kernel with the grid of the lowest price, reads from other cores included."""
        assert isinstance(bound.schedule, Schedule)
        rule, *alternatives = (
            Alternative(
                schedule,
                self._thread_tiles(bound.group, schedule).seconds(dict(enumerate(periods))),
                name=text_of((grid.parallel, grid.tile_sizes)),
            )
            for schedule in dict.fromkeys(
                (bound.schedule, *other_grids(bound.group, bound.schedule))
            )
            for grid in (by_position(schedule, bound.group),)
        )
        where = partial(site, "threads", *key, rule.text, periods)
        if not alternatives or (key in self._forced_keys and not self.ledger.wanted(where)):
            return bound
        schedule = self.ledger.decide(where, rule, alternatives, MARGINS["threads"]).replacement
        if schedule is bound.schedule:
            return bound
        kernel = replace(lower(bound.group, schedule), nontemporal=bound.kernel.nontemporal)
        variant = replace(bound, kernel=kernel, schedule=schedule)
        self._cores[variant] = self._cores[bound]
        return variant

    def _draft(self, key: KernelKey) -> ThreadTiles:
        """Returns the tiles of a kernel that is only priced."""
        assert self.pricer is not None
        structure = self._structure(key)
        choice = cheapest(structure.with_knobs, self.pricer, structure.resized)
        return self._thread_tiles(*structure.with_knobs(choice.knobs))

    def _thread_tiles(self, group: TileGroup, schedule: AnySchedule) -> ThreadTiles:
        assert self.pricer is not None
        assert isinstance(schedule, Schedule)
        return ThreadTiles(group, schedule, self.pricer, self.limits)

    def estimate(self, key: KernelKey) -> Seconds:
        """Returns the price under the schedule that the rules choose.  Requires a pricer."""
        return self.price(*self._structure(key).with_knobs(Knobs()))

    def estimates(self, key: KernelKey) -> Times:
        structure = self._structure(key)
        _, schedule = structure.with_knobs(Knobs())
        further_prices = (self.price(group, schedule) for group in structure.resized(Knobs()))
        return (self.price_of(key), *further_prices)

    def alone(self, expr: Expr, constants: Sequence[bool]) -> Seconds | None:
        return None if self.pricer is None else KernelChooser.alone(self, expr, constants)

    def least_units(self, bound: Bound) -> Index | None:
        assert isinstance(bound.schedule, Schedule)
        tiles = least_units(bound.group, bound.schedule, self.limits)
        return None if tiles is const(1) else tiles

    def explained(self, bound: Bound, constants: int) -> Iterator[str]:
        pricer = self.holding(constants).pricer
        if pricer is not None:
            yield from limit_lines(pricer, bound)
        yield from rule_lines(bound.group, self._cores[bound])

    def forget(self, keys: Iterable[KernelKey]) -> None:
        """Forgets the kernels of `keys` as the base class does, and all layouts that kernels
        share."""
        forgotten = tuple(keys)
        super().forget(forgotten)
        for key in forgotten:
            self._structures.pop(key, None)
            self._forced_keys.discard(key)
        self._layout_of.clear()
        self._on_layouts.clear()

    def _structure(self, key: KernelKey) -> Structure:
        if key not in self._structures:
            with self.ledger.trial():
                self._structures[key] = self._cheapest_form(key)
        return self._structures[key]

    def legal_forms_of(self, key: KernelKey) -> tuple[CoreModel, ...]:
        """Returns a core model for each form that the kernel of `key` may have."""
        expr, operands, _ = key
        forms = self.forms(expr)
        if len(forms) > 1:
            constants = tuple(s.constant for s in operands)
            forms = tuple(f for f in forms if is_cpu_kernel(expr, constants, f)) or forms
        return forms

    def _cheapest_form(self, key: KernelKey, forced: ForcedStructure | None = None) -> Structure:
        """Returns the form of a kernel that has the lowest price under the schedule that rules
        choose.

        A `forced` kernel has its own form.
        """
        structures = [Structure(key, form) for form in self.legal_forms_of(key)]
        form = None if forced is None else forced.form
        return self.cheapest_form(
            key, structures, lambda s: self.price(*s.with_knobs(Knobs())), form
        )

    def bind(self, key: KernelKey) -> Planned:
        here = cache(partial(site, self.kind, *key))
        forced = self._forced(key, here)
        # The form is chosen again, because the ledger does not record decisions about kernels that
        # are only priced.
        has_forms = len(self.forms(key[0])) > 1
        if has_forms and (forced is not None or self.ledger.needs(partial(site, "form", *key))):
            self._structures[key] = self._cheapest_form(key, forced)
        structure, knobs = self._structure(key), Knobs()
        if forced is not None:
            self._forced_keys.add(key)
            structure, knobs = forced, forced.kernel.knobs
            rule = Alternative(Knobs(), self.price_of(key))
            choice = Alternative(
                knobs, self.price(*forced.with_knobs(knobs)), name=text_of(forced.kernel)
            )
            self.ledger.settle(here, rule, (choice,), choice, "")
        elif self.pricer is not None:
            chosen = cheapest(
                structure.with_knobs, self.pricer, structure.resized, self.ledger, here
            )
            knobs, self.priced = chosen.knobs, self.priced + chosen.priced
        self.ledger.name_exactly(here, lambda: structure.text(knobs))
        return structure.packed(knobs), self._bound(structure, knobs)

    def _forced(self, key: KernelKey, here: SiteOf) -> ForcedStructure | None:
        """Returns the structure of the kernel that a line forces with its schedule, not with knobs.

        None if no line does, or if the entry of a lock does not fit.  Raises UserError if a line of
        --choices does not fit.
        """
        text = self.ledger.wanted(here)
        if self.pricer is None or not is_object_text(text, CoreKernel):
            return None
        try:
            kernel = read_kernel(text, self.core)
            forms = {f.limits.form: f for f in self.legal_forms_of(key)}
            return ForcedStructure(key, self.item_of_form(key, kernel.form, forms), kernel)
        except ValueError as error:
            self.ledger.refuse(here, str(error))
            return None

    def _bound(self, structure: Structure, knobs: Knobs) -> Bound:
        """Returns the kernel of a structure under `knobs`.

        The stores of its results bypass the caches if `Machine.bypasses` says that this saves time.
        If a size is symbolic, they do not, because with small sizes bypassing takes longer.
        """
        group, schedule = structure.with_knobs(knobs)
        kernel = lower(group, schedule)
        if (
            self.pricer
            and not group.sizes
            and self.pricer.machine.bypasses(group_bytes(group, constants=False))
        ):
            results = (n for n in kernel.results if stored_once(kernel, group, n))
            kernel = replace(kernel, nontemporal=tuple(results))
        bound = Bound(kernel, schedule, group)
        if self.pricer is not None:
            resized, tabulated = structure.resized(knobs), structure.tabulated(knobs)
            bound = Bound(kernel, schedule, group, resized, tabulated)
        self._cores[bound] = structure.core(knobs)
        return bound


class Structure:
    """A kernel's expression and storage; it caches the groups and schedules of different knobs."""

    def __init__(self, key: KernelKey, core: CoreModel) -> None:
        self._key, self._core, self.form = key, core, core.limits.form
        self._plain = self._group(key[1])
        # The key has the knobs that change how constants are packed.
        self._packed: dict[tuple[int | None, ...], tuple[Storage, ...]] = {}

    @cached_property
    def _loops(self) -> TileGroup:
        return build_group(*self._key, collapsed=False, limits=self._core.limits)

    def core(self, knobs: Knobs) -> CoreModel:
        """Returns the core model with `knobs`."""
        return replace(self._core, knobs=knobs)

    def packed(self, knobs: Knobs) -> tuple[Storage, ...]:
        """Returns the storage of operands, with constants packed for the schedule under `knobs`."""
        operands = self._key[1]
        if not any(s.constant for s in operands):
            return operands
        key = (knobs.panel, knobs.wide, knobs.fixed, knobs.vector)
        if key not in self._packed:
            schedule = choose(self._plain, self.core(knobs))
            self._packed[key] = pack_constants(self._loops, schedule, operands)
        return self._packed[key]

    @cached_method
    def with_knobs(self, knobs: Knobs) -> tuple[TileGroup, Schedule]:
        """Returns the group whose constants are packed under `knobs`, and its schedule."""
        group = self._group(self.packed(knobs))
        return group, choose(group, self.core(knobs))

    @cached_method
    def _group(self, packed: tuple[Storage, ...]) -> TileGroup:
        """Returns the group whose operands have the storage `packed`."""
        expr, _, results = self._key
        return build_group(expr, packed, results, limits=self._core.limits)

    def text(self, knobs: Knobs, variant: Schedule | None = None) -> str:
        """Returns the text of the kernel under `knobs`, with its schedule.

        With `variant`, it has that schedule of the same group instead.
        """
        group, schedule = self.with_knobs(knobs)
        schedule = variant or schedule
        kernel = CoreKernel(
            self._core.lanes,
            self._core.count,
            extents_of_loops(group),
            self.form,
            knobs,
            by_position(schedule, group),
        )
        if pack_constants(self._loops, schedule, self._key[1]) != self.packed(knobs):
            packing = choose(self._plain, self.core(knobs))
            kernel = replace(kernel, packing=by_position(packing, self._plain))
        return text_of(kernel)

    @cached_property
    def _other_sizes(self) -> tuple[Substitution, ...]:
        return other_sizes(self._plain.sizes)

    def resized(self, knobs: Knobs) -> tuple[TileGroup, ...]:
        """Returns the group under `knobs` at each further set of sizes that choices depend on."""
        return self._at(knobs, self._other_sizes)

    def tabulated(self, knobs: Knobs) -> tuple[TileGroup, ...]:
        """Returns the group under `knobs` at the sets of sizes in a manifest's table of times."""
        sizes = self._plain.sizes
        return self._at(knobs, table_sizes(sizes) if sizes else ())

    def _at(self, knobs: Knobs, sets: Sequence[Substitution]) -> tuple[TileGroup, ...]:
        packed = self.packed(knobs)
        return tuple(self._sized(packed, tuple(sizes.items())) for sizes in sets)

    @cached_method
    def _sized(self, packed: tuple[Storage, ...], sizes: _Sizes) -> TileGroup:
        expr, _, results = self._key
        values = dict(sizes)
        storages = (
            [_resized(s, values) for s in group_storages] for group_storages in (packed, results)
        )
        return build_group(substitute_sizes(expr, values), *storages, limits=self._core.limits)


class LaidOut(Structure):
    """The structure of a kernel whose operand n has the layout `layouts[n]`."""

    def __init__(self, key: KernelKey, structure: Structure, layouts: Sequence[Layout]) -> None:
        super().__init__(key, structure.core(Knobs()))
        pairs = zip_equal(key[1], layouts)
        self._storage = tuple(replace(s, layout=layout) for s, layout in pairs)

    def packed(self, knobs: Knobs) -> tuple[Storage, ...]:
        return self._storage


class ForcedStructure(Structure):
    """The structure of a kernel whose schedule a line forces; all knobs give this schedule."""

    def __init__(self, key: KernelKey, core: CoreModel, kernel: CoreKernel) -> None:
        """Raises ValueError if the schedule does not fit the kernel."""
        super().__init__(key, core)
        self.kernel = kernel
        self._storage = self._packed_for(kernel.packing or kernel.schedule)
        group = self._group(self._storage)
        schedule = by_name(kernel.schedule, group)
        check(kernel, schedule, group, core)
        check_lowered(group, schedule, core)
        self._scheduled = group, schedule

    def packed(self, knobs: Knobs) -> tuple[Storage, ...]:
        return self._storage

    def with_knobs(self, knobs: Knobs) -> tuple[TileGroup, Schedule]:
        return self._scheduled

    def _packed_for(self, schedule: Schedule) -> tuple[Storage, ...]:
        named = by_name(schedule, self._plain)
        check_stages(named, self._plain)
        return pack_constants(self._loops, named, self._key[1])


def _resized(storage: Storage, sizes: Substitution) -> Storage:
    shape = tuple(substitute(n, sizes) for n in storage.shape)
    return replace(storage, shape=shape, layout=resized(storage.layout, sizes))


def _copied(storages: Sequence[Storage], layouts: Sequence[Layout], group: TileGroup) -> int:
    """Returns the bytes of constants that would be stored only for a kernel that reads few of them.

    Loading an artifact reads them, and no run needs them. `storages` are the kernel's operands in
    layouts of its own, and `layouts` those of other kernels.
    """
    copies = (
        (as_int(element_count(s.layout.sizes)) or 0) * s.dtype.bytes
        for s, layout in zip_equal(storages, layouts)
        if s.layout != layout
    )
    return max(sum(copies) - group_bytes(group, constants=False), 0)


# ---- packing ------------------------------------------------------------------------------------


def pack_constants(
    group: TileGroup, schedule: Schedule, operands: Sequence[Storage]
) -> tuple[Storage, ...]:
    """Returns the storage of operands, with constants packed for a schedule.

    In a packed constant, each block along the vector loop is contiguous.  Blocks follow each other
    in the order of the schedule's loops.  `group` must not be collapsed, so that each loop runs
    along one axis of each operand.
    """
    packed = list(operands)
    main = anchor(group)
    for number, stage in enumerate(group.stages):
        if stage is main or contracts(stage):
            nest = schedule.nest(number)
            _pack(packed, group, stage, nest, _ordered_loops(stage, schedule.parallel + nest.order))
    return tuple(packed)


def _ordered_loops(stage: GroupStage, order: Sequence[str]) -> tuple[Var, ...]:
    """Returns a stage's loops, beginning with those that `order` names.

    A name such as a.b.c belongs to a collapsed loop, and stands for the loops a, b and c.
    """
    names = [name for loop in order for name in loop.split(".")]
    named = {v.name: v for v in stage.loops}
    return tuple(dict.fromkeys((*(named[n] for n in names if n in named), *stage.loops)))


def _pack(
    packed: list[Storage], group: TileGroup, stage: GroupStage, nest: Nest, loops: tuple[Var, ...]
) -> None:
    """Changes, in `packed`, the layouts of the constants that one stage reads.

    `loops` are the stage's loops in the schedule's order.
    """
    if nest.vector is None:
        return
    # Neighbours along a collapsed loop a.b.c are neighbours along c.
    fastest = nest.vector.rpartition(".")[2]
    vector = next((v for v in stage.loops if v.name == fastest), None)
    if vector is None:
        return
    block = nest.block(nest.vector)
    panels = contracts(stage) and vector not in stage.reduce
    for node, access in stage.accesses.items():
        if access.buffer >= len(packed):  # the read is of another stage's result
            continue
        storage = packed[access.buffer]
        if not packable(group, node, access, storage):
            continue
        step = stride(access, vector)
        if step == 0 or (step == 1 and not panels):
            continue
        words = _words(stage, node, vector, storage.dtype) if panels else None
        packed_form = packed_layout(storage, node, vector, loops, block if panels else 1, words)
        packed[access.buffer] = replace(storage, layout=packed_form or storage.layout)


def _words(stage: GroupStage, node: Read, vector: Var, dtype: DType) -> Words | None:
    """Returns the axis of a bf16 or byte factor along which neighbours share a 32-bit word.

    It is the axis of the innermost summed loop.  None if both factors vary along the lanes, and for
    all other factors.  A CPU multiplies all neighbours in a word at once, or separates them with
    few instructions.
    """
    factors = contraction_factors(stage)
    count = 2 if dtype is BF16 else 4 if dtype in (I8, U8) and of_bytes(stage) else 1
    if count == 1 or factors is None or known_extent(stage.reduce[-1]) == 1:
        return None
    if all(vector in loops for loops in factors.loops(stage)):
        return None
    moving = [n for n, index in enumerate(node.indices) if stage.reduce[-1] in free_vars(index)]
    linear = linear_in(node.indices[moving[0]], stage.reduce[-1]) if len(moving) == 1 else None
    if linear is None or linear[0] is not const(1) or divisor_of(linear[1]) % count:
        return None
    return Words(moving[0], count)
