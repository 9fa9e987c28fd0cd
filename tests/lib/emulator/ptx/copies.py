"""Asynchronous copies: `cp.async` of threads, and boxes of the copy engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown

from .barriers import Barrier, barrier_at
from .loads import chosen
from .parse import Address, Instruction, Number
from .program import Array, Body, Machine, Program, Read, Strand, at_end, form
from .tensor_maps import Box, decode, swizzled

# ---- copies of threads --------------------------------------------------------------------------


@dataclass
class Groups:
    """Each warp's number of closed groups of copies, its number of waited groups, and its agent."""

    closed: Array
    agents: Array
    waited: Array = field(init=False)

    def __post_init__(self) -> None:
        self.waited = np.zeros_like(self.closed)

    def wait(self, m: Machine, rows: Array, left: int) -> None:
        number = np.maximum(self.closed[rows] - left, self.waited[rows])
        self.waited[rows] = number
        m.order.learn(rows, self.agents[rows], number)


def _groups(m: Machine, what: str) -> Groups:
    if what not in m.state:
        agents = np.array([m.order.agent(what, n) for n in range(m.warps)])
        rows = len(m.block_of)
        m.state[what] = Groups(np.zeros(rows, np.int32), agents[np.arange(rows) % m.warps])
    groups: Groups = m.state[what]
    return groups


_THREADS, _ENGINE = "the copies of warp", "the copy engine for warp"


@form(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\w+)*")
def _cp_async(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """`cp.async` copies as many first bytes as the last operand says, and fills the rest with
    zeros."""
    to, source = p.address(i.operands[0], "u32"), p.address(i.operands[1], "u64")
    assert isinstance(i.operands[2], Number)
    size = i.operands[2].value
    size_of = p.read(i.operands[3], "u32") if len(i.operands) > 3 else None

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        count = size_of(m, s, active) if size_of else np.array([[size]])
        rows, at, begin, counts = chosen(s, active, to(m, s, active), source(m, s, active), count)
        groups = _groups(m, _THREADS)
        places = m.shared.places(m.block_of[rows], at, size, size)
        words = m.shared.words(places, size)
        rows_of_words = np.repeat(rows, words.shape[1])
        clock = groups.closed[rows_of_words] + 1
        m.shared.history.writes(rows_of_words, words.ravel(), groups.agents[rows_of_words], clock)
        if ((counts > 0) & (begin % size != 0)).any():
            raise Fault(f"a copy from a global address that is not a multiple of {size}")
        for n in range(0, size, 4):
            inside = counts > n
            values = np.zeros(len(rows), np.uint32)
            values[inside] = m.launch.memory.load(begin[inside] + n, 4)
            m.shared.put(places + n, values)

    return body


def _committer(what: str) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _groups(m, what).closed[s.rows] += 1

    return body


@form(r"cp\.async\.commit_group")
def _commit(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return _committer(_THREADS)


def _waiter(i: Instruction, what: str) -> Body:
    assert isinstance(i.operands[0], Number)
    pending = i.operands[0].value
    return lambda m, s, active: _groups(m, what).wait(m, s.rows, pending)


@form(r"cp\.async\.wait_group")
def _wait(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return _waiter(i, _THREADS)


# ---- copy engine --------------------------------------------------------------------------------


@form(r"cp\.async\.bulk\.commit_group")
def _commit_bulk(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return _committer(_ENGINE)


@form(r"cp\.async\.bulk\.wait_group(?:\.read)?")
def _wait_bulk(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return _waiter(i, _ENGINE)


@at_end
def _nothing_leaves(m: Machine) -> None:
    groups: Groups | None = m.state.get(_ENGINE)
    if groups is not None and (m.state["leaving"] > groups.waited).any():
        raise Fault("the block ends while the copy engine reads its shared memory")


def _one_lane(
    s: Strand, active: Array | None, reads: list[Read], m: Machine
) -> list[tuple[int, list[int]]]:
    """Returns each active lane's warp and operands."""
    rows, *values = chosen(s, active, *[read(m, s, active) for read in reads])
    return [(int(row), [int(v[n]) for v in values]) for n, row in enumerate(rows)]


def _boxed(i: Instruction, tensor: int) -> Address:
    operand = i.operands[tensor]
    if not isinstance(operand, Address) or not operand.at:
        raise Unknown(i.text)
    return operand


def _tensor(p: Program, operand: Address) -> list[Read]:
    """Returns readers of the map's address, then of the coordinates, innermost first."""
    return [p.read(operand.base, "u64"), *[p.read(o, "s32") for o in operand.at]]


def _map_at(m: Machine, address: int) -> bytes:
    """Returns the tensor map that a parameter holds."""
    begin = address - m.parameters
    if not 0 <= begin <= len(m.launch.parameters) - 128:
        raise Fault("a tensor map that is no parameter")
    if begin % 64:
        raise Fault("a tensor map that is not aligned")
    return m.launch.parameters[begin : begin + 128]


_SHARED = r"shared(?:::cta|::cluster)?"


@form(rf"cp\.async\.bulk\.tensor\.([1-5])d\.{_SHARED}\.global\.mbarrier::complete_tx::bytes")
def _bring(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    to, barrier = p.address(i.operands[0], "u32"), p.address(i.operands[2], "u32")
    reads = [to, barrier, *_tensor(p, _boxed(i, 1))]

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        for row, (at, waits, address, *corner) in _one_lane(s, active, reads, m):
            box = decode(_map_at(m, address))
            places = _places(m, row, at, box)
            waiting_barrier = barrier_at(m, row, waits)
            words = m.shared.words_of(places)
            clock = waiting_barrier.phases + 1
            m.shared.history.writes(
                np.repeat(row, len(words)), words, waiting_barrier.agent, clock, proxy=True
            )
            m.shared.known[places[:, None] + np.arange(box.size)] = False
            m.copies.append(_arrival(m, places, box.load(m.launch.memory, corner), waiting_barrier))

    return body


def _arrival(m: Machine, places: Array, values: Array, barrier: Barrier) -> Callable[[], None]:
    def arrive() -> None:
        m.shared.put(places, values)
        barrier.change(m, 0, -values.itemsize * len(places))

    return arrive


def _places(m: Machine, row: int, address: int, box: Box) -> Array:
    """Returns the places of a box's elements in shared memory, in the elements' order."""
    if address % 128:
        raise Fault(f"a box at shared address {address}, which is not a multiple of 128")
    m.shared.places(m.block_of[[row]], np.array([address]), box.bytes, 1)
    at = swizzled(np.arange(address, address + box.bytes, box.size), box.swizzle)
    return m.shared.places(np.repeat(m.block_of[row], len(at)), at, box.size, box.size)


@form(rf"cp\.async\.bulk\.tensor\.([1-5])d\.global\.{_SHARED}\.bulk_group")
def _take(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    reads = [p.address(i.operands[1], "u32"), *_tensor(p, _boxed(i, 0))]

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        groups = _groups(m, _ENGINE)
        leaving = m.state.setdefault("leaving", np.zeros_like(groups.closed))
        for row, (at, address, *corner) in _one_lane(s, active, reads, m):
            box = decode(_map_at(m, address))
            places = _places(m, row, at, box)
            words = m.shared.words_of(places)
            clock = groups.closed[row] + 1
            leaving[row] = clock
            m.shared.history.reads(
                np.repeat(row, len(words)), words, groups.agents[row], clock, proxy=True
            )
            box.store(m.launch.memory, corner, m.shared.get(places, box.size))

    return body
