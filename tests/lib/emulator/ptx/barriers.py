"""Thread barriers by number, and mbarriers in shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown

from .loads import chosen
from .machine import LANES
from .parse import Instruction, Name, Number
from .program import Array, Body, Machine, Program, Strand, form, whole


def uniform(values: Array, what: str) -> int:
    """Returns the value that all lanes share; raises Unknown if they differ."""
    if not (values == values.flat[0]).all():
        raise Unknown(f"{what} that differs between the threads that go together")
    return int(values.flat[0])


# ---- barriers by number -------------------------------------------------------------------------


@dataclass
class Arrivals:
    """The strands that wait at each barrier, and the number of threads that it expects."""

    waiting: dict[int, list[Strand]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)

    def arrive(self, m: Machine, s: Strand, number: int, threads: int) -> None:
        here = self.waiting.setdefault(number, [])
        if here and self.threads[number] != threads:
            raise Fault(f"barrier {number} is for {self.threads[number]} and for {threads} threads")
        self.threads[number] = threads
        here.append(s)
        rows = np.concatenate([strand.rows for strand in here])
        counts = np.bincount(m.block_of[rows], minlength=len(m.blocks)) * LANES
        if (counts > threads).any():
            raise Fault(f"{int(counts.max())} threads at barrier {number}, which is for {threads}")
        for block in np.flatnonzero(counts == threads):
            m.order.meet(rows[m.block_of[rows] == block])
        self._release(m, number, counts == threads)

    def who(self) -> list[str]:
        return [
            f"{len(s.rows)} warps at barrier {number} for {self.threads[number]} threads"
            for number, here in self.waiting.items()
            for s in here
        ]

    def _release(self, m: Machine, number: int, full: Array) -> None:
        strands = []
        for strand in self.waiting[number]:
            gone = full[m.block_of[strand.rows]]
            if gone.any():
                m.ready.append(Strand(strand.rows[gone], strand.pc))
            if not gone.all():
                strands.append(Strand(strand.rows[~gone], strand.pc))
        self.waiting[number] = strands


@form(r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?")
def _bar(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    numbers = [p.read(o, "u32") for o in i.operands]

    def body(m: Machine, s: Strand, active: Array | None) -> bool:
        whole(s, active)
        values = [uniform(read(m, s, active), "a barrier") for read in numbers]
        number, threads = values if len(values) > 1 else (values[0], m.launch.threads)
        arrivals: Arrivals = m.state.get("barriers") or _arrivals(m)
        arrivals.arrive(m, s, number, threads)
        return True

    return body


def _arrivals(m: Machine) -> Arrivals:
    m.state["barriers"] = arrivals = Arrivals()
    m.waits.append(arrivals.who)
    return arrivals


# ---- mbarriers in shared memory -----------------------------------------------------------------


@dataclass
class Barrier:
    """An mbarrier; a phase ends when `count` threads have arrived and all announced bytes are
    there."""

    place: int
    count: int
    agent: int
    left: int = 0
    bytes: int = 0
    phases: int = 0
    gathered: Any = None  # The clocks that arrivals of this phase pass on.
    given: Any = None  # The clocks that arrivals of the last phase passed on.

    def __post_init__(self) -> None:
        self.left = self.count

    def hand(self, m: Machine, given: tuple[Array, Array]) -> None:
        """Merges clocks into those that the waiters for this phase will acquire."""
        if self.gathered is None:
            self.gathered = given
            return
        width = m.order.seen.shape[1]
        clocks = [(np.pad(a, (0, width - len(a))), np.pad(b, (0, width - len(b))))
                for a, b in zip(self.gathered, given, strict=True)]  # fmt: skip
        self.gathered = tuple(np.maximum(a, b) for a, b in clocks)

    def change(self, m: Machine, arrivals: int, announced: int) -> None:
        self.left -= arrivals
        self.bytes += announced
        if self.left < 0:
            raise Fault(f"more than {self.count} arrive in a phase of the barrier at {self.place}")
        if not self.left and not self.bytes:
            self.phases += 1
            self.left, self.given, self.gathered = self.count, self.gathered, None


def _states(m: Machine) -> dict[int, Barrier]:
    barriers: dict[int, Barrier] = m.state.setdefault("mbarriers", {})
    return barriers


def barrier_at(m: Machine, row: int, address: int) -> Barrier:
    """Returns the mbarrier that a thread of warp `row` uses.

    Raises Fault unless its initialisation happened before.
    """
    rows = np.array([row])
    place = int(m.shared.places(m.block_of[rows], np.array([address]), 8, 8)[0])
    barrier = _states(m).get(place)
    if barrier is None:
        raise Fault(f"the mbarrier at shared address {address} was not initialised")
    words = m.shared.words(np.array([place]), 8).ravel()
    agent = m.order.own[row]
    m.shared.history.reads(np.repeat(rows, len(words)), words, agent, m.order.seen[row, agent])
    return barrier


@form(r"mbarrier\.init\.shared(?:::cta)?\.b64")
def _init(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    address, count = p.address(i.operands[0], "u32"), p.read(i.operands[1], "u32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        rows, at, counts = chosen(s, active, address(m, s, active), count(m, s, active))
        places = m.shared.places(m.block_of[rows], at, 8, 8)
        for row, place, number in zip(rows, places, counts, strict=True):
            words = m.shared.words(np.array([place]), 8).ravel()
            agent_of_row = m.order.own[row]
            clock = m.order.seen[row, agent_of_row]
            m.shared.history.writes(np.repeat(row, len(words)), words, agent_of_row, clock)
            agent = m.order.agent("the copies of the mbarrier at", int(place))
            _states(m)[int(place)] = Barrier(int(place), int(number), agent)

    return body


@form(r"mbarrier\.arrive(\.expect_tx)?\.shared(?:::cta)?\.b64")
def _arrive(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    if i.operands[0] != Name("_"):
        raise Unknown(i.text)
    address = p.address(i.operands[1], "u32")
    more = p.read(i.operands[2], "u32") if len(i.operands) > 2 else None

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        number = more(m, s, active) if more else np.array([[0 if f[1] else 1]])
        rows, at, numbers = chosen(s, active, address(m, s, active), number)
        for row, place, operand in zip(rows, at, numbers, strict=True):
            barrier = barrier_at(m, int(row), int(place))
            barrier.hand(m, m.order.release(np.array([row])))
            barrier.change(m, 1 if f[1] else int(operand), int(operand) if f[1] else 0)

    return body


@form(r"mbarrier\.(?:try|test)_wait\.parity\.shared(?:::cta)?\.b64")
def _try_wait(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """A wait blocks until the phase ends; a device would return false from time to time."""
    write, address = p.write(i.operands[0], "pred"), p.address(i.operands[1], "u32")
    parity = p.read(i.operands[2], "u32")

    def body(m: Machine, s: Strand, active: Array | None) -> bool | None:
        whole(s, active)
        at = uniform(address(m, s, active), "an mbarrier")
        phase = uniform(parity(m, s, active), "a parity")
        if len({int(m.block_of[row]) for row in s.rows}) > 1:
            raise Unknown("mbarriers of several blocks at once")
        barrier = barrier_at(m, int(s.rows[0]), at)
        again = s.pc - 1

        def done() -> bool:
            return barrier.phases & 1 != phase

        if not done():
            s.pc = again
            why = f"{len(s.rows)} warps for phase {phase} of the mbarrier at {at}"
            return m.wait(s, done, why)
        if barrier.given is not None:
            m.order.acquire(s.rows, barrier.given)
        m.order.learn(s.rows, barrier.agent, barrier.phases)
        write(m, s, np.ones((len(s.rows), LANES), np.bool_), active)
        return None

    return body


@form(r"mbarrier\.inval\.shared(?:::cta)?\.b64")
def _inval(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    address = p.address(i.operands[0], "u32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        rows, at = chosen(s, active, address(m, s, active))
        for row, place in zip(rows, at, strict=True):
            _states(m).pop(barrier_at(m, int(row), int(place)).place)

    return body


# ---- fences and registers -----------------------------------------------------------------------


@form(r"fence\.proxy\.async(\.shared::cta)?")
def _fence(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        m.order.fence_proxy(s.rows)

    return body


@form(
    r"fence\.mbarrier_init\.release\.cluster|membar\.(?:cta|gl)|fence\.(?:sc|acq_rel)\.(?:cta|gpu)"
)
def _order_is_kept(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """The fence does nothing: it orders nothing alone, and the emulator's handovers are ordered."""
    return lambda m, s, active: None


