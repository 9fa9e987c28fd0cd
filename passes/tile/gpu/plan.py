"""Chooses block kernels for GPUs, as `tile/cpu/plan.py` does for CPU cores.

    conv with constant w [64, 32, 3, 3]   ->   w stored as [3, 3, 32, 64]: the result's channels are
                                               contiguous, and summed elements are close together

Requires layouts.  Establishes one block kernel for each distinct structure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tcc.cached import cached_method
from tcc.errors import TccError
from tcc.frozen import frozen
from tcc.ir.expr import Expr
from tcc.ir.index import Var
from tcc.ir.layout import permuted
from tcc.ir.tile import TileKernel
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.ir.types import F32, DType, TensorType
from tcc.passes.choose.content import site
from tcc.passes.fuse.forms import repeating_forms
from tcc.passes.fuse.structure import Storage, build_group, row_major_storage
from tcc.passes.tile.gpu.legality import is_gpu_kernel
from tcc.passes.tile.gpu.lower import blocks_fit, lower_blocks
from tcc.passes.tile.gpu.split_k import split_k
from tcc.passes.tile.gpu.stored import stored_as
from tcc.passes.tile.plan import (
    Bound,
    KernelChooser,
    KernelKey,
    Planned,
    packable,
    packed_layout,
)
from tcc.schedule.alternatives import (
    IMPOSSIBLE,
    SILENT,
    Alternative,
    Ledger,
    Seconds,
    SiteOf,
)
from tcc.schedule.backend import AnySchedule
from tcc.schedule.choice_text import is_object_text, text_of
from tcc.schedule.gpu.axes import factors, matmul_type, of_bytes
from tcc.schedule.gpu.candidates import candidates
from tcc.schedule.gpu.choose import choose_blocks, ranked
from tcc.schedule.gpu.cost import LAUNCH, BlockPrice, BlockPricer
from tcc.schedule.gpu.kernel_choice import BlockKernel, read_kernel, schedule_of
from tcc.schedule.gpu.matmuls import is_matmul
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile, BlockSchedule, NotBlocks
from tcc.schedule.limits import Form, FusionLimits, Rates
from tcc.schedule.loop_positions import by_position, extents_of_loops
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import depends, stride
from tcc.zipped import zip_equal


@frozen
class _Packing:
    """A form of a kernel, and its operands with constants packed, which its group reads."""

    form: Form
    operands: tuple[Storage, ...]
    group: TileGroup


class BlockChooser(KernelChooser):
    """Chooses block kernels for one device, and caches them by structure."""

    gaps = False  # values have no halos: masks are cheap, and only the host could fill halos
    scratch = False
    updates = True
    kind = "blocks"
    join_margin = MARGINS["join on GPUs"]

    def __init__(
        self,
        profile: BlockProfile = TYPICAL_DEVICE,
        floats: DType = F32,
        *,
        skips: bool = True,
        ledger: Ledger = SILENT,
    ) -> None:
        """`floats` is the type in which f32 operands will be stored by a later pass.

        `skips`: streaming loops skip masked blocks, even if these contain NaN or infinities.
        """
        super().__init__(ledger)
        self.profile, self.floats, self.skips = profile, floats, skips
        self.limits = replace(profile.limits, launch_bytes=LAUNCH * profile.bandwidth)
        matrix = dict(profile.matrix).get(floats.name, profile.flops)
        self.rates = Rates(matrix / 2, profile.flops / 2, profile.bandwidth)
        self.divides = lambda kernel, _: split_k(kernel.expr, profile, self.best, ledger)
        # Kernels whose schedules are final: the user forced them, or they were compiled and fit.
        self.pinned: set[Bound] = set()

    def legal(self, expr: Expr, constants: Sequence[bool]) -> bool:
        return is_gpu_kernel(expr, constants, self.profile, self.floats)

    def candidates(self, group: TileGroup) -> Sequence[BlockSchedule]:
        return list(dict.fromkeys(candidates(group)))

    def price(self, group: TileGroup, schedule: AnySchedule) -> Seconds:
        assert isinstance(schedule, BlockSchedule)
        return BlockPricer(group, self.profile).price(schedule).seconds

    def verify(self, kernel: TileKernel) -> None:
        super().verify(kernel)
        verify_blocks(kernel)

    def bind(self, key: KernelKey) -> Planned:
        """Returns (operands, kernel) for `key`, with constants packed.

        Raises `NotBlocks` for an expression that cannot be a block kernel.
        """

        here = partial(site, self.kind, *key)
        forced = self._forced(key, here)
        packing = self._packed(key, None if forced is None else forced[0].form)
        if forced is None:
            schedule = choose_blocks(packing.group, self.profile, self.ledger, here)
            bound = self.scheduled(packing.group, schedule)
            analytic = not self.ledger.listens or schedule == choose_blocks(
                packing.group, self.profile
            )
        else:
            (kernel, bound), analytic = forced, False
            best = ranked(packing.group, self.profile)[0]
            rule = Alternative(best.schedule, best.price.seconds)
            schedule = block_schedule(bound)
            price = self.price(bound.group, schedule)
            choice = Alternative(schedule, price, name=text_of(kernel))
            self.ledger.settle(here, rule, (choice,), choice, "")
        if not analytic:
            self.pinned.add(bound)

        def text() -> str:
            """Returns the text of the kernel under the schedule that it has when this is called."""
            now = self._known[key][1]
            return kernel_text(now.group, packing.form, block_schedule(now))

        self.ledger.name_exactly(here, text)
        return packing.operands, bound

    def _forced(self, key: KernelKey, here: SiteOf) -> tuple[BlockKernel, Bound] | None:
        """Returns the choice and the kernel that a line forces with its form.

        None if no line does, or if the entry of a lock does not fit.  Raises UserError if a line of
        --choices does not fit.
        """
        text = self.ledger.wanted(here)
        if not is_object_text(text, BlockKernel):
            return None
        try:
            kernel = read_kernel(text)
            forms = {f.form: f for f in repeating_forms(key[0], self.limits)}
            group = self._packing(key, self.item_of_form(key, kernel.form, forms)).group
            bound = self.scheduled(group, schedule_of(kernel, group, self.profile))
            self.verify(bound.kernel)
        except (TccError, ArithmeticError, AssertionError, LookupError, ValueError) as error:
            self.ledger.refuse(here, str(error))
            return None
        return kernel, bound

    def _packed(self, key: KernelKey, form: Form | None = None) -> _Packing:
        """Returns the cheapest form of a kernel, or `form` if it is not None."""
        return self.cheapest_form(key, self.packings(key), self._seconds_of, form)

    def packings(self, key: KernelKey) -> list[_Packing]:
        """Returns the forms that the kernel of `key` may take."""
        return [self._packing(key, limits) for limits in repeating_forms(key[0], self.limits)]

    def _packing(self, key: KernelKey, limits: FusionLimits) -> _Packing:
        """Returns the form of a kernel that `limits` allow, with constants packed."""
        expr, operands, results = key
        loops = build_group(*key, collapsed=False, limits=limits)
        packed = pack_factors(loops, operands, self.profile.terms)
        return _Packing(limits.form, packed, build_group(expr, packed, results, limits=limits))

    def _seconds_of(self, packing: _Packing) -> Seconds:
        """Returns the lowest price of a form; infinite for a form that is no block kernel."""
        fits = blocks_fit(packing.group, self.profile)
        return ranked(packing.group, self.profile)[0].price.seconds if fits else IMPOSSIBLE

    def estimate(self, key: KernelKey) -> Seconds:
        """Returns the lowest price; infinite for an expression that is no block kernel."""
        expr, operands, results = key
        stored_expr = stored_as(expr, self.floats)
        storages = _typed(operands, stored_expr.params), _typed(results, stored_expr.types)
        price = self._lowest_price((stored_expr, *storages))
        return IMPOSSIBLE if price is None else price.seconds

    @cached_method
    def best(self, expr: Expr) -> BlockPrice | None:
        """Returns the lowest price of a kernel of `expr`; None if it cannot be a block kernel.

        f32 operands are stored as `floats`, and all operands are packed as if they were constants.
        """
        stored_expr = stored_as(expr, self.floats)
        operands, results = row_major_storage(stored_expr, (True,) * len(stored_expr.params))
        if any(s.monoid is not None and len(s.reduce) > 1 for s in stored_expr.stages):
            operands, results = (
                [*map(_channels_last, storages)] for storages in (operands, results)
            )
        return self._lowest_price((stored_expr, tuple(operands), tuple(results)))

    def _lowest_price(self, key: KernelKey) -> BlockPrice | None:
        try:
            with self.ledger.trial():
                group = self._packed(key).group
            return ranked(group, self.profile)[0].price
        except NotBlocks:
            return None

    def scheduled(self, group: TileGroup, schedule: BlockSchedule) -> Bound:
        """Returns the kernel of `group` under `schedule`. Raises `NotBlocks` if there is none."""
        return Bound(lower_blocks(group, schedule, self.skips), schedule, group)

    def exchange(self, changes: Mapping[Bound, Bound]) -> None:
        """Replaces kernels in all later results; `changes` maps an old kernel to the new one."""
        for key, (packed, bound) in self._known.items():
            self._known[key] = packed, changes.get(bound, bound)


def _typed(storages: Sequence[Storage], types: Sequence[TensorType | None]) -> tuple[Storage, ...]:
    """Returns `storages` with the element types of `types`; a type of None changes nothing."""
    pairs = zip_equal(storages, types)
    return tuple(s if t is None else replace(s, dtype=t.dtype) for s, t in pairs)


def _channels_last(storage: Storage) -> Storage:
    """Returns the storage of an image with channels last; any other storage is unchanged."""
    if len(storage.shape) != 4:
        return storage
    return replace(storage, layout=permuted(storage.shape, (0, 2, 3, 1)))


def block_schedule(bound: Bound) -> BlockSchedule:
    """Returns the schedule of a kernel that a `BlockChooser` has chosen."""
    assert isinstance(bound.schedule, BlockSchedule)
    return bound.schedule


def kernel_text(group: TileGroup, form: Form, schedule: BlockSchedule) -> str:
    """Returns the text of a kernel's whole choice; `schedule` names loops of `group`."""
    return text_of(BlockKernel(extents_of_loops(group), form, by_position(schedule, group)))


