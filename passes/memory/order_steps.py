"""Orders launches, calls and copies so that fewer bytes of the arena are live at one time.

    a = f(x); b = f(y); c = max(a); d = max(b)  ->  a = f(x); c = max(a); b = f(y); d = max(b)

Requires a program whose arena is not planned yet.  Establishes a program of the same instructions.
Two instructions keep their order if one writes what the other reads or writes.  Checks, control
flow, collectives, calls that decide sizes, and calls that compact buffers do not move, and nothing
moves across them.  No price depends on the order of launches, and caches favour the graph's order.
So the program changes only if its peak of live bytes falls.

The search is that of B. H. Ahn et al., Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired
Neural Networks for Edge Devices (MLSys 2020).  A state is a set of instructions that can run before
all others, with the order of the set that has the lowest peak of live bytes.  A step of the search
adds an instruction to a set.  If an instruction raises no peak and leaves no more bytes live, it is
added without alternatives, because no other order is better.  The search is exact if it needs at
most `WORK` states.  Otherwise only the sets with the lowest peaks are extended.
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

# The most states of the search for a stretch, a sequence of instructions that may move.
WORK = 1 << 14

_WRITES = (Kind.DEFINED, Kind.ALLOCATED, Kind.AIMED, Kind.WRITTEN)
# A buffer: the bits of the instructions that use it, and its bytes.
_Buffer: TypeAlias = tuple[int, int]
# A search state: the peak, the number of earlier instructions that were overtaken, the live bytes,
# the instructions that may come next, and the order so far.
_State: TypeAlias = tuple[int, int, int, list[int], tuple[int, ...]]


def order_steps(
    program: Program, results: Sequence[Sequence[int]], dims: Mapping[tuple[int, int], int]
) -> Program:
    """Returns `program` with its instructions in an order of lower peak memory.

    `results[k]` has the indices, among a launch's buffers, of those that kernel k writes.  `dims`
    maps (port, axis) of inputs to typical sizes, for which the order is chosen.  The program takes
    no more memory than before at three sets of sizes: the typical sizes, sizes of 1, and sizes
    sixteen times as large.
    """
    other_dims = dict.fromkeys(dims, 1), {at: 16 * size for at, size in dims.items()}
    sizes = [known_sizes(program, sizes_of_inputs) for sizes_of_inputs in (dims, *other_dims)]
    stretches = _Stretches(program, results, sizes[0])
    body = stretches.ordered(most_live(arena_lives(stretches.ordered(0))[0], sizes[0]))
    old_peaks, new_peaks = (
        [most_live(arena_lives(b)[0], s) for s in sizes] for b in (program.body, body)
    )
    return (
        replace(program, body=body)
        if new_peaks < old_peaks and all(map(le, new_peaks, old_peaks))
        else program
    )


def _moves(instr: Instr) -> bool:
    """Returns True if an instruction may move, because writing its results is its only effect."""
    if isinstance(instr, CallOp):
        return bool(instr.outputs) and not instr.results and instr.op != "thin"
    return isinstance(instr, Let | Allocate | View | Launch | Copy)


class _Stretches:
    """Orders the stretches of a program; a stretch is a sequence of instructions that may move."""

    def __init__(
        self, program: Program, results: Sequence[Sequence[int]], sizes: Mapping[BufferId, int]
    ) -> None:
        self._program, self._results = program, results
        self._shared, lives = shared_memory(program), arena_lives(program.body)[0]
        self._spans = {b: (lives[b], size) for b, size in sizes.items() if b in lives}

    def ordered(self, limit: int) -> Body:
        """Returns the program's body with each stretch in the order with the lowest peak found.

        Peaks up to `limit` count as equal.
        """
        at = 0

        def inside(body: Body) -> Body:
            nonlocal at
            instructions: list[Instr] = []
            for moves, group in groupby(body, _moves):
                instrs = tuple(group)
                if moves:
                    instructions += [instrs[n] for n in self._order(at, instrs, limit)]
                    at += len(instrs)
                    continue
                for instr in instrs:
                    at += 1
                    instructions.append(renumbered(instr, {}, inside))
                    at += isinstance(instr, Loop)
            return tuple(instructions)

        return inside(self._program.body)

    def _order(self, at: int, instrs: Body, limit: int) -> Sequence[int]:
        """Returns the order of the instructions of a stretch that begins at position `at`.

        The search needs for each instruction its buffers, and a set of bits: the earlier
        instructions that it needs.  It needs for each buffer its bytes, and a set of bits: the
        instructions that use it.  Two more bits stand for the code before and after the stretch.
        The code before it counts as an instruction that has run, and uses the buffers that are live
        there.  The code after it counts as an instruction that never runs, and uses the buffers
        that are live after the stretch.
        """
        count, needs = len(instrs), list[int]()
        users = {
            b: (life.first < at) << count | (life.last >= at + count) << count + 1
            for b, (life, _) in self._spans.items()
        }
        named = [memory_of(instr, self._shared) & users.keys() for instr in instrs]
        # For each memory and register: the bit of its last writer, and the bits of its readers
        # since.
        last: dict[int, tuple[int, int]] = {}
        for n, instr in enumerate(instrs):
            bit, needed = 1 << n, 0
            touches, writes = self._accesses(instr)
            for key in touches | writes:
                writer, readers = last.get(key, (0, 0))
                needed |= writer
                if key in writes:
                    needed |= readers
                    last[key] = bit, 0
                else:
                    last[key] = writer, readers | bit
            needs.append(needed)
            for buffer in named[n]:
                users[buffer] |= bit
        live = sum(size for life, size in self._spans.values() if life.first < at <= life.last)
        buffers = [[(users[b], self._spans[b][1]) for b in its] for its in named]
        return _lowest_peak(needs, buffers, live, limit)

    def _accesses(self, instr: Instr) -> tuple[set[int], set[int]]:
        """Returns (touches, writes): what an instruction reads or writes, and what it writes.

        Memory is named by the lowest number of a buffer in it, and a register by a negative number.
        All `Let`s and allocations write one more register, so that they keep their order: an output
        is allocated when its shape is known.
        """
        launched = self._results[instr.kernel] if isinstance(instr, Launch) else ()
        written_buffers = [buffers_of(instr)[n] for n in launched]
        touches = set[int]()
        writes = {~self._program.registers} if isinstance(instr, Let | Allocate) else set()
        for kind, value in operands(instr):
            if kind.letter in ("b", "r"):
                key = min(self._shared.get(value, (value,))) if kind.letter == "b" else ~value
                touches.add(key)
                if kind in _WRITES or (kind is Kind.TOUCHED and value in written_buffers):
                    writes.add(key)
        return touches, writes


def _lowest_peak(
    needs: Sequence[int], buffers: Sequence[Sequence[_Buffer]], entering: int, limit: int
) -> Sequence[int]:
    """Returns the order with the lowest peak that the search finds.

    Peaks up to `limit` count as equal.  Among orders of equal peaks, the closest to the program's
    order wins.  `needs` has for each instruction the bits of the instructions before it that it
    needs, and `buffers` the buffers that it uses.  `entering` are the bytes live before the first
    instruction.
    """
    plain = range(len(needs))
    floor = max(limit, entering, *(sum(size for _, size in t) for t in buffers))
    finished, live, program_peak = 1 << len(plain), entering, 0
    for n in plain:
        peak_bytes, live = _step(buffers[n], finished, live, 1 << n)
        finished, program_peak = finished | 1 << n, max(program_peak, peak_bytes)
    if program_peak <= floor:
        return plain
    after = [[m for m in plain if needs[m] >> n & 1] for n in plain]
    ready = [n for n in plain if not needs[n]]
    states: dict[int, _State] = {1 << len(plain): (floor, 0, entering, ready, ())}
    for _ in plain:
        longer: dict[int, _State] = {}
        room = WORK // len(plain)
        for finished, (peak, overtakes, live, ready, order) in sorted(
            states.items(), key=lambda state: state[1][:2]
        ):
            moves = [(n, *_step(buffers[n], finished, live, 1 << n)) for n in ready]
            free = [move for move in moves if move[1] <= peak and move[2] <= live]
            for n, peak_bytes, live_after in free[:1] or moves:
                key = finished | 1 << n
                cost = max(peak_bytes, peak), overtakes + n - (finished & (1 << n) - 1).bit_count()
                if cost < longer.get(key, (program_peak,))[:2]:
                    new = (m for m in after[n] if not needs[m] & ~key)
                    longer[key] = *cost, live_after, sorted({*ready, *new} - {n}), (*order, n)
            room -= len(ready)
            if room <= 0:
                break
        states = longer
    return next((state[4] for state in states.values()), plain)


def _step(buffers: Sequence[_Buffer], finished: int, live: int, bit: int) -> tuple[int, int]:
    """Returns (peak, after): the bytes that are live during an instruction, and after it.

    `bit` is the bit of the instruction, and `finished` has the bits of the instructions that ran
    before it.  `buffers` are its buffers, and `live` are the bytes live before it.
    """
    peak = live + sum(size for users, size in buffers if not users & finished)
    return peak, peak - sum(size for users, size in buffers if not users & ~(finished | bit))
