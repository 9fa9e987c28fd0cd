"""Schedule: what tuning may decide about a tile group; small, frozen, storable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a group's loops are cut.  Iterators go by name.

    `blocks`: elements of a block along an iterator; one where it is not named.  `vector` is the
    iterator whose lanes fill vector registers (the last axis of every block), or None.
    `parallel`: the loops over blocks that make up the launch grid, outermost first; the other
    common iterators loop inside a unit, in the order of `serial`.
    """

    blocks: tuple[tuple[str, int], ...]
    vector: str | None
    parallel: tuple[str, ...]
    serial: tuple[str, ...]

    def block(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)
