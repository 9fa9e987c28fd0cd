"""Schedule: what tuning may decide about a tile group; small, frozen, storable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a group's loops are cut.  Iterators go by name.

    `blocks`: elements of a block along an iterator; one where it is not named.  `vectors` are the
    iterators whose lanes fill vector registers (the last axis of every block): at most one a stage,
    a common one for all.  `parallel`: the loops over blocks that make up the launch grid, outermost
    first; the other common iterators loop inside a unit, in the order of `serial`.
    """

    blocks: tuple[tuple[str, int], ...]
    vectors: tuple[str, ...]
    parallel: tuple[str, ...]
    serial: tuple[str, ...]

    def block(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)
