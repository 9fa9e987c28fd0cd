"""The arena planner of src/plan in Python: offsets for buffers whose lives and sizes are known."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libtcc_plan.so"
# No sum of sizes is larger.
MOST_BYTES = 1 << 62

_ENDLESS = (1 << 63) - 1
_OUT_OF_MEMORY = 2  # of tcc_status
_GoOn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer that takes `size` bytes at the times `lower <= t < upper`.

    Its offset is a multiple of `alignment`, a power of two.  `over` is the index of a buffer that
    died before and whose offset it gets, `fixed` the offset that it must have; -1: none.
    """

    lower: int
    upper: int
    size: int
    alignment: int = 1
    over: int = -1
    fixed: int = -1


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """An offset for each buffer, in bytes.

    `peak` is where the last buffer ends; no plan has one below `bound`.  `steps` counts the buffers
    that the search looked at.
    """

    offsets: tuple[int, ...]
    peak: int
    bound: int
    steps: int


class _Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("peak", "bound", "steps")]


class Planner:
    """The planner in the shared library at `path`.  Raises OSError where that cannot be loaded."""

    def __init__(self, path: Path = LIBRARY) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.tcc_last_error.restype = ctypes.c_char_p

    def plan(
        self,
        lives: Sequence[Life],
        *,
        capacity: int = 0,
        steps: int | None = None,
        go_on: Callable[[int, int], bool] | None = None,
    ) -> ArenaPlan:
        """A plan within `capacity` bytes; where that is 0, or not reached, of the least peak found.

        Takes about `steps` steps where greedy plans are not enough; None is no limit.  Equal
        arguments give equal plans, unless `go_on` ends the search: it is called with the steps
        done and the best peak every few thousand steps, and the search ends where it returns False.
        Raises ValueError, which names the buffer's index, for lives that are none; and MemoryError.
        """
        count = len(lives)
        offsets, numbers = (ctypes.c_int64 * count)(), _Plan()
        raised: list[BaseException] = []

        def ask(_: int | None, steps_done: int, peak: int) -> bool:
            try:
                return go_on is None or go_on(steps_done, peak)
            except BaseException as error:  # ctypes would print it and go on
                raised.append(error)
                return False

        status = self._library.tcc_plan_arena(
            _rows(lives),
            ctypes.c_int64(count),
            ctypes.c_int64(capacity),
            ctypes.c_int64(_ENDLESS if steps is None else steps),
            _GoOn(ask) if go_on else _GoOn(),
            None,
            offsets,
            ctypes.byref(numbers),
        )
        if raised:
            raise raised[0]
        self._check(status)
        return ArenaPlan(tuple(offsets), numbers.peak, numbers.bound, numbers.steps)

    def check(self, lives: Sequence[Life], plan: ArenaPlan) -> None:
        """Proves a plan by a sweep over time that shares no code with the planner; raises
        ValueError for one that is wrong."""
        count = len(lives)
        offsets = (ctypes.c_int64 * count)(*plan.offsets)
        self._check(
            self._library.tcc_plan_check(
                _rows(lives), ctypes.c_int64(count), offsets, ctypes.c_int64(plan.peak)
            )
        )

    def _check(self, status: int) -> None:
        if status:
            message = self._library.tcc_last_error().decode()
            raise MemoryError(message) if status == _OUT_OF_MEMORY else ValueError(message)


def _rows(lives: Sequence[Life]) -> ctypes.Array[ctypes.c_int64]:
    """The lives as an array of tcc_life."""
    fields = ((b.lower, b.upper, b.size, b.alignment, b.over, b.fixed) for b in lives)
    try:
        numbers = array("q", chain.from_iterable(fields))
    except OverflowError as error:
        raise ValueError("a number of a buffer does not fit into 64 bits") from error
    return (ctypes.c_int64 * len(numbers)).from_buffer(numbers)
