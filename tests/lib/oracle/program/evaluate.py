"""Evaluates host programs with NumPy: the meaning of `ir.program` as executable text.

Memory is bytes, as in the runtime: buffers are ranges of the arena, of the weights or of arrays.
The arena is poisoned before a buffer's first use and after its last use, with ones in all bits (NaN
in every float type). So a plan that reuses a range too early shows in the results. Kernels run unit
by unit, which is fast enough for small models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeAlias, assert_never

import numpy as np
from tcc.errors import InternalError, UserError
from tcc.ir.expr import extent
from tcc.ir.index import evaluate
from tcc.ir.narrow import decode, encode, pack, unpack
from tcc.ir.op import Array
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    BufferId,
    CallOp,
    Check,
    Collective,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    PlanArena,
    Program,
    ReadInt,
    Register,
    Relation,
    State,
    Symmetric,
    TensorRef,
    View,
    Wait,
    Weight,
)
from tcc.ir.program.operands import buffers_of, walk_instructions
from tcc.ir.tile import MemorySpace, TileBuffer, TileKernel
from tcc.ir.types import BF16, DType

from tests.lib.oracle.ranks import block_counts
from tests.lib.oracle.tile.evaluate import evaluate_kernel

# A C function of the runtime: operands, results that it fills in place, and the call's ints. It
# returns the data-dependent sizes.
Function: TypeAlias = Callable[[Sequence[Array], Sequence[Array], Sequence[int]], Sequence[int]]
# Runs all units of a kernel, given its number, its buffers' arrays and its sizes by name.
Run: TypeAlias = Callable[[int, Sequence[Array], Mapping[str, int]], None]
# Returns what a collective of this rank receives, given what it sends, when all ranks are there.
Exchange: TypeAlias = Callable[[Collective, Array], Array]
_POISON = 0xFF


def evaluate_program(
    program: Program,
    kernels: Sequence[TileKernel],
    inputs: Sequence[Array],
    weights: Array,
    functions: Mapping[str, Function] | None = None,
    run: Run | None = None,
    exchange: Exchange | None = None,
    rank: int = 0,
    seed: int = 0,
) -> tuple[Array, ...]:
    """Runs a program once and returns the outputs in port order.

    `inputs` are in port order, `weights` the section's bytes. Arrays have the type that carries
    their dtype. `functions` are the C functions by name. `run` replaces the tile evaluator, and
    `exchange` runs collectives of the rank number `rank`. `seed` is the run's seed. Raises
    UserError if a `Check` fails, InternalError if the program uses memory that it does not have.
    """
    evaluated = partial(_evaluated, kernels)
    host = _Host(program, kernels, inputs, weights, functions or {}, run or evaluated, exchange)
    host.rank, host.seed = rank, seed
    host.run(program.body, ())
    return host.outputs()


def _evaluated(
    kernels: Sequence[TileKernel], number: int, arrays: Sequence[Array], sizes: Mapping[str, int]
) -> None:
    evaluate_kernel(kernels[number], arrays, sizes)


def to_bytes(array: Array, dtype: DType) -> Array:
    """Returns the bytes of `array` as `dtype` is stored."""
    if dtype.is_narrow:
        return encode(array, dtype).reshape(-1)
    flat = np.ascontiguousarray(array, dtype.carrier).reshape(-1)
    if dtype is BF16:
        flat = (flat.view(np.uint32) >> 16).astype(np.uint16)
    return flat.view(np.uint8).copy()


def _at_surface(array: Array, dtype: DType) -> Array:
    """Returns the bytes of a caller's array."""
    data = to_bytes(array, dtype)
    return pack(data, dtype) if dtype.is_packed else data


def from_bytes(data: Array, dtype: DType) -> Array:
    """Returns the elements stored in `data`; a copy for types that NumPy only carries."""
    if dtype.is_narrow:
        return decode(data, dtype)
    if dtype is BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(dtype.carrier)


