"""What passes may see of a backend: the numbers of its machine, which kernels it can run, their
schedules, and what these take."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tcc.ir.expr import Expr
from tcc.ir.tile import TileKernel
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.limits import TYPICAL_LIMITS, TYPICAL_RATES, FusionLimits, Rates

AnySchedule: TypeAlias = Schedule | BlockSchedule
# Rewrites an expression, and says behind which stage to cut it then; None: leaves it whole.
Divides: TypeAlias = Callable[[Expr], tuple[Expr, int] | None]


class KernelModel(Protocol):
    """What passes may see of a backend.

    `gaps`: values may lie with gaps (halos, planes set apart).  `scratch`: a tile has memory for
    what its stages exchange; without it every kernel of several stages must be `legal`, and is
    cut until it is.  `updates`: kernels update slices, not functions of the host.  `divides` cuts
    long sums among units.  `tolerance`: kernels join if together they are predicted to take at
    most so many times what they take apart: prices tell no less apart, and a kernel less is memory
    and code less.  A model of a machine gives `legal`, `candidates` and `price`; all else has a
    plain answer.
    """

    limits: FusionLimits = TYPICAL_LIMITS
    rates: Rates = TYPICAL_RATES
    gaps: bool = True
    scratch: bool = True
    updates: bool = False
    divides: Divides | None = None
    tolerance: float = 1.01

    @abstractmethod
    def legal(self, expr: Expr, constants: Sequence[bool]) -> bool:
        """Whether one kernel of `expr`, with everything row-major, can be made and is worth having;
        operand n is a constant where flag n says so."""

    def form(self, expr: Expr, constants: Sequence[bool]) -> FusionLimits:
        """The limits of the first form in which a kernel of `expr` that is `legal` is made."""
        return self.limits

    def makes(self, expr: Expr) -> bool:
        """Whether there is a kernel of `expr` at all, be it slow."""
        return True

    def alone(self, expr: Expr, constants: Sequence[bool]) -> float | None:
        """Seconds of one kernel of `expr`, before orders of storage are chosen; None without
        prices."""
        return None

    def gain(self, group: TileGroup) -> float:
        """Cycles that windows over results of the same kernel save; negative where they cost."""
        return -1.0

    @abstractmethod
    def candidates(self, group: TileGroup) -> Sequence[AnySchedule]:
        """Schedules of `group` that are worth a look, the first of them by rule alone.

        Raises TccError for a group that is no kernel of this machine."""

    @abstractmethod
    def price(self, group: TileGroup, schedule: AnySchedule) -> float:
        """Seconds that a launch of `group` takes under a schedule of `candidates`."""

    def holding(self, constants: int) -> KernelModel:
        """The model with the prices of a program that has so many bytes of constants."""
        return self

    def verify(self, kernel: TileKernel) -> None:
        """Raises InternalError for a kernel with forms that the backend does not take."""
        verify_kernel(kernel)
