"""Decides what may be one kernel on a CPU.

The elements of a contraction's operands must be stored at equal distances along each loop, and a
thread's scratch must hold the values that stages exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from tcc.errors import TccError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import Cast, Read
from tcc.ir.index import as_int
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.passes.fuse.combine import read_plainly
from tcc.passes.fuse.compose import side_by_side
from tcc.passes.fuse.forms import kernel_forms
from tcc.passes.fuse.structure import build_group, row_major_storage, steps_evenly
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.cpu.result_scratch import lie_in_results
from tcc.passes.tile.cpu.scratch import resident_values
from tcc.schedule.alternatives import Seconds
from tcc.schedule.backend import AnySchedule, KernelModel
from tcc.schedule.cpu.candidates import candidates
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.sliding_window import kept_gain, strips_fit
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import (
    contraction_factors,
    neighbours,
    row_loop,
)

# The clock, in hertz, that is assumed for a core without a machine.
_HERTZ = 1e9


class CpuKernels(KernelModel):
    """The kernels that a CPU core can run, and their prices if there is a `pricer`."""

    def __init__(self, core: CoreModel, pricer: Pricer | None = None) -> None:
        self.core, self.pricer = core, pricer
        self.limits = core.limits
        if pricer is not None:
            self.rates = pricer.rates

    def legal(self, expr: Expr, constants: Sequence[bool]) -> bool:
        return any(self._legal_forms(expr, constants))

    def form(self, expr: Expr, constants: Sequence[bool]) -> FusionLimits:
        return next(self._legal_forms(expr, constants), self.core).limits

    def _legal_forms(self, expr: Expr, constants: Sequence[bool]) -> Iterator[CoreModel]:
        return (f for f in self.forms(expr) if is_cpu_kernel(expr, tuple(constants), f))

    def forms(self, expr: Expr) -> tuple[CoreModel, ...]:
        """Returns a core model for each form of a kernel of `expr`; prices choose among them."""
        if self.pricer is None:
            return (self.core,)
        forms = kernel_forms(expr, self.limits)
        if side_by_side(expr) != expr:
            forms += (replace(self.limits, merges_reductions=True),)
        return tuple(replace(self.core, limits=form) for form in forms)

    def gain(self, group: TileGroup) -> Seconds:
        hertz = _HERTZ if self.pricer is None else self.pricer.machine.hertz
        return Seconds(kept_gain(group, choose(group, self.core), self.core) / hertz)

    def candidates(self, group: TileGroup) -> Sequence[Schedule]:
        return candidates(group, self.core)

    def holding(self, constants: int) -> CpuKernels:
        if self.pricer is None:
            return self
        machine, _, pairs = self.pricer.key
        pricer = Pricer(machine, constants, pairs=pairs)
        pricer.counted = self.pricer.counted
        return CpuKernels(self.core, pricer)

    def price(self, group: TileGroup, schedule: AnySchedule) -> Seconds:
        assert self.pricer is not None
        assert isinstance(schedule, Schedule)
        return self.pricer.price(group, schedule).seconds


@lru_cache(4096)  # fusion asks again for the same expressions
def is_cpu_kernel(expr: Expr, constants: tuple[bool, ...], core: CoreModel) -> bool:
    """Returns True if `expr` can be one kernel on a CPU, with all values row-major.

    The elements of a contraction's operands must be stored at equal distances along each loop. The
    values that stages exchange must fit a thread's scratch. `constants[n]` is True if operand n is
    a constant.
    """
    storage = row_major_storage(expr, constants)
    try:
        group = build_group(expr, *storage, collapsed=False, limits=core.limits)
        if not all(map(loads_evenly, group.stages)):
            return False
        if not any(b.is_local for b in group.buffers):
            return True
        built = build_group(expr, *storage, limits=core.limits)
        if row_loop(built) is not None:
            return strips_fit(built, choose(built, core), core)
        return read_plainly(expr) and _scratch(built, choose(built, core)) <= core.limits.room
    except TccError:
        return False


def check_lowered(group: TileGroup, schedule: Schedule, core: CoreModel) -> None:
    """Raises ValueError if a schedule that came as text is no kernel of `group` on `core`.

    Its scratch must fit, and the kernel that it is lowered to must pass the verifier.
    """
    try:
        scratch = _scratch(group, schedule)
        if scratch > core.limits.room:
            raise ValueError(f"its tiles take {scratch} bytes of scratch, of {core.limits.room}")
        unproved = verify_kernel(lower(group, schedule))
        if unproved and unproved != verify_kernel(lower(group, choose(group, core))):
            raise ValueError(f"its accesses may lie outside their buffers: {unproved[0]}")
    except (TccError, ArithmeticError, AssertionError, LookupError, TypeError) as error:
        raise ValueError(f"no kernel follows from it: {error}") from error


def _scratch(group: TileGroup, schedule: Schedule) -> float:
    """Returns the bytes of a tile's scratch; values that are stored in the memory of results do not
    count.

    Raises `InternalError` if the size of the scratch is symbolic.
    """
    resident = resident_values(group, schedule)
    if not lie_in_results(group, schedule, resident):
        return inf
    buffers = dict.fromkeys(h.buffer for h in resident.values() if h.base is None)
    return sum((as_int(b.sizes[0]) or 0) * b.dtype.bytes for b in buffers)


def loads_evenly(stage: GroupStage) -> bool:
    """Returns True if the factors of a contraction are stored elements at even distances along each
    loop."""
    factors = contraction_factors(stage)
    if factors is None:
        return True
    loaded = (
        s.arg if neighbours(stage) > 1 and isinstance(s, Cast) else s
        for s in (factors.a, factors.b)
    )
    if factors.a is not factors.b and not all(isinstance(s, Read) for s in loaded):
        # A factor that must be computed would be computed again in each product.
        return False
    return steps_evenly(stage)
