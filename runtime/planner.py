"""The arena planner of src/plan in Python: gives offsets to buffers of known lifetimes and
sizes."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libtcc_plan.so"
MOST_BYTES = 1 << 62  # the sum of all sizes may not exceed this

_ENDLESS = (1 << 63) - 1
_OUT_OF_MEMORY = 2  # a value of tcc_status
_GoOn = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer that occupies `size` bytes at the times `lower <= t < upper`.

    Its offset is a multiple of `alignment`, a power of two. `over` is the index of an earlier
    buffer whose offset it shares, and `fixed` the offset that it must have; -1 means none.
    """

    lower: int
    upper: int
    size: int
    alignment: int = 1
    over: int = -1
    fixed: int = -1


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """The plan of an arena: the offset of each buffer, in bytes.

    `peak` is where the last buffer ends, and `bound` a lower bound for the peak of any plan.
    `steps` counts the buffers that the search considered.
    """

    offsets: tuple[int, ...]
    peak: int
    bound: int
    steps: int


class _Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("peak", "bound", "steps")]


class Planner:
    """The planner in the shared library at `path`; raises OSError if it cannot be loaded."""

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
        """Returns a plan within `capacity` bytes, or else the plan with the smallest peak found.

        A capacity of 0 asks for the smallest peak. If greedy plans are not good enough, a search
        takes about `steps` steps; None means no limit. Every few thousand steps, the search calls
        `go_on` with the number of steps and the best peak so far. It ends if `go_on` returns False.
        Equal arguments give equal plans, unless `go_on` ends the search.

        Raises ValueError for an invalid buffer, whose index the message names, and MemoryError.
        """
        count = len(lives)
        offsets, numbers = (ctypes.c_int64 * count)(), _Plan()
        errors: list[BaseException] = []

        def ask(_: int | None, steps_done: int, peak: int) -> bool:
            try:
                return go_on is None or go_on(steps_done, peak)
            except BaseException as error:  # ctypes would print the exception and drop it
                errors.append(error)
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
        if errors:
            raise errors[0]
        check_status(self._library, status)
        return ArenaPlan(tuple(offsets), numbers.peak, numbers.bound, numbers.steps)

    def check(self, lives: Sequence[Life], plan: ArenaPlan) -> None:
        """Checks a plan by a sweep over time that shares no code with the planner.

        Raises ValueError if the plan is wrong.
        """
        count = len(lives)
        offsets = (ctypes.c_int64 * count)(*plan.offsets)
        check_status(
            self._library,
            self._library.tcc_plan_check(
                _rows(lives), ctypes.c_int64(count), offsets, ctypes.c_int64(plan.peak)
            ),
        )


def check_status(library: ctypes.CDLL, status: int) -> None:
    """Raises the error that a function of the planner's library reports, with its message."""
    if status:
        message = library.tcc_last_error().decode()
        raise MemoryError(message) if status == _OUT_OF_MEMORY else ValueError(message)


def _rows(lives: Sequence[Life]) -> ctypes.Array[ctypes.c_int64]:
    """Returns the buffers as an array of the struct tcc_life."""
    fields = ((b.lower, b.upper, b.size, b.alignment, b.over, b.fixed) for b in lives)
    try:
        numbers = array("q", chain.from_iterable(fields))
    except OverflowError as error:
        raise ValueError("a number of a buffer does not fit into 64 bits") from error
    return (ctypes.c_int64 * len(numbers)).from_buffer(numbers)