@form(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32")
def _setmaxnreg(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    """A warp that asks for more registers waits until the block has enough free.

    The manual wants one instruction for a whole warpgroup. Triton's warps with different roles use
    several instructions with one number.
    """
    assert isinstance(i.operands[0], Number)
    count = i.operands[0].value
    if count % 8 or not 24 <= count <= 256:
        raise Fault(f"{i.text}: a multiple of 8 from 24 to 256 is wanted")

    def body(m: Machine, s: Strand, active: Array | None) -> bool | None:
        whole(s, active)
        counts = m.state.setdefault("registers", np.full(len(m.block_of), p.kernel.most_registers))
        if f[1] == "dec" and (counts[s.rows] < count).any():
            raise Fault(f"{int(counts[s.rows].min())} registers are decreased to {count}")
        if f[1] == "inc" and (counts[s.rows] > count).any():
            raise Fault(f"{int(counts[s.rows].max())} registers are increased to {count}")
        if enough := _enough(m, s, counts, count):
            again = s.pc - 1
            if not enough():
                s.pc = again
                return m.wait(s, enough, f"{len(s.rows)} warps for {count} registers a thread")
        counts[s.rows] = count
        return None

    return body


def _enough(m: Machine, s: Strand, counts: Array, count: int) -> Callable[[], bool]:
    most = m.program.kernel.most_registers * m.warps

    def enough() -> bool:
        counts_after = counts.copy()
        counts_after[s.rows] = count
        return bool((np.bincount(m.block_of, counts_after, len(m.blocks)) <= most).all())

    return enough
