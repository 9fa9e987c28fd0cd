"""Emits the code of a kernel's statements."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import log2
from typing import assert_never

from tcc.backends.cpu.llvm.blocks import RegisterBlock, carried_chunks, in_chunks, last_axis
from tcc.backends.cpu.llvm.compute import compute
from tcc.backends.cpu.llvm.contract import contract
from tcc.backends.cpu.llvm.dot_operands import (
    join_words,
    load_rows,
    load_words,
    rounded,
    store_words,
)
from tcc.backends.cpu.llvm.indices import LlvmIndices
from tcc.backends.cpu.llvm.memory import Environment, load, prefetch
from tcc.backends.cpu.llvm.nibble_words import nibble_words, nibbles_of_words, shift_of_nibble
from tcc.backends.cpu.llvm.reduce import reduce
from tcc.backends.cpu.llvm.relayout import broadcast, relayout
from tcc.backends.cpu.llvm.stores import store
from tcc.backends.cpu.llvm.text import Reg
from tcc.backends.cpu.llvm.uses import blocks_as_scalars, blocks_as_words, only_multiplied
from tcc.ir.expr.scalar import Cast
from tcc.ir.index import as_int, free_vars, iterator
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileBuffer,
    TileLoop,
)
from tcc.ir.types import BF16, F32
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal

# The most iterations of a loop that is unrolled.
_FEW = 4
# The longest time in seconds between two checks for cancellation within a tile.
_ASKS = 2e-3


class Statements:
    """Emits statements and keeps the registers of all visible blocks."""

    def __init__(
        self, indices: LlvmIndices, buffers: Mapping[TileBuffer, Reg], seconds: float = 0.0
    ) -> None:
        """`seconds` is the time of a tile if the tile checks for cancellation (see `emit`), else
        0."""
        self._indices, self._seconds = indices, seconds
        self._values: dict[Block, RegisterBlock] = {}
        self._env = Environment(indices, buffers, self._values)
        self._waiting: list[Store] = []
        self._scalars: frozenset[Block] = frozenset()
        self._words: frozenset[Block] = frozenset()
        self._multiplied: frozenset[Block] = frozenset()

    def plan(self, body: Sequence[Stmt]) -> None:
        """Determines how the statements of a kernel's body use its blocks."""
        self._scalars = blocks_as_scalars(body)
        self._words = blocks_as_words(body, self._indices.code.module.profile)
        self._multiplied = only_multiplied(body)

    def run(self, body: Sequence[Stmt]) -> None:
        """Emits the statements of `body`, for which `plan` must have been called before.

        `body` is the body of `plan`, or a part of it.
        """
        for statement in body:
            if not isinstance(statement, Store):
                self._write()
            self._statement(statement)
        self._write()

    def _write(self) -> None:
        words = [node for node in self._waiting if node.block in self._words]
        for node in words:
            store_words(self._env, node)
        store(self._env, [node for node in self._waiting if node not in words])
        self._waiting.clear()

    def _statement(self, node: Stmt) -> None:
        code, values = self._indices.code, self._values
        match node:
            case Load() | Store() | Prefetch():
                self._access(node)
            case Compute():
                args = {n: values[block] for n, block in enumerate(node.args)}
                values[node.out] = self._computed(node, args)
            case Contract():
                operands = (values[node.acc], values[node.a], values[node.b])
                values[node.out] = contract(code, node, *operands)
            case Reduce():
                parts = [values[block] for block in node.blocks]
                for out, value in zip_equal(node.outs, reduce(code, node, parts)):
                    values[out] = value
            case Broadcast():
                values[node.out] = broadcast(code, node, values[node.block])
            case Relayout():
                values[node.out] = relayout(code, node, values[node.block])
            case TileLoop():
                self._loop(node)
            case If():
                self._if(node)
            case Sync():
                pass
            case _:
                assert_never(node)

    def _computed(self, node: Compute, args: Mapping[int, RegisterBlock]) -> RegisterBlock:
        """Returns the result of a Compute statement, in words if its uses need words."""
        in_words, code = node.out in self._words, self._indices.code
        bit = shift_of_nibble(node) if in_words else None
        if bit is not None and node.args[0] in self._words:
            return nibbles_of_words(code, bit, args[0])
        if in_words and (words := nibble_words(code, node, [*args.values()])):
            return words
        if node.out in self._multiplied and isinstance(node.body, Cast):
            unrounded = Compute(Block("unrounded", F32, node.out.shape), node.body.arg, node.args)
            value = rounded(code, compute(self._indices, unrounded, args))
        else:
            value = compute(self._indices, node, args)
        return join_words(code, value) if in_words else value

    def _access(self, node: Load | Store | Prefetch) -> None:
        match node:
            case Load():
                self._values[node.out] = self._load(node)
            case Store():
                self._waiting.append(node)
            case Prefetch():
                prefetch(self._env, node)

    def _load(self, node: Load) -> RegisterBlock:
        scalars = node.out in self._scalars
        if node.out in self._words:
            return load_words(self._env, node, scalars)
        if node.out.dtype is BF16 and not scalars and (rows := load_rows(self._env, node)):
            return rows
        return load(self._env, node, scalars)

    # ---- control flow ----------------------------------------------------------------------------

    def _loop(self, node: TileLoop) -> None:
        code, indices = self._indices.code, self._indices
        start, stop = indices.emit(node.start), indices.emit(node.stop)
        size = as_int(node.stop - node.start) or 0
        trips = range(0, size, node.step)
        if not node.inits and self._one_by_one(node, len(trips)):
            for trip in trips:
                with code.scope() if len(trips) > 1 else nullcontext():
                    self._bind_counter(node, indices.emit(node.start + trip), start)
                    self.run(node.body)
            return
        inits = [self._canonical(self._values[block]) for block in node.inits]
        name = code.fresh("loop")
        entry_label, front = code.label, code.keep_place()
        if size > 0:
            code.jump(name)
        else:
            any_trip = code.compare("icmp slt", start, stop)
            code.branch(any_trip, name, f"{name}.done")
        code.place(name)
        line = len(code.lines)
        counter = code.emit("i64", 1, "")
        carried = []
        for block, init in zip_equal(node.carried, inits):
            regs = tuple(code.emit(reg.elem, reg.width, "") for reg in init.regs)
            carried.append(RegisterBlock(init.dtype, init.shape, init.chunks, regs))
            self._values[block] = carried[-1]
        with code.scope(), indices.in_loop(front):
            self._bind_counter(node, counter, start)
            with self._asking(node):
                self.run(node.body)
            yields = [self._canonical(self._values[block]) for block in node.yields]
            next_counter = code.op("add nsw", counter, node.step)
            goes_on = code.compare("icmp slt", next_counter, stop)
        latch = code.label

        def phi(reg: Reg, first: Reg, last: Reg) -> str:
            ends = f"[ {first.text}, %{entry_label} ], [ {last.text}, %{latch} ]"
            return f"phi {reg.type} {ends}"

        code.void(f"br {goes_on}, label %{name}, label %{name}.done, !llvm.loop !0")
        phis = [(counter, start, next_counter)]
        for value, init, final in zip_equal(carried, inits, yields):
            phis += zip_equal(value.regs, init.regs, final.regs)
        for line_number, (reg, first, last) in enumerate(phis, line):
            code.lines[line_number] = f"  {reg.text} = {phi(reg, first, last)}"
        code.place(f"{name}.done")
        for block, init, final in zip_equal(node.results, inits, yields):
            regs_out = final.regs
            if size < 1:
                regs_out = tuple(
                    code.emit(last.elem, last.width, phi(last, first, last))
                    for first, last in zip_equal(init.regs, final.regs)
                )
            self._values[block] = RegisterBlock(final.dtype, final.shape, final.chunks, regs_out)

    def _one_by_one(self, node: TileLoop, trips: int) -> bool:
        """Returns True if the loop is unrolled.

        It is unrolled if it has one iteration, or few iterations and a load whose guard depends on
        the iteration.
        """
        guards = (g for s in node.body if isinstance(s, Load) for g in s.guards)
        names = ({v.name for v in free_vars(g.index)} for g in guards)
        decided = (node.var.name in n and n.isdisjoint(self._indices.values) for n in names)
        return trips == 1 or (0 < trips <= _FEW and any(decided))

    def _bind_counter(self, node: TileLoop, counter: Reg, start: Reg) -> None:
        """Binds the loop variable to its SSA value and to `start + step * iteration number`.

        The second form shows that the variable minus its start is a multiple of the step, which
        gives better alignments of addresses.
        """
        indices, code = self._indices, self._indices.code
        indices.values[node.var.name] = counter
        trip = iterator(f"{node.var.name}.trip", (node.stop - node.start) // node.step)
        indices.steps[node.var] = node.start + node.step * trip
        passed = code.op("sub nsw", counter, start)
        indices.values[f"{node.var.name}.trip"] = code.op("udiv exact", passed, node.step)

    @contextmanager
    def _asking(self, node: TileLoop) -> Iterator[None]:
        """Emits an iteration of the loop around the code inside; every few iterations check for
        cancellation.

        A loop checks for cancellation if it takes long, or if its number of iterations depends on
        data. If a single iteration takes long, the loops inside the iteration check instead.
        """
        all_trips, code = self._seconds, self._indices.code
        self._seconds /= max(1, typical((node.stop - node.start) // node.step))
        is_long = all_trips > _ASKS or as_int(node.stop - node.start) is None
        if 0 < self._seconds <= _ASKS and is_long:
            period = 1 << int(log2(_ASKS / self._seconds))
            trip, name = self._indices.values[f"{node.var.name}.trip"], code.fresh("ask")
            is_due = code.compare("icmp eq", code.op("and", trip, period - 1), period - 1)
            code.branch(is_due, name, f"{name}.go")
            code.place(name)
            code.void(f"%{name}.ends = call i32 %ask(ptr %asked) nounwind")
            code.void(f"%{name}.no = icmp eq i32 %{name}.ends, 0")
            code.void(f"br i1 %{name}.no, label %{name}.go, label %done")
            code.place(f"{name}.go")
        yield
        self._seconds = all_trips

    def _if(self, node: If) -> None:
        code = self._indices.code
        a, b = self._indices.emit(node.lhs), self._indices.emit(node.rhs)
        holds = code.compare("icmp slt", a, b)
        name = code.fresh("if")
        code.branch(holds, f"{name}.then", f"{name}.else")
        for label, body in (("then", node.then), ("else", node.otherwise)):
            code.place(f"{name}.{label}")
            with code.scope():
                self.run(body)
            code.jump(f"{name}.done")
        code.place(f"{name}.done")

    def _canonical(self, value: RegisterBlock) -> RegisterBlock:
        """Returns the value in `carried_chunks`, the chunks of all values that loops carry."""
        code = self._indices.code
        return in_chunks(code, value, carried_chunks(last_axis(value.shape), code.module.lanes))
