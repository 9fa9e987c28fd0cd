"""Vector clocks for the words of shared memory: which access happened before which.

Agents are the warps and their asynchronous work, such as the copies of a barrier or the matmuls of
a warpgroup. Every agent counts its steps. A warp knows how much of each agent's work it sees, and
passes that on when it synchronises. Two accesses race if neither happened before the other and one
of them is a write, in any order of execution (Flanagan and Freund, "FastTrack", 2009). A second set
of clocks says which writes of threads the asynchronous proxy sees; `fence.proxy.async` copies the
first set to the second.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Fault

Array = np.ndarray[Any, np.dtype[Any]]


class Order:
    """The clocks of `blocks` blocks; warps are numbered through all blocks, agents within a
    block."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.blocks, self.warps = blocks, warps
        self.agents: dict[Hashable, int] = {("warp", n): n for n in range(warps)}
        self.seen = np.zeros((blocks * warps, 2 * warps), np.int32)
        self.seen_by_proxy = np.zeros_like(self.seen)
        self.own = np.tile(np.arange(warps), blocks)
        self.seen[np.arange(blocks * warps), self.own] = 1

    def agent(self, *key: Hashable) -> int:
        """Returns the number of an agent; a new key gets a new number."""
        number = self.agents.setdefault(key, len(self.agents))
        if number >= self.seen.shape[1]:
            self.seen = np.pad(self.seen, ((0, 0), (0, self.seen.shape[1])))
            self.seen_by_proxy = np.pad(self.seen_by_proxy, ((0, 0), (0, self.seen.shape[1] // 2)))
        return number

    def _tick(self, rows: Array) -> None:
        self.seen[rows, self.own[rows]] += 1

    def meet(self, rows: Array) -> None:
        """Synchronises warps of one block at a barrier."""
        for clocks in (self.seen, self.seen_by_proxy):
            clocks[rows] = clocks[rows].max(axis=0)
        self._tick(rows)

    def release(self, rows: Array) -> tuple[Array, Array]:
        """Returns the clocks that warps pass on to their waiters."""
        knowledge = self.seen[rows].max(axis=0), self.seen_by_proxy[rows].max(axis=0)
        self._tick(rows)
        return knowledge

    def acquire(self, rows: Array, given: tuple[Array, Array]) -> None:
        for clocks, more in zip((self.seen, self.seen_by_proxy), given, strict=True):
            more = np.pad(more, (0, clocks.shape[1] - len(more)))
            clocks[rows] = np.maximum(clocks[rows], more)

    def learn(self, rows: Array, agent: Array | int, clock: Array | int) -> None:
        """Makes the work of an agent, or of an agent per warp, visible to warps up to `clock`."""
        self.seen[rows, agent] = np.maximum(self.seen[rows, agent], clock)

    def fence_proxy(self, rows: Array) -> None:
        self.seen_by_proxy[rows] = np.maximum(self.seen_by_proxy[rows], self.seen[rows])


class History:
    """The agent and clock of the last write and of the last reads of every word."""

    def __init__(self, words: int, order: Order) -> None:
        self.order = order
        self.writer = np.zeros(words, np.int16)
        self.written = np.zeros(words, np.int32)
        self.generic = np.ones(words, np.bool_)
        self.read = np.zeros((order.seen.shape[1], words), np.int32)

    def _grown(self) -> None:
        more = self.order.seen.shape[1] - len(self.read)
        if more:
            self.read = np.pad(self.read, ((0, more), (0, 0)))

    def reads(self, rows: Array, words: Array, agent: Array | int, clock: Array | int,
              proxy: bool = False) -> None:  # fmt: skip
        """Records reads of words by an agent of warps `rows`, one warp a word; raises Fault for a
        race."""
        self._after_write(rows, words, proxy)
        self._grown()
        self.read[agent, words] = clock

    def writes(self, rows: Array, words: Array, agent: Array | int, clock: Array | int,
               proxy: bool = False, kept: Array | None = None) -> None:  # fmt: skip
        """Records writes of words; raises Fault for a race.

        Words in `kept` keep their value, so that writing them again is no race.
        """
        changed = slice(None) if kept is None else ~kept
        self._after_write(rows[changed], words[changed], proxy)
        self._grown()
        early = self.read[:, words] > self.order.seen[rows].T
        if early.any():
            whose = int(np.flatnonzero(early.any(axis=1))[0])
            raise Fault(
                f"a race: shared memory is written while {self._name(whose)} may still read it"
            )
        self.writer[words], self.written[words] = agent, clock
        self.generic[words] = not proxy

    def _after_write(self, rows: Array, words: Array, proxy: bool) -> None:
        writer, clocks = self.writer[words], self.written[words]
        late = clocks > self.order.seen[rows, writer]
        if late.any():
            whose = self._name(int(writer[np.flatnonzero(late)[0]]))
            raise Fault(f"a race: shared memory is used where {whose} may still write it")
        if proxy:
            hidden = self.generic[words] & (clocks > self.order.seen_by_proxy[rows, writer])
            if hidden.any():
                whose = self._name(int(writer[np.flatnonzero(hidden)[0]]))
                raise Fault(
                    f"no fence.proxy.async stands behind what {whose} wrote to shared memory"
                )

    def _name(self, agent: int) -> str:
        key = next(key for key, number in self.order.agents.items() if number == agent)
        return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
