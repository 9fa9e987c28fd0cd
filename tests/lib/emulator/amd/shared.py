"""Shared memory of workgroups (LDS): its bytes, and the last wave and barrier that touched each.

Barriers alone order the waves of a workgroup. So two waves race if they touch a byte between the
same two barriers and one of them writes another value, in any order of execution.
"""

from __future__ import annotations

import numpy as np

from tests.lib.emulator.faults import Fault

from .waves import Array, Strand

_MEMBERS = 64  # More than the waves of a workgroup; the highest number stands for several waves.
_SEVERAL = _MEMBERS - 1


class Shared:
    """The shared memory of `groups` workgroups.

    Every instruction of the kernel touches aligned pieces of `granule` bytes.
    """

    def __init__(self, groups: int, size: int, granule: int) -> None:
        self.size = -(-size // 16) * 16
        self.bytes = np.full(groups * self.size, 0xA5, np.uint8)
        self._granule = granule
        self._written = np.zeros(len(self.bytes) // granule, np.int64)
        self._read = np.zeros_like(self._written)

    def places(self, s: Strand, addresses: Array, width: int) -> Array:
        """Returns the addresses of all lanes [wave, lane] in all workgroups' memory.

        Raises Fault for an active lane outside of its memory or misaligned.
        """
        aligned = min(width, 4)
        wrong = addresses % aligned != 0
        outside = addresses + width > self.size
        active = s.active
        if active is not None:
            wrong, outside = wrong & active, outside & active
        if wrong.any():
            raise Fault(f"shared address {int(addresses[wrong][0])} is not a multiple of {aligned}")
        if outside.any():
            where = int(addresses[outside][0])
            raise Fault(f"{width} bytes at {where} of {self.size} bytes of shared memory")
        return addresses + self.size * s.groups[:, None]

    def _cells(self, places: Array, width: int) -> Array:
        first = places // self._granule
        return first[:, None] + np.arange(max(width // self._granule, 1))

    @staticmethod
    def _stamps(s: Strand, active: Array | None) -> Array:
        stamps = np.broadcast_to(
            (s.epochs * _MEMBERS + s.members + _MEMBERS)[:, None], (len(s.rows), s.arch.lanes)
        )
        return (stamps.ravel() if active is None else stamps[active])[:, None]

    def load(self, s: Strand, addresses: Array, width: int, element: int) -> Array:
        """Returns unsigned numbers of `element` bytes, [active lanes, numbers]."""
        active = s.active
        all_places = self.places(s, addresses, width)
        places = all_places.ravel() if active is None else all_places[active]
        cells, stamps = self._cells(places, width), self._stamps(s, active)
        before = self._written[cells]
        if (before == 0).any():
            where = int(places[(before == 0).any(1)][0] % self.size)
            raise Fault(f"byte {where} of shared memory is read and nobody wrote it")
        self._raced(before, stamps, places, "is read and was written")
        readers = self._read[cells]
        by_others = (readers // _MEMBERS == stamps // _MEMBERS) & (readers != stamps)
        self._read[cells] = np.where(by_others, stamps // _MEMBERS * _MEMBERS + _SEVERAL, stamps)
        # Several waves may read the same cell in this very instruction.
        together = self._read[cells]
        mixed = (together != stamps) & (together % _MEMBERS != _SEVERAL)
        if mixed.any():
            self._read[cells[mixed]] = together[mixed] // _MEMBERS * _MEMBERS + _SEVERAL
        view = self.bytes.view(f"u{element}")
        return view[places[:, None] // element + np.arange(width // element)]

    def store(self, s: Strand, addresses: Array, values: Array) -> None:
        """Stores unsigned numbers [active lanes, numbers]."""
        element = values.dtype.itemsize
        width = element * values.shape[1]
        active = s.active
        all_places = self.places(s, addresses, width)
        places = all_places.ravel() if active is None else all_places[active]
        cells, stamps = self._cells(places, width), self._stamps(s, active)
        view = self.bytes.view(f"u{element}")
        at = places[:, None] // element + np.arange(values.shape[1])
        changed = (view[at] != values).any(1)[:, None]
        self._raced(
            np.where(changed, self._read[cells], 0), stamps, places, "is written and was read"
        )
        self._raced(np.where(changed, self._written[cells], 0), stamps, places,
                    "is written and was written")  # fmt: skip
        view[at] = values
        self._written[cells] = stamps
        differs = (view[at] != values).any(1)
        if differs.any() and (self._written[cells] != stamps)[differs].any():
            where = int(places[differs][0] % self.size)
            raise Fault(f"byte {where} of shared memory is written by two waves at once")

    def _raced(self, before: Array, stamps: Array, places: Array, how: str) -> None:
        """Raises Fault if another wave touched a cell since the last barrier."""
        race = (before // _MEMBERS == stamps // _MEMBERS) & (before != stamps)
        if race.any():
            row = int(race.any(1).argmax())
            other = int(before[row][race[row]][0] % _MEMBERS)
            who = "several waves" if other == _SEVERAL else f"wave {other}"
            raise Fault(
                f"a race: byte {int(places[row] % self.size)} of shared memory {how} by {who} and "
                f"wave {int(stamps[row, 0] % _MEMBERS)} without a barrier between"
            )