def pack_factors(
    group: TileGroup, operands: Sequence[Storage], terms: Collection[str]
) -> tuple[Storage, ...]:
    """Returns the storage of operands, with the constant factors of contractions packed.

    In a packed constant, elements of neighbouring results are neighbours.  If matrix units multiply
    it and its type is one of `terms`, neighbouring terms of the sum are neighbours instead.
    `group` must not be collapsed, so that each loop runs along one axis of each operand.
    """
    packed = list(operands)
    for stage in group.stages:
        if factors(stage) is not None and stage.reduce:
            _pack(packed, group, stage, terms)
    return tuple(packed)


def _pack(
    packed: list[Storage], group: TileGroup, stage: GroupStage, terms: Collection[str]
) -> None:
    loops = stage.loops
    deep = of_bytes(stage) or (is_matmul(stage) and matmul_type(stage) in terms)
    for node, access in stage.accesses.items():
        if access.buffer >= len(packed) or not packable(group, node, access, packed[access.buffer]):
            continue
        last = stage.reduce[-1]
        fine = (last,) if deep else (*stage.iters, last)
        if any(stride(access, v) == 1 for v in fine):
            continue
        factor_loops = [v for v in stage.iters if v in depends(stage, node)]
        vector = last if deep else _result_loop(stage, factor_loops)
        if vector is None:
            continue
        storage = packed[access.buffer]
        layout = packed_layout(storage, node, vector, loops)
        packed[access.buffer] = replace(storage, layout=layout or storage.layout)


def _result_loop(stage: GroupStage, loops: Sequence[Var]) -> Var | None:
    """Returns the last of `loops` on which exactly one factor depends; if there is none, the last
    of the loops."""
    pair = factors(stage)
    assert pair is not None
    common = frozenset.intersection(*pair.loops(stage))
    return next((v for v in reversed(loops) if v not in common), loops[-1] if loops else None)
