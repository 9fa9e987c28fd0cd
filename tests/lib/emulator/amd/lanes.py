"""Lane exchanges of DPP operands: a lane reads another lane of its wave."""

from __future__ import annotations

import numpy as np

from tests.lib.emulator.faults import Unknown

from .waves import Arch, Array, Strand

_ROW = 16


def sources(control: int, lanes: int) -> Array:
    """Returns the lane that each lane reads; -1 means no lane."""
    lane = np.arange(lanes)
    row, member = lane // _ROW * _ROW, lane % _ROW
    low = control & 15
    if control < 0x100:  # quad_perm: within four lanes
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3)
    if 0x101 <= control <= 0x10F:  # row_shl
        return np.where(member + low < _ROW, lane + low, -1)
    if 0x111 <= control <= 0x11F:  # row_shr
        return np.where(member >= low, lane - low, -1)
    if 0x121 <= control <= 0x12F:  # row_ror
        return row + (member - low) % _ROW
    if control in (0x140, 0x141):  # row_mirror and row_half_mirror
        return lane ^ (15 if control == 0x140 else 7)
    if control == 0x142:  # row_bcast15: each row reads the last lane of the row before it
        return np.where(row > 0, row - 1, -1)
    if control == 0x143:  # row_bcast31: the upper half reads lane 31
        return np.where(lane >= 32, 31, -1)
    if 0x150 <= control <= 0x15F:  # row_share: a whole row reads one lane of it
        return row + low
    if 0x160 <= control <= 0x16F:  # row_xmask
        return row + (member ^ low)
    raise Unknown(f"the exchange of lanes {control:#x}")


class Exchange:
    """A decoded DPP word: the lane that each lane reads, and the lanes that the instruction
    writes."""

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
        """Returns the values that the lanes read; a lane without a source reads zero."""
        return np.where(self._valid(s), values[:, self._from], np.uint32(0))

    def written(self, s: Strand) -> Array:
        lanes = self._chosen & s.active_lanes()
        return lanes if self._zeros else lanes & self._valid(s)
