"""Exchanges between the lanes of a wave that an operand asks for (DPP)."""

from __future__ import annotations

import numpy as np

from tests.lib.emulator.faults import Unknown

from .waves import Arch, Array, Strand

_ROW = 16


def sources(control: int, lanes: int) -> Array:
    """The lane that each lane reads; -1: none."""
    lane = np.arange(lanes)
    row, member = lane // _ROW * _ROW, lane % _ROW
    low = control & 15
    if control < 0x100:  # within four
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3)
    if 0x101 <= control <= 0x10F:  # row_shl
        return np.where(member + low < _ROW, lane + low, -1)
    if 0x111 <= control <= 0x11F:  # row_shr
        return np.where(member >= low, lane - low, -1)
    if 0x121 <= control <= 0x12F:  # row_ror
        return row + (member - low) % _ROW
    if control in (0x140, 0x141):  # mirrors of a row and of its halves
        return lane ^ (15 if control == 0x140 else 7)
    if control == 0x142:  # the row's last lane to the next row
        return np.where(row > 0, row - 1, -1)
    if control == 0x143:  # lane 31 to the upper half
        return np.where(lane >= 32, 31, -1)
    if 0x150 <= control <= 0x15F:  # one lane to its row
        return row + low
    if 0x160 <= control <= 0x16F:  # row_xmask
        return row + (member ^ low)
    raise Unknown(f"the exchange of lanes {control:#x}")


class Exchange:
    """An instruction's word about it: what lanes read, and which ones are written."""

    def __init__(self, word: int, arch: Arch) -> None:
        lane = np.arange(arch.lanes)
        self._from = sources(word >> 8 & 511, arch.lanes)
        self._inactive_too = arch.name == "gfx1100" and bool(word >> 18 & 1)
        self._zeros = bool(word >> 19 & 1)
        banks, rows = word >> 24 & 15, word >> 28
        self._chosen = (rows >> lane // _ROW & 1 & (banks >> lane % _ROW // 4 & 1)).astype(np.bool_)

    def _valid(self, s: Strand) -> Array:
        there = self._from >= 0
        if self._inactive_too or s.active is None:
            return np.broadcast_to(there, (len(s.rows), s.arch.lanes))
        return there & s.active[:, self._from]

    def moved(self, s: Strand, values: Array) -> Array:
        """What the lanes read: zero where there is no lane to read from."""
        return np.where(self._valid(s), values[:, self._from], np.uint32(0))

    def written(self, s: Strand) -> Array:
        lanes = self._chosen & s.active_lanes()
        return lanes if self._zeros else lanes & self._valid(s)
