"""The needs of an artifact's kernels: which buffers a launch writes, and how many bytes of each.

backends/artifact/kernel_needs.py describes the table, which stands beside the kernels' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcc.runtime.host_program import compute
from tcc.runtime.instructions import OPERATIONS

_WRITES, _REGISTER = 1, 2


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The needs of a kernel: `writes` and `amounts` have an item for each of its buffers.

    `sizes` counts its size arguments. `lets` are (operation, a, b) that compute registers behind
    them. An amount is (is_register, value).
    """

    sizes: int
    lets: tuple[tuple[int, int, int], ...]
    writes: tuple[bool, ...]
    amounts: tuple[tuple[bool, int], ...]

    def bytes_at(self, sizes: Sequence[int | None]) -> tuple[int | None, ...]:
        """Returns the least bytes of each buffer in a launch with these size arguments.

        They are None where a size is None that they depend on.
        """
        values = [*sizes][: self.sizes] + [None] * (self.sizes - len(sizes))
        for op, a, b in self.lets:
            values.append(_value(op, a, b, values))
        return tuple(
            number if not is_register else values[number] if 0 <= number < len(values) else None
            for is_register, number in self.amounts
        )


def _value(op: int, a: int, b: int, values: Sequence[int | None]) -> int | None:
    name = OPERATIONS[op] if 0 <= op < len(OPERATIONS) else ""
    if name == "const":
        return a
    if not (0 <= a < len(values) and 0 <= b < len(values)):
        return None
    lhs, rhs = values[a], values[b]
    return None if lhs is None or rhs is None else compute(name, lhs, rhs)


def read_needs(table: bytes, kernels: int) -> tuple[LaunchNeeds, ...] | None:
    """Returns the needs of all kernels; None for an empty table, which hand-written kernels have.

    Raises ValueError if the table is not one of so many kernels.
    """
    if not table:
        return None
    numbers, place = _numbers(table), 1
    rows = []
    for _ in range(kernels):
        counts = numbers[place : place + 3]
        if len(counts) < 3 or not all(0 <= count <= len(numbers) for count in counts):
            raise ValueError("the table of kernels' needs is damaged")
        sizes, lets, buffers = counts
        first = place + 3 + 3 * sizes
        last = first + 3 * lets
        words, amounts = numbers[first:last], numbers[last + 1 : last + 1 + buffers]
        if len(amounts) != buffers:
            raise ValueError("the table of kernels' needs is cut short")
        rows.append(
            LaunchNeeds(
                sizes,
                tuple(zip(words[::3], words[1::3], words[2::3], strict=True)),
                tuple(bool(amount & _WRITES) for amount in amounts),
                tuple((bool(amount & _REGISTER), amount >> 2) for amount in amounts),
            )
        )
        place = last + 1 + buffers
    if place != len(numbers):
        raise ValueError("the table of kernels' needs is of other kernels")
    return tuple(rows)


def _numbers(table: bytes) -> list[int]:
    """Returns the integers of a table: seven bits a byte, the sign in the lowest bit."""
    numbers, number, shift = [], 0, 0
    for byte in table:
        number |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            continue
        numbers.append(number >> 1 ^ -(number & 1))
        number = shift = 0
    return numbers
