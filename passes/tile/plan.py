"""Plans the kernel of every step: storage of each operand, packed weights, schedule, tile program.

    matmul(x, w) with w constant [768, 3072]
      ->  w stored as [48, 768, 64] (panels), x and y in place, blocks 6 x 64, k by 4

Requires layouts.  Establishes one tile kernel a distinct structure: equal layers share it, because
expressions are interned and kernels hold no names, addresses or weights.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from math import ceil, inf
from typing import TypeAlias

from tcc.errors import TccError
from tcc.ir.expr import Expr
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
from tcc.passes.fuse.structure import Storage
from tcc.passes.layout.assign import Kernel, usual_layouts
from tcc.record import entity, record
from tcc.schedule.backend import AnySchedule, KernelModel
from tcc.schedule.nest import contraction_factors, weight, work

# Constants smaller than this many elements are left as they are.
_SMALL = 64


@entity
class Bound:
    """A tile kernel with its schedule; shared by all launches of equal structure.  `resized`: the
    group at the further sets of sizes that its prices count on; `tabulated`: at those of which a
    manifest has the time."""

    kernel: TileKernel
    schedule: AnySchedule
    group: TileGroup
    resized: tuple[TileGroup, ...] = ()
    tabulated: tuple[TileGroup, ...] = ()


@entity
class PlannedKernel:
    """One launch: what it runs, and where each operand lies (constants in their own layout)."""

    bound: Bound
    operands: tuple[tuple[Value, Layout], ...]
    results: tuple[tuple[Value, Layout], ...]
    loc: str


# A kernel as planners remember it: its expression, and the storage of operands and results.
KernelKey: TypeAlias = tuple[Expr, tuple[Storage, ...], tuple[Storage, ...]]
Planned: TypeAlias = tuple[tuple[Storage, ...], Bound]


class KernelPlanner(KernelModel):
    """Plans kernels for one target and remembers them by structure.

    `priced` counts the schedules whose prices were compared; with `prices_layouts` the layouts of
    values are chosen by `seconds`.
    """

    priced: int = 0

    def __init__(self) -> None:
        self._known: dict[KernelKey, Planned] = {}
        self._seconds: dict[KernelKey, float] = {}

    @property
    def prices_layouts(self) -> bool:
        return False

    @abstractmethod
    def bind(self, key: KernelKey) -> Planned:
        """The operands with constants packed, and the kernel: what targets differ in.

        Raises TccError for what is no kernel of the target."""

    @abstractmethod
    def estimate(self, key: KernelKey) -> float:
        """Seconds of the kernel that `bind` would make, or of one near it."""

    @abstractmethod
    def units(self, bound: Bound) -> Fraction:
        """Units that do a kernel's work; of a loop of symbolic size as many as do the trips that
        are counted of it, which may be less than one."""

    def plan(
        self, kernel: Kernel, layouts: Mapping[Value, Layout], constants: Mapping[Value, Handle]
    ) -> PlannedKernel:
        """The planned kernel of a step.  Values without a layout are row-major (outer values)."""
        key = kernel_key(kernel, layouts, constants)
        if key not in self._known:
            self._known[key] = self.bind(key)
        digests = [constants[v].digest if v in constants else None for v in kernel.operands]
        packed, bound = self.settled(key, digests)
        return PlannedKernel(
            bound,
            tuple((v, s.layout) for v, s in zip(kernel.operands, packed, strict=True)),
            tuple((v, s.layout) for v, s in zip(kernel.results, key[2], strict=True)),
            kernel.loc,
        )

    def settled(self, key: KernelKey, digests: Sequence[str | None]) -> Planned:
        """What was bound, or the same on constants as other programs of the model have them;
        `digests` tell these apart, None for other operands."""
        return self._known[key]

    def seconds(
        self, kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
    ) -> float:
        """The price of a step with its operands and results in these layouts."""
        return self.price_of(kernel_key(kernel, layouts, constants))

    def price_of(self, key: KernelKey) -> float:
        """The price of a kernel."""
        if key not in self._seconds:
            self._seconds[key] = self.estimate(key)
        return self._seconds[key]

    def alone(self, expr: Expr, constants: Sequence[bool]) -> float | None:
        operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
        results = tuple(Value(f"y{n}", t) for n, t in enumerate(expr.types))
        fixed = {v for v, c in zip(operands, constants, strict=True) if c}
        kernel = Kernel(expr, operands, results, "")
        try:
            return self.seconds(kernel, usual_layouts(kernel, fixed, self.gaps), fixed)
        except TccError:
            return inf

    @property
    def estimates(self) -> int:
        """How many different kernels `seconds` has priced."""
        return len(self._seconds)

    def least_units(self, bound: Bound) -> int:
        """Units of a kernel that are worth a thread of their own."""
        stages, rates = bound.group.stages, self.limits
        plain = sum(work(s) * weight(s) for s in stages if contraction_factors(s) is None)
        contracted = sum(work(s) * weight(s) for s in stages if contraction_factors(s) is not None)
        nanoseconds = plain // rates.plain_rate + contracted // rates.contraction_rate
        return max(1, ceil(rates.least_nanoseconds * self.units(bound) / max(nanoseconds, 1)))


def kernel_key(
    kernel: Kernel, layouts: Mapping[Value, Layout], constants: Collection[Value]
) -> KernelKey:
    """What planners remember the kernel of a step by."""

    def storage(value: Value, constant: bool) -> Storage:
        form = value.type
        return Storage(
            form.dtype, form.shape, layouts.get(value) or row_major(form.shape), constant
        )

    operands = tuple(storage(v, v in constants) for v in kernel.operands)
    return kernel.expr, operands, tuple(storage(v, False) for v in kernel.results)


# ---- packing ------------------------------------------------------------------------------------


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
class Words:
    """The axis of which `count` neighbours lie in one word."""

    axis: int
    count: int


def permuted_constant(
    storage: Storage, node: Read, vector: Var, loops: tuple[Var, ...]
) -> Layout | None:
    """A layout with axes in the order of `loops`, but that of `vector` last; None where several
    axes run along it."""
    return packed_layout(storage, node, vector, loops, 1, None)


def packed_layout(
    storage: Storage,
    node: Read,
    vector: Var,
    loops: tuple[Var, ...],
    block: int,
    words: Words | None,
) -> Layout | None:
    """Axes in the order of `loops`, the vector loop's cut into panels of `block`, the columns of a
    panel last.

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
        at = sum(depth(n) < depth(axis) for n in others)
        sizes[at:at], indices[at:at] = [ceildiv(storage.shape[axis], panel)], [axes[axis] // panel]
        sizes, indices = [*sizes, const(panel)], [*indices, axes[axis] % panel]
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
