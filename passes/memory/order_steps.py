"""Orders launches, calls and copies so that fewer bytes of the arena are live at one time.

    a = f(x); b = f(y); c = max(a); d = max(b)  ->  a = f(x); c = max(a); b = f(y); d = max(b)

Requires a program whose arena is not planned yet.  Establishes a program of the same instructions
in which two keep their order where one writes what the other touches.  Checks, control flow,
collectives, calls that decide sizes, and calls that compact buffers keep their place among all
others.  No price knows the order of launches, and caches favour that of the graph: the program
changes only where the most bytes that are live at one time become fewer.

The search adds one instruction after another to the sets of those that may be done first, and keeps
the least peak of each set: B. H. Ahn et al., Ordering Chaos: Memory-Aware Scheduling of Irregularly
Wired Neural Networks for Edge Devices (MLSys 2020).  An instruction that exceeds no peak and leaves
no more bytes behind comes at once: no order is the worse for it.  The search is exact unless there
are more ways on than `WORK` allows; then the sets of the least peaks go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import le
from typing import TypeAlias

from tcc.ir.program import (
    Allocate,
    Body,
    BufferId,
    CallOp,
    Copy,
    Instr,
    Launch,
    Let,
    Loop,
    Program,
    View,
)
from tcc.ir.program.operands import (
    buffers_of,
    memory_of,
    operands,
    renumbered,
    shared_memory,
)
from tcc.ir.program.table import Kind
from tcc.passes.memory.merge_buffers import known_sizes, most_live
from tcc.passes.memory.plan_arena import arena_lives

# Ways on that the search of a stretch looks at.
WORK = 1 << 14

_WRITES = (Kind.DEFINED, Kind.ALLOCATED, Kind.AIMED, Kind.WRITTEN)
# Which instructions touch a buffer, as bits, and its bytes.
_Touched: TypeAlias = tuple[int, int]
# The peak, instructions that came before earlier ones, live bytes, what may come next, the order.
_State: TypeAlias = tuple[int, int, int, list[int], tuple[int, ...]]


def order_steps(
    program: Program, results: Sequence[Sequence[int]], dims: Mapping[tuple[int, int], int]
) -> Program:
    """`program` with its instructions in such an order.

    `results` are the positions, by kernel, of the buffers that it writes, `dims` the typical sizes
    of its inputs by port and axis.  The order is one for these, at which the program takes no more
    than before where all are 1, or sixteen times as large.
    """
    others = dict.fromkeys(dims, 1), {at: 16 * size for at, size in dims.items()}
    sizes = [known_sizes(program, given) for given in (dims, *others)]
    stretches = _Stretches(program, results, sizes[0])
    body = stretches.ordered(most_live(arena_lives(stretches.ordered(0))[0], sizes[0]))
    old, new = ([most_live(arena_lives(b)[0], s) for s in sizes] for b in (program.body, body))
    return replace(program, body=body) if new < old and all(map(le, new, old)) else program


def _moves(instr: Instr) -> bool:
    """Whether an instruction has no effect but on what it writes, so that nothing counts on it."""
    if isinstance(instr, CallOp):
        return bool(instr.outputs) and not instr.results and instr.op != "thin"
    return isinstance(instr, Let | Allocate | View | Launch | Copy)


class _Stretches:
    """The instructions of a program between those that keep their place."""

    def __init__(
        self, program: Program, results: Sequence[Sequence[int]], sizes: Mapping[BufferId, int]
    ) -> None:
        self._program, self._results = program, results
        self._shared, lives = shared_memory(program), arena_lives(program.body)[0]
        self._spans = {b: (lives[b], size) for b, size in sizes.items() if b in lives}

    def ordered(self, limit: int) -> Body:
        """The program's body with each stretch in the order of the least peak that is found; peaks
        up to `limit` count alike."""
        at = 0

        def inside(body: Body) -> Body:
            nonlocal at
            found: list[Instr] = []
            for moves, group in groupby(body, _moves):
                instrs = tuple(group)
                if moves:
                    found += [instrs[n] for n in self._order(at, instrs, limit)]
                    at += len(instrs)
                    continue
                for instr in instrs:
                    at += 1
                    found.append(renumbered(instr, {}, inside))
                    at += isinstance(instr, Loop)
            return tuple(found)

        return inside(self._program.body)

    def _order(self, at: int, instrs: Body, limit: int) -> Sequence[int]:
        """The order of the instructions that begin at a position.

        Of each there are those before it that it needs, as bits, and the buffers that it touches:
        all that touch these, as bits, and the bytes.  One more is done before all and touches what
        is live there, another is never done and touches what lives on.
        """
        count, needs = len(instrs), list[int]()
        users = {
            b: (life.first < at) << count | (life.last >= at + count) << count + 1
            for b, (life, _) in self._spans.items()
        }
        named = [memory_of(instr, self._shared) & users.keys() for instr in instrs]
        last: dict[int, tuple[int, int]] = {}  # of memory and registers: what wrote and what reads
        for n, instr in enumerate(instrs):
            bit, found = 1 << n, 0
            touched, written = self._accesses(instr)
            for key in touched | written:
                writer, readers = last.get(key, (0, 0))
                found |= writer
                if key in written:
                    found |= readers
                    last[key] = bit, 0
                else:
                    last[key] = writer, readers | bit
            needs.append(found)
            for buffer in named[n]:
                users[buffer] |= bit
        live = sum(size for life, size in self._spans.values() if life.first < at <= life.last)
        buffers = [[(users[b], self._spans[b][1]) for b in its] for its in named]
        return _least(needs, buffers, live, limit)

    def _accesses(self, instr: Instr) -> tuple[set[int], set[int]]:
        """What an instruction touches and what it writes: memory by the least number of a buffer
        there, registers by negative numbers.  Sizes and allocations keep their order, for outputs
        are allocated when their shapes are known."""
        launched = self._results[instr.kernel] if isinstance(instr, Launch) else ()
        made = [buffers_of(instr)[n] for n in launched]
        touched = set[int]()
        written = {~self._program.registers} if isinstance(instr, Let | Allocate) else set()
        for kind, value in operands(instr):
            if kind.letter in ("b", "r"):
                key = min(self._shared.get(value, (value,))) if kind.letter == "b" else ~value
                touched.add(key)
                if kind in _WRITES or (kind is Kind.TOUCHED and value in made):
                    written.add(key)
        return touched, written


def _least(
    needs: Sequence[int], buffers: Sequence[Sequence[_Touched]], entering: int, limit: int
) -> Sequence[int]:
    """The order of the least peak that is found; peaks up to `limit` count alike, and of equal
    peaks the order near that of the numbers is taken."""
    plain = range(len(needs))
    floor = max(limit, entering, *(sum(size for _, size in t) for t in buffers))
    done, live, present = 1 << len(plain), entering, 0
    for n in plain:
        most, live = _step(buffers[n], done, live, 1 << n)
        done, present = done | 1 << n, max(present, most)
    if present <= floor:
        return plain
    after = [[m for m in plain if needs[m] >> n & 1] for n in plain]
    ready = [n for n in plain if not needs[n]]
    states: dict[int, _State] = {1 << len(plain): (floor, 0, entering, ready, ())}
    for _ in plain:
        longer: dict[int, _State] = {}
        room = WORK // len(plain)
        for done, (peak, moved, live, ready, order) in sorted(
            states.items(), key=lambda state: state[1][:2]
        ):
            moves = [(n, *_step(buffers[n], done, live, 1 << n)) for n in ready]
            free = [move for move in moves if move[1] <= peak and move[2] <= live]
            for n, most, left in free[:1] or moves:
                key = done | 1 << n
                cost = max(most, peak), moved + n - (done & (1 << n) - 1).bit_count()
                if cost < longer.get(key, (present,))[:2]:
                    new = (m for m in after[n] if not needs[m] & ~key)
                    rest = sorted({*ready, *new} - {n})
                    longer[key] = *cost, left, rest, (*order, n)
            room -= len(ready)
            if room <= 0:
                break
        states = longer
    return next((state[4] for state in states.values()), plain)


def _step(buffers: Sequence[_Touched], done: int, live: int, bit: int) -> tuple[int, int]:
    """The bytes that are live at an instruction, and behind it, if those of `done` are done."""
    most = live + sum(size for users, size in buffers if not users & done)
    return most, most - sum(size for users, size in buffers if not users & ~(done | bit))
