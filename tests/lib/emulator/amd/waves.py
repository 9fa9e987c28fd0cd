"""Waves: their registers, and strands of waves that stand at the same instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
SCALARS, VECTORS = 128, 512  # The upper half of gfx942's vector registers are the accumulators.
VCC, EXEC = 106, 126
# The initial content of registers: a NaN, a large number, and an invalid address.
_GARBAGE = 0x7FA5A5A5


@dataclass(frozen=True)
class Arch:
    """The differences of the two architectures; `null` is -1 without a null register."""

    name: str
    lanes: int
    null: int
    m0: int

    @property
    def mask_words(self) -> int:
        return self.lanes // 32


ARCHS = {"gfx1100": Arch("gfx1100", 32, 124, 125), "gfx942": Arch("gfx942", 64, -1, 124)}


@dataclass(frozen=True)
class Pending:
    """A pending request: its counter and the registers that it will write.

    `shared_write` marks a write to shared memory; `any_order` a request that may overtake others.
    """

    counter: str
    registers: frozenset[int]
    shared_write: bool = False
    any_order: bool = False


class Strand:
    """Waves at one program counter.

    `scalars` are [number, wave], `vectors` [number, wave, lane]; `rows` are the waves' numbers in
    the launch, `groups` their workgroups, `members` their numbers in the workgroups, `epochs` the
    numbers of barriers that they have passed.
    """

    def __init__(self, arch: Arch, rows: Array, per_group: int) -> None:
        self.arch, self.rows = arch, rows
        self.groups, self.members = rows // per_group, rows % per_group
        self.epochs = np.zeros(len(rows), np.int64)
        self.scalars = np.full((SCALARS, len(rows)), _GARBAGE, np.uint32)
        self.vectors = np.full((VECTORS, len(rows), arch.lanes), _GARBAGE, np.uint32)
        self.scc = np.zeros(len(rows), np.bool_)
        self.pending: list[Pending] = []
        self.pc = 0
        self._mask: Array | None = None
        self.put_lanes(EXEC, np.ones((len(rows), arch.lanes), np.bool_))

    def take(self, which: Array) -> Strand:
        """Returns a new strand with the selected waves."""
        strand = object.__new__(Strand)
        strand.arch, strand.pc, strand.pending = self.arch, self.pc, list(self.pending)
        for name in ("rows", "groups", "members", "epochs", "scc"):
            setattr(strand, name, getattr(self, name)[which])
        strand.scalars, strand.vectors = self.scalars[:, which], self.vectors[:, which]
        strand._refresh()
        return strand

    @staticmethod
    def joined(parts: list[Strand]) -> Strand:
        """Returns one strand of strands at the same place with the same pending requests."""
        strand = object.__new__(Strand)
        strand.arch, strand.pc = parts[0].arch, parts[0].pc
        strand.pending = list(parts[0].pending)
        for name in ("rows", "groups", "members", "epochs", "scc"):
            setattr(strand, name, np.concatenate([getattr(p, name) for p in parts]))
        strand.scalars = np.concatenate([p.scalars for p in parts], 1)
        strand.vectors = np.concatenate([p.vectors for p in parts], 1)
        strand._refresh()
        return strand

    # ---- active lanes --------------------------------------------------------------------

    def _refresh(self) -> None:
        lanes = self.lanes_of(EXEC)
        self._mask = None if lanes.all() else lanes

    @property
    def active(self) -> Array | None:
        """Returns the active lanes [wave, lane], or None if all are active."""
        return self._mask

    def active_lanes(self) -> Array:
        if self._mask is None:
            return np.ones((len(self.rows), self.arch.lanes), np.bool_)
        return self._mask

    def lanes_of(self, number: int) -> Array:
        """Returns the bits of a scalar register (a pair for 64 lanes) as truth values [wave,
        lane]."""
        words = self.scalars[number : number + self.arch.mask_words]
        octets = np.ascontiguousarray(words.T).view(np.uint8)
        return np.unpackbits(octets, axis=1, bitorder="little").view(np.bool_)

    def put_lanes(self, number: int, lanes: Array) -> None:
        """Writes truth values [wave, lane] as the bits of a scalar register."""
        if number == self.arch.null:
            return
        words = np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)
        for n in range(self.arch.mask_words):
            self.put_scalar(number + n, words[:, n])

    def put_scalar(self, number: int, value: Any) -> None:
        if number == self.arch.null:
            return
        self.scalars[number] = value
        if number >= EXEC:
            self._refresh()

    def put_vector(self, number: int, value: Any, where: Array | None) -> None:
        if where is None:
            self.vectors[number] = value
        else:
            np.copyto(self.vectors[number], value, where=where)


# A function of a machine and a strand; True means that the machine must leave the strand.
Step: TypeAlias = Callable[[Any, Strand], Any]