class _Host:
    """A run: registers, memory, and the place of each buffer."""

    def __init__(
        self,
        program: Program,
        kernels: Sequence[TileKernel],
        inputs: Sequence[Array],
        weights: Array,
        functions: Mapping[str, Function],
        run: Run,
        exchange: Exchange | None,
    ) -> None:
        self._program, self._kernels, self._functions = program, kernels, functions
        self._run, self._exchange = run, exchange
        self.rank = self.seed = 0
        self._inputs = [
            _at_surface(a, p.dtype) for a, p in zip(inputs, program.inputs, strict=True)
        ]
        self._shapes = [np.shape(a) for a in inputs]
        self._weights = weights
        self._registers: dict[Register, int] = {}
        self._arena: Array | None = None
        self._symmetric: Array | None = None
        self._memory: dict[BufferId, Array] = {}
        # Pending collectives with the data that they send, by ticket.
        self._started: dict[int, tuple[Collective, Array]] = {}

    def outputs(self) -> tuple[Array, ...]:
        """Returns the arrays of the output ports."""
        arrays = []
        for number, port in enumerate(self._program.outputs):
            shape = tuple(self._registers[d] for d in port.dims)
            size = -(-prod(shape) * port.dtype.bits // 8)
            (buffer,) = (
                n for n, b in enumerate(self._program.buffers) if b.place == Output(number)
            )
            data = self._bytes(buffer)[:size]
            if port.dtype.is_packed:
                data = unpack(data, prod(shape), port.dtype)
            arrays.append(from_bytes(data, port.dtype).reshape(shape).copy())
        return tuple(arrays)

    # ---- memory ---------------------------------------------------------------------------

    def _bytes(self, buffer: BufferId) -> Array:
        if buffer not in self._memory:
            self._memory[buffer] = self._place(buffer, self._program.buffers[buffer])
        return self._memory[buffer]

    def _place(self, number: BufferId, buffer: Buffer) -> Array:
        match buffer.place:
            case Input(port):
                return self._inputs[port]
            case Output(port) if self._program.outputs[port].state >= 0:
                return self._inputs[self._program.outputs[port].state]
            case Weight(offset, size):
                return self._weights[offset : offset + size]
            case Arena(offset, size):
                return self._range(self._registers[offset], self._registers[size])
            case Symmetric():
                return self._symmetric_range(buffer.place)
            case State(size):
                return np.zeros(size, np.uint8)
            case Output() | Dynamic() | Alias():
                raise InternalError(f"buffer {number} ({buffer.label}) is used without memory")
            case _:
                assert_never(buffer.place)

    def _range(self, offset: int, size: int) -> Array:
        if self._arena is None:
            total = self._registers[self._program.arena]
            self._arena = np.full(total, _POISON, np.uint8)
        if not 0 <= offset <= offset + size <= self._arena.size:
            raise InternalError(f"bytes {offset}..{offset + size} of {self._arena.size} of arena")
        return self._arena[offset : offset + size]

    def _symmetric_range(self, place: Symmetric) -> Array:
        """Returns a range of the symmetric memory, which ends with its last range."""
        if self._symmetric is None:
            places = [b.place for b in self._program.buffers if isinstance(b.place, Symmetric)]
            ends = [self._registers[p.offset] + self._registers[p.size] for p in places]
            self._symmetric = np.full(max(ends), _POISON, np.uint8)
        offset = self._registers[place.offset]
        return self._symmetric[offset : offset + self._registers[place.size]]

    def _allocate(self, node: Allocate) -> None:
        size = self._registers[node.size]
        buffer = self._memory.get(node.buffer)
        place = self._program.buffers[node.buffer].place
        if isinstance(place, Output):
            if buffer is not None:
                raise InternalError(f"output buffer {node.buffer} is allocated twice")
            if self._program.outputs[place.port].state >= 0:
                return  # The output has the memory of its input, with its contents.
        fresh = np.full(size, _POISON, np.uint8)
        if node.keep and buffer is not None:
            count = min(buffer.size, size)
            fresh[:count] = buffer[:count]
        self._memory[node.buffer] = fresh

    def _forget(self, buffers: Sequence[BufferId], instr: Instr) -> None:
        """Poisons buffers that end at an instruction, except for the front that `thin` keeps."""
        data = np.zeros(0, np.uint8)
        if isinstance(instr, CallOp) and instr.op == "thin":
            data = self._bytes(instr.outputs[0].buffer)
        saved = data.copy()
        for buffer in buffers:
            place = self._program.buffers[buffer].place
            if isinstance(place, Arena | Symmetric) and buffer in self._memory:
                self._memory[buffer][:] = _POISON
        data[:] = saved

    # ---- instructions -------------------------------------------------------------------------

    def run(self, body: Sequence[Instr], outside: Sequence[Instr]) -> None:
        """Runs `body`; arena buffers end behind their last use in it, unless `outside` uses
        them."""
        ends = _last_uses(body, outside, self._views())
        for instr, dead in zip(body, ends, strict=True):
            self._step(instr, (*outside, *(i for i in body if i is not instr)))
            self._forget(dead, instr)

    def _views(self) -> list[tuple[BufferId, BufferId]]:
        return [
            (i.buffer, i.base) for i in walk_instructions(self._program.body) if isinstance(i, View)
        ]

    def _step(self, instr: Instr, outside: Sequence[Instr]) -> None:
        registers = self._registers
        match instr:
            case Let():
                registers[instr.target] = self._let(instr)
            case ReadInt():
                data = from_bytes(self._bytes(instr.buffer), instr.dtype)
                registers[instr.target] = int(data[instr.element])
            case Check():
                self._check(instr)
            case Allocate():
                self._allocate(instr)
            case View():
                self._memory[instr.buffer] = self._bytes(instr.base)[registers[instr.offset] :]
            case Launch():
                self._launch(instr)
            case CallOp():
                self._call(instr)
            case Copy() | Collective() | Wait():
                self._move(instr)
            case Branch():
                condition = (
                    registers[instr.when] if instr.when >= 0 else self._flag(instr.condition)
                )
                self.run(instr.then if condition else instr.otherwise, outside)
            case Loop():
                self._loop(instr)
            case PlanArena():
                self._plan(instr)
            case _:
                assert_never(instr)

    def _move(self, node: Copy | Collective | Wait) -> None:
        if isinstance(node, Collective):
            self._start(node)
            return
        if isinstance(node, Wait):
            self._wait(node)
            return
        size = self._registers[node.size]
        target, source = self._bytes(node.target), self._bytes(node.source)
        if size > min(target.size, source.size):
            raise InternalError(f"a copy of {size} bytes: {node}")
        target[:size] = source[:size].copy()

    def _plan(self, node: PlanArena) -> None:
        """Gives each buffer, in the order of birth, the lowest offset that earlier live buffers
        leave."""
        sizes = [-(-max(self._registers[r], 1) // 64) * 64 for r in node.sizes]
        spans = [node.lives[at : at + 3] for at in range(0, len(node.lives), 3)]
        offsets: dict[int, int] = {}
        for n in sorted(range(len(sizes)), key=lambda n: spans[n][0]):
            first, last, under = spans[n]
            met = [m for m in offsets if spans[m][0] <= last and first <= spans[m][1]]
            busy = [(offsets[m], offsets[m] + sizes[m]) for m in met]
            free = (
                at
                for at in sorted({0, *(end for _, end in busy)})
                if all(at + sizes[n] <= start or end <= at for start, end in busy)
            )
            offsets[n] = offsets[under] if under >= 0 else next(free)
        self._registers.update((r, offsets[n]) for n, r in enumerate(node.offsets))
        self._registers[node.end] = max((at + sizes[n] for n, at in offsets.items()), default=0)

    def _let(self, node: Let) -> int:
        if node.op is IntOp.CONST:
            return node.a
        if node.op is IntOp.DIM:
            return int(self._shapes[node.a][node.b])
        if node.op is IntOp.RANK:
            return self.rank
        if node.op is IntOp.CAPACITY:  # Arrays have no room behind their rows here.
            return int(self._shapes[node.a][node.b])
        if node.op is IntOp.SEED:
            return (self.seed + (1 << 63)) % (1 << 64) - (1 << 63)
        a, b = self._registers[node.a], self._registers[node.b]
        return INTEGER[node.op](a, b)

    def _check(self, node: Check) -> None:
        a, b = self._registers[node.a], self._registers[node.b]
        if not holds(node.relation, a, b):
            raise UserError(f"{node.message} ({a}, {b})")

    def _flag(self, buffer: BufferId) -> bool:
        return bool(self._bytes(buffer)[0])

    def _loop(self, node: Loop) -> None:
        trips = self._registers[node.trips]
        self._registers[node.counter] = 0
        while self._registers[node.counter] < trips:
            if node.condition >= 0 and not self._flag(node.condition):
                break
            # The next trip may read the data of this trip.
            for instr in node.body:
                self._step(instr, tuple(walk_instructions(self._program.body)))
            self._registers[node.counter] += 1

    # ---- work ------------------------------------------------------------------------------

    def _launch(self, node: Launch) -> None:
        kernel = self._kernels[node.kernel]
        names = (v.name for v in kernel.sizes)
        sizes = dict(zip(names, (self._registers[r] for r in node.ints), strict=True))
        units = prod(int(evaluate(extent(v), sizes)) for v in kernel.axes)
        if units != self._registers[node.grid]:
            raise InternalError(f"{self._registers[node.grid]} units for kernel {node.kernel}")
        memory = [self._bytes(b) for b in node.buffers]
        arrays = [
            _typed(data, buffer, sizes) for data, buffer in zip(memory, kernel.buffers, strict=True)
        ]
        self._run(node.kernel, arrays, sizes)
        for data, array, buffer in zip(memory, arrays, kernel.buffers, strict=True):
            carried = buffer.dtype is BF16 or buffer.dtype.is_narrow
            if carried and buffer.scope is MemorySpace.OUTPUT:
                data[: buffer.dtype.bytes * array.size] = to_bytes(array, buffer.dtype)

    def _call(self, node: CallOp) -> None:
        if node.op == "fill_halo":
            self._fill_halo(node.outputs[0], node.ints)
            return
        if node.op == "thin":
            self._thin(node.inputs[0], node.outputs[0], node.ints)
            return
        function = self._functions.get(node.op)
        if function is None:
            raise InternalError(f"the program calls {node.op}, which the evaluator was not given")
        outputs = [self._tensor(t) for t in node.outputs]
        results = function([self._tensor(t) for t in node.inputs], outputs, node.ints)
        self._registers.update(zip(node.results, results, strict=True))
        for ref, array in zip(node.outputs, outputs, strict=True):
            data = to_bytes(array, ref.dtype)
            self._bytes(ref.buffer)[: data.size] = data

    def _start(self, node: Collective) -> None:
        """Starts a collective; the received data is poisoned until the wait."""
        counts = tuple(self._registers[n] for n in node.counts)
        sent, received = (
            sum(side) * node.dtype.bytes for side in block_counts(node.kind, node.ranks, counts)
        )
        if min(counts) < 0:
            raise InternalError(f"{node} has a negative count")
        send, receive = self._bytes(node.send)[:sent], self._bytes(node.receive)[:received]
        if send.size < sent or receive.size < received:
            raise InternalError(f"{node} goes beyond a buffer")
        if node.ticket in self._started:
            raise InternalError(f"{node} has the ticket of another one under way")
        self._started[node.ticket] = replace(node, counts=counts), send.copy()
        if node.send != node.receive:
            receive[:] = _POISON

    def _wait(self, node: Wait) -> None:
        """Ends collectives in the order of their starts; their sent data must not have changed."""
        if self._exchange is None:
            raise InternalError("the program has collectives, and the evaluator has one rank")
        if node.ticket not in self._started:
            raise InternalError(f"{node} waits for nothing")
        for ticket, (start, sent) in tuple(self._started.items()):
            if not np.array_equal(self._bytes(start.send)[: sent.size], sent):
                raise InternalError(f"what {start} sends was changed")
            received = to_bytes(self._exchange(start, from_bytes(sent, start.dtype)), start.dtype)
            self._bytes(start.receive)[: received.size] = received
            del self._started[ticket]
            if ticket == node.ticket:
                return

    def _fill_halo(self, ref: TensorRef, ints: Sequence[int]) -> None:
        """Writes the bits `ints[0]` to the first and last places along each dimension."""
        shape = tuple(self._registers[d] for d in ref.dims)
        data = self._bytes(ref.buffer)[: prod(shape) * ref.dtype.bytes]
        places = data.view(f"u{ref.dtype.bytes}").reshape(shape)
        value = np.asarray(ints[0]).astype(places.dtype)
        for axis, size in enumerate(shape):
            along = np.moveaxis(places, axis, 0)
            along[: ints[1 + 2 * axis]] = value
            along[size - ints[2 + 2 * axis] :] = value

    def _thin(self, source: TensorRef, target: TensorRef, every: Sequence[int]) -> None:
        """Writes every nth element along each dimension; source and target may begin at one
        address."""
        view = self._tensor(source)[tuple(slice(None, None, n) for n in every)].copy()
        data = to_bytes(view, target.dtype)
        self._bytes(target.buffer)[: data.size] = data

    def _tensor(self, ref: TensorRef) -> Array:
        shape = tuple(self._registers[d] for d in ref.dims)
        data = self._bytes(ref.buffer)[: prod(shape) * ref.dtype.bytes]
        return from_bytes(data, ref.dtype).reshape(shape)


def holds(relation: Relation, a: int, b: int) -> bool:
    """Returns true if `relation` holds between `a` and `b`."""
    match relation:
        case Relation.EQ:
            return a == b
        case Relation.LE:
            return a <= b
        case Relation.LT:
            return a < b
        case Relation.DIVIDES:
            return a > 0 and b % a == 0


INTEGER: Mapping[IntOp, Callable[[int, int], int]] = {
    IntOp.ADD: lambda a, b: a + b,
    IntOp.SUB: lambda a, b: a - b,
    IntOp.MUL: lambda a, b: a * b,
    IntOp.FLOORDIV: lambda a, b: a // b,
    IntOp.MOD: lambda a, b: a % b,
    IntOp.MIN: min,
    IntOp.MAX: max,
}


def _typed(data: Array, buffer: TileBuffer, sizes: Mapping[str, Any]) -> Array:
    """Returns a buffer's memory as the kernel's array; a copy for types that NumPy only carries."""
    width = buffer.dtype.bytes
    if len(buffer.sizes) == 1:  # A flat buffer is as long as its memory.
        return from_bytes(data[: data.size // width * width], buffer.dtype)
    shape = tuple(int(evaluate(n, sizes)) for n in buffer.sizes)
    size = prod(shape) * width
    if size > data.size:
        raise InternalError(f"{buffer.name} of a kernel has {size} bytes, its buffer {data.size}")
    return from_bytes(data[:size], buffer.dtype).reshape(shape)


# ---- live ranges ------------------------------------------------------------------------------


def _last_uses(
    body: Sequence[Instr],
    outside: Sequence[Instr],
    views: Sequence[tuple[BufferId, BufferId]],
) -> list[list[BufferId]]:
    """Returns each instruction's buffers that nothing after it, nor `outside`, uses."""
    last: dict[BufferId, int] = {}
    for number, instr in enumerate(body):
        last.update(dict.fromkeys(_used([instr], views), number))
    bases = _used(outside, views)
    dead: list[list[BufferId]] = [[] for _ in body]
    for buffer, number in last.items():
        if buffer not in bases:
            dead[number].append(buffer)
    return dead


def _used(
    body: Sequence[Instr], views: Sequence[tuple[BufferId, BufferId]]
) -> dict[BufferId, None]:
    """Returns the buffers that `body` touches, directly or through views."""
    buffers = dict.fromkeys(b for i in walk_instructions(body) for b in buffers_of(i))
    for _ in views:
        buffers.update({base: None for alias, base in views if alias in buffers})
    return buffers
