"""Chooses the kernel of every step of a program: the storage of operands, packed weights, the
schedule and the tile kernel.

    matmul(x, w) with w constant [768, 3072]
      ->  w stored as [48, 768, 64] (panels), x and y unchanged, blocks 6 x 64, k by 4

Requires layouts.  Establishes one tile kernel for each distinct structure.  Equal layers share a
kernel, because expressions are interned, and kernels contain no names, addresses or weights.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from tcc.cached import cached_method
from tcc.errors import TccError
from tcc.frozen import entity, frozen
from tcc.ir.expr import Expr, reads
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
from tcc.ir.tile.group import Access, TileGroup
from tcc.ir.types import element_count
from tcc.passes.choose.content import site
from tcc.passes.fuse.structure import Storage
from tcc.passes.layout.assign import Kernel, ProgramStep, usual_layouts
from tcc.schedule.alternatives import IMPOSSIBLE, SILENT, Alternative, Ledger, Seconds
from tcc.schedule.backend import AnySchedule, KernelModel
from tcc.schedule.choice_text import text_of
from tcc.schedule.limits import Form
from tcc.schedule.nest import multiplied
from tcc.schedule.open_sizes import Times
from tcc.zipped import zip_equal

# Constants with fewer elements keep their layout.
_SMALL = 64


@entity
class Bound:
    """A tile kernel with its schedule and group; all launches of equal structure share it.

    `resized`: the group at each further set of sizes at which schedules are priced (`other_sizes`).
    `tabulated`: the group at each set of sizes in a manifest's table of times.
    """

    kernel: TileKernel
    schedule: AnySchedule
    group: TileGroup
    resized: tuple[TileGroup, ...] = ()
    tabulated: tuple[TileGroup, ...] = ()


@entity
class PlannedKernel:
    """The kernel of one launch, with the layouts of its operands and results."""

    bound: Bound
    operands: tuple[tuple[Value, Layout], ...]
    results: tuple[tuple[Value, Layout], ...]
    loc: str


# The key of a kernel: its expression, the storage of its operands, the storage of its results.
KernelKey: TypeAlias = tuple[Expr, tuple[Storage, ...], tuple[Storage, ...]]
Planned: TypeAlias = tuple[tuple[Storage, ...], Bound]


class Formed(Protocol):
    """The structure of a kernel in one of its forms."""

    @property
    def form(self) -> Form: ...


_T = TypeVar("_T")
_F = TypeVar("_F", bound=Formed)


class KernelChooser(KernelModel):
    """Chooses kernels for one target, and caches them by structure.

    `priced` counts the schedules whose prices were compared.  `prices_layouts` is True if prices
    choose the layouts of values.  `kind` is the kind of the sites of schedules.
    """

    priced: int = 0
    kind: str = "schedule"

    def __init__(self, ledger: Ledger = SILENT) -> None:
        self.ledger = ledger
        self.keys: dict[Bound, KernelKey] = {}  # the key of each chosen kernel
        # The steps that launch each chosen kernel, by their place in the model.
        self.launches: dict[Bound, list[str]] = {}
        self._known: dict[KernelKey, Planned] = {}

    @property
    def prices_layouts(self) -> bool:
        return False

    @abstractmethod
    def bind(self, key: KernelKey) -> Planned:
        """Returns (operands, kernel) for `key`: the storage of operands with constants packed, and
        the kernel.

        Raises TccError for an expression that cannot be a kernel of the target.
        """

    @abstractmethod
    def estimate(self, key: KernelKey) -> Seconds:
        """Returns the seconds of the kernel that `bind` would return, or of a similar kernel."""

    def least_units(self, bound: Bound) -> Index | None:
        """Returns how many tiles of a kernel are enough work for a thread of their own.

        Returns None for a kernel of one tile, and if the host does not divide tiles among threads.
        """
        return None

    def explained(self, bound: Bound, constants: int) -> Iterable[str]:
        """Returns lines that say what limits a kernel, and which rule set each field of its
        schedule.

        The kernel's program has `constants` bytes of constants.  There are no lines if the target
        has no prices and no rules.
        """
        return ()

    def plan(
        self,
        kernel: Kernel,
        layouts: Mapping[Value, Layout],
        constants: Mapping[Value, Handle],
        periods: dict[Value, float | None] | None = None,
    ) -> PlannedKernel:
        """Returns the kernel of a step, with the layouts of its operands and results.

        A value without a layout belongs to an outer graph, and is row-major.  `periods` is that
        of `redivided`.
        """
        key = kernel_key(kernel, layouts, constants)
        digests = [constants[v].digest if v in constants else None for v in kernel.operands]
        with self.ledger.at(kernel.loc):
            if key not in self._known:
                self._known[key] = self.bind(key)
            packed, bound = self.settled(key, digests)
            bound = self.redivided(key, bound, kernel, {} if periods is None else periods)
        self.keys.setdefault(bound, key)
        self.launches.setdefault(bound, []).append(kernel.loc)
        return PlannedKernel(
            bound,
            tuple((v, s.layout) for v, s in zip_equal(kernel.operands, packed)),
            tuple((v, s.layout) for v, s in zip_equal(kernel.results, key[2])),
            kernel.loc,
        )

    def plans(
        self,
        steps: Iterable[ProgramStep],
        layouts: Mapping[Value, Layout],
        constants: Mapping[Value, Handle],
    ) -> dict[ProgramStep, PlannedKernel]:
        """Returns `plan` of each step that launches a kernel.

        Kernels that read few rows of a table come last: they take the layout that others need.
        """
        kernels = {step: step.kernel for step in steps if step.kernel and not step.every}
        order = sorted(kernels, key=lambda step: selects_rows(kernels[step].expr))
        periods: dict[Value, float | None] = {}
        return {step: self.plan(kernels[step], layouts, constants, periods) for step in order}

    def settled(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        """Returns the kernel of `key`, or a kernel that differs in the layouts of constants.

        If other programs of the model store a constant in another layout, the kernel may use that
        layout too, so that the constant is stored once.  `digests` has the digest of each constant,
        and None for other operands.
        """
        return self._known[key]

    def redivided(
        self, key: KernelKey, bound: Bound, kernel: Kernel, periods: dict[Value, float | None]
    ) -> Bound:
        """Returns the kernel `bound` of a step, perhaps with other tiles.

        `periods` has the periods in which threads have written values
        (`tcc.schedule.cpu.owners`); those of the step's results are added.
        """
        return bound

    def forget(self, keys: Iterable[KernelKey]) -> None:
        """Forgets the kernels of `keys`, so that they can be planned again, with other choices.

        The other kernels stay the same objects.
        """
        for key in keys:
            self._known.pop(key, None)
        self.launches.clear()

    def cheapest_form(
        self,
        key: KernelKey,
        structures: Sequence[_F],
        price: Callable[[_F], Seconds],
        forced: Form | None,
    ) -> _F:
        """Returns the structure of a kernel that has the lowest price, or the `forced` form.

        Among equal prices it is the first one.
        """
        if len(structures) == 1:
            return structures[0]
        rule, *alternatives = options = [
            Alternative(s, price(s), name=text_of(s.form)) for s in structures
        ]
        here = partial(site, "form", *key)
        if forced is None:
            return self.ledger.decide(here, rule, alternatives).replacement
        choice = next(o for o in options if o.replacement.form == forced)
        reason = "the line of its schedule has this form"
        return self.ledger.settle(here, rule, alternatives, choice, reason).replacement

    def item_of_form(self, key: KernelKey, form: Form, items: Mapping[Form, _T]) -> _T:
        """Returns the item for the form that the line of a kernel's schedule has.

        `items` has one for each form of the kernel. Raises ValueError if the kernel does not have
        the form, or if another line forces a different form.
        """
        wanted = self.ledger.wanted(partial(site, "form", *key))
        if form not in items or wanted not in ("", text_of(form)):
            raise ValueError(f"the kernel has no form {text_of(form)} here")
        return items[form]

    def seconds(
        self, kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
    ) -> Seconds:
        """Returns the price of a step with its operands and results in `layouts`."""
        return self.price_of(kernel_key(kernel, layouts, constants))

    @cached_method
    def price_of(self, key: KernelKey) -> Seconds:
        """Returns the price of a kernel."""
        return self.estimate(key)

    @cached_method
    def times_of(self, key: KernelKey) -> Times:
        """Returns the price of a kernel at each set of sizes."""
        return self.estimates(key)

    def estimates(self, key: KernelKey) -> Times:
        """Returns the estimated price of a kernel at each set of sizes (see `estimate`)."""
        return (self.price_of(key),)

    def alone(self, expr: Expr, constants: Sequence[bool]) -> Seconds | None:
        operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
        results = tuple(Value(f"y{n}", t) for n, t in enumerate(expr.types))
        fixed = {v for v, c in zip_equal(operands, constants) if c}
        kernel = Kernel(expr, operands, results, "")
        try:
            return self.seconds(kernel, usual_layouts(kernel, fixed, self.gaps), fixed)
        except TccError:
            return IMPOSSIBLE


def kernel_key(
    kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
) -> KernelKey:
    """Returns the key of a step's kernel, with the layouts of its operands and results.

    A value without a layout is row-major.  `constants` has the operands that are constants.
    """

    def storage(value: Value, constant: bool) -> Storage:
        type_ = value.type
        return Storage(
            type_.dtype, type_.shape, layouts.get(value) or row_major(type_.shape), constant
        )

    operands = tuple(storage(v, v in constants) for v in kernel.operands)
    return kernel.expr, operands, tuple(storage(v, False) for v in kernel.results)


# ---- packing ------------------------------------------------------------------------------------


def selects_rows(expr: Expr) -> bool:
    """Returns True if a kernel sums no products of its operands, and reads some at data-dependent
    indices.

    It reads a few rows of a table.
    """
    sums = [isinstance(n.source, int) for s in expr.stages if multiplied(s) for n in reads(s)]
    return not any(sums) and any(node.indirect for s in expr.stages for node in reads(s))


def packable(group: TileGroup, node: Read, access: Access, storage: Storage) -> bool:
    """Returns True if the layout of a constant is free: `node` is its only read, and selects whole
    parts of it."""
    if not storage.constant or not _selects_whole(node, access):
        return False
    readers = [a for s in group.stages for a in s.accesses.values() if a.buffer == access.buffer]
    count = as_int(element_count(storage.shape))
    return len(readers) == 1 and count is not None and count >= _SMALL


def _selects_whole(node: Read, access: Access) -> bool:
    """Returns True if data-dependent indices select whole parts of a constant, for example a matrix
    by its number.

    Each of these indices is then the complete index along an axis, and no other index has a guard.
    """
    data_vars = {v for v, _ in node.indirect}
    if any(not data_vars.issuperset(free_vars(guard.index)) for guard in access.guards):
        return False
    index_vars = [data_vars.intersection(free_vars(index)) for index in node.indices]
    pairs = zip_equal(index_vars, node.indices)
    return all(
        not names or (len(names) == 1 and index is of_atom(*names)) for names, index in pairs
    )


@frozen
class Words:
    """An axis of a constant along which `count` neighbours share a 32-bit word."""

    axis: int
    count: int


def packed_layout(
    storage: Storage,
    node: Read,
    vector: Var,
    loops: tuple[Var, ...],
    block: int = 1,
    words: Words | None = None,
) -> Layout | None:
    """Returns a layout with the axes in the order of `loops`, and the axis of `vector` in panels.

    A panel has `block` columns, which are innermost in storage; if `block` is 1, the axis is not
    cut.  With `words`, `words.count` neighbours along the axis `words.axis` are stored next to each
    other inside the panel.  Returns None if several axes run along `vector`.
    """
    moving = [n for n, index in enumerate(node.indices) if vector in free_vars(index)]
    if len(moving) != 1:
        return None
    (axis,) = moving
    linear = linear_in(node.indices[axis], vector)
    if linear is None or linear[0] is not const(1):
        return None

    def depth(other: int) -> tuple[int, int]:
        positions = (loops.index(v) for v in free_vars(node.indices[other]) if v in loops)
        return max(positions, default=-1), other

    outer_axes = sorted((n for n in range(len(storage.shape)) if n != axis), key=depth)
    axes = axis_vars(storage.shape)
    word_sizes = {} if words is None or words.axis == axis else {words.axis: words.count}
    sizes = [ceildiv(storage.shape[n], word_sizes.get(n, 1)) for n in outer_axes]
    indices = [axes[n] // word_sizes.get(n, 1) for n in outer_axes]
    inside = [(const(count), axes[n] % count) for n, count in word_sizes.items()]
    panel = _panel(block, linear[1], storage.shape[axis])
    if panel is None:
        sizes, indices = [*sizes, storage.shape[axis]], [*indices, axes[axis]]
    else:
        position = sum(depth(n) < depth(axis) for n in outer_axes)
        sizes[position:position], indices[position:position] = (
            [ceildiv(storage.shape[axis], panel)],
            [axes[axis] // panel],
        )
        sizes, indices = [*sizes, const(panel)], [*indices, axes[axis] % panel]
    sizes, indices = [*sizes, *(n for n, _ in inside)], [*indices, *(i for _, i in inside)]
    fill = None if panel is None and not inside else 0.0
    return layout(storage.shape, tuple(sizes), tuple(indices), fill)


def _panel(block: int, offset: Index, size: Index) -> int | None:
    """Returns the number of columns of a panel; None if the axis is not cut into panels.

    It is `block`, or a smaller number if other loops run along the axis too: it must divide their
    steps.
    """
    if block <= 1 or as_int(size) == block:
        return None
    steps = divisor_of(offset)
    if steps == 0:
        return block
    return next((w for w in (block, 64, 32, 16) if w <= block and steps % w == 0), None)
