"""The protocol of a backend as passes see it: the rates and limits of its machine, the kernels that
it can run, their schedules and their prices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

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
# A function that divides a long sum of a kernel, a step of a placed graph, into partial sums. It
# returns the rewritten expression and the number of the stage after which it is cut into two
# kernels; None if the sum is not divided.
Divides: TypeAlias = Callable[[Any, Any], tuple[Expr, int] | None]


class KernelModel(Protocol):
    """The properties and methods of a backend that passes may use.

    `gaps`: values may be stored with gaps between their elements (halos, padding between planes).
    `scratch`: a tile has memory in which its stages exchange values. If False, a kernel of several
    stages that is not `legal` is cut into several kernels. `updates`: kernels update slices of
    buffers. If False, functions of the host do. `divides`: rewrites a long sum so that several
    tiles compute parts of it; None if sums are never divided.

    `join_margin`: the fraction of a joined kernel's price that two separate kernels must save to
    stay apart. `ledger`: records or forces the decisions of the compile.

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
        """Returns True if `expr`, with all values row-major, can be one kernel that is not slow.

        `constants[n]` is True if operand n is a constant.
        """

    def form(self, expr: Expr, constants: Sequence[bool]) -> FusionLimits:
        """Returns the fusion limits under which `expr` is a `legal` kernel.

        A kernel may have several forms, for example with or without a streaming loop
        (`limits.Form`). The limits are those of the first legal form.
        """
        return self.limits

    def makes(self, expr: Expr) -> bool:
        """Returns True if `expr` can be one kernel, however slow."""
        return True

    def alone(self, expr: Expr, constants: Sequence[bool]) -> Seconds | None:
        """Returns the seconds of a kernel that computes `expr` only, in the usual layouts of a
        network.

        Layouts are not chosen yet when this is called. Returns None if the model has no prices.
        """
        return None

    def gain(self, group: TileGroup) -> Seconds:
        """Returns the seconds that one kernel saves if its stages read each other through sliding
        windows, compared with separate kernels; negative if one kernel takes longer."""
        return Seconds(-1.0)

    @abstractmethod
    def candidates(self, group: TileGroup) -> Sequence[AnySchedule]:
        """Returns the schedules of `group` that are worth pricing.

        Rules alone choose the first one. Raises TccError for a group that cannot be a kernel of
        this machine.
        """

    @abstractmethod
    def price(self, group: TileGroup, schedule: AnySchedule) -> Seconds:
        """Returns the seconds of one launch of `group` under a schedule of `candidates`."""

    def holding(self, constants: int) -> KernelModel:
        """Returns the model with the prices for a program with `constants` bytes of constants."""
        return self

    def verify(self, kernel: TileKernel) -> None:
        """Raises InternalError for a kernel that the backend cannot lower."""
        verify_kernel(kernel)
