"""The protocol of a backend as passes see it: the numbers of its machine, the kernels that it can
run, their schedules and their prices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tcc.ir.expr import Expr
from tcc.ir.tile import TileKernel
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.schedule.alternatives import SILENT, Ledger, Seconds
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.limits import TYPICAL_LIMITS, TYPICAL_RATES, FusionLimits, Rates
from tcc.schedule.margins import MARGINS, Margin

AnySchedule: TypeAlias = Schedule | BlockSchedule
# A function that rewrites an expression, and returns it with the number of the stage after which it
# is cut. It returns None for an expression that stays whole.
Divides: TypeAlias = Callable[[Expr], tuple[Expr, int] | None]


class KernelModel(Protocol):
    """The properties and methods of a backend that passes may use.

    `gaps`: values may lie with gaps between their elements (halos, planes set apart). `scratch`: a
    tile has memory in which its stages exchange values. Without scratch, every kernel of several
    stages must be `legal`, and a kernel that is not legal is cut. `updates`: kernels update slices
    of buffers. Without it, functions of the host update them. `divides`: long sums are divided
    among tiles.

    `join_margin`: two kernels stay apart if together they save more than this margin of the price
    of the joined kernel. `ledger` sees the decisions of the compile.

    A model of a machine must define `legal`, `candidates` and `price`; the other methods have
    defaults.
    """

    limits: FusionLimits = TYPICAL_LIMITS
    rates: Rates = TYPICAL_RATES
    gaps: bool = True
    scratch: bool = True
    updates: bool = False
    divides: Divides | None = None
    join_margin: Margin = MARGINS["join"]
    ledger: Ledger = SILENT

    @abstractmethod
    def legal(self, expr: Expr, constants: Sequence[bool]) -> bool:
        """Returns True if `expr` can be one kernel, with all values row-major, and the kernel is
        worth having.

        Operand n is a constant where `constants[n]` is True.
        """

    def form(self, expr: Expr, constants: Sequence[bool]) -> FusionLimits:
        """Returns the limits of the first form of `expr` that makes a `legal` kernel."""
        return self.limits

    def makes(self, expr: Expr) -> bool:
        """Returns True if `expr` can be one kernel at all, however slow."""
        return True

    def alone(self, expr: Expr, constants: Sequence[bool]) -> Seconds | None:
        """Returns the seconds of one kernel of `expr` before layouts are chosen; None for a model
        without prices."""
        return None

    def gain(self, group: TileGroup) -> Seconds:
        """Returns the seconds saved by sliding windows over results of the same kernel; negative if
        they cost."""
        return Seconds(-1.0)

    @abstractmethod
    def candidates(self, group: TileGroup) -> Sequence[AnySchedule]:
        """Returns the schedules of `group` that are worth pricing; the first is chosen by rules
        alone.

        Raises TccError for a group that is no kernel of this machine.
        """

    @abstractmethod
    def price(self, group: TileGroup, schedule: AnySchedule) -> Seconds:
        """Returns the seconds of one launch of `group` under a schedule of `candidates`."""

    def holding(self, constants: int) -> KernelModel:
        """Returns the model with prices for a program with `constants` bytes of constants."""
        return self

    def verify(self, kernel: TileKernel) -> None:
        """Raises InternalError for a kernel that the backend cannot lower."""
        verify_kernel(kernel)
