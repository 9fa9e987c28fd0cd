"""The statements of a kernel."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from tcc.backends.cpu.llvm.blocks import RegisterBlock, carried_chunks, in_chunks, last_axis
from tcc.backends.cpu.llvm.compute import compute
from tcc.backends.cpu.llvm.contract import contract
from tcc.backends.cpu.llvm.dot_operands import load_rows, load_words
from tcc.backends.cpu.llvm.indices import LlvmIndices
from tcc.backends.cpu.llvm.memory import Environment, load, prefetch, store
from tcc.backends.cpu.llvm.reduce import reduce
from tcc.backends.cpu.llvm.relayout import broadcast, relayout
from tcc.backends.cpu.llvm.text import Reg
from tcc.backends.cpu.llvm.uses import wanted_as_scalars, wanted_as_words
from tcc.ir.index import as_int, iterator
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Loop,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileBuffer,
)
from tcc.ir.types import BF16


class Statements:
    """Emits statements, keeping the registers of every block in sight."""

    def __init__(self, indices: LlvmIndices, buffers: Mapping[TileBuffer, Reg]) -> None:
        self._indices = indices
        self._values: dict[Block, RegisterBlock] = {}
        self._env = Environment(indices, buffers, self._values)
        self._waiting: list[Store] = []
        self._scalars: frozenset[Block] = frozenset()
        self._words: frozenset[Block] = frozenset()

    def plan(self, body: Sequence[Stmt]) -> None:
        """Finds out how the blocks of a kernel's body are used."""
        self._scalars = wanted_as_scalars(body)
        self._words = wanted_as_words(body, self._indices.code.module.profile)

    def run(self, body: Sequence[Stmt]) -> None:
        """Emits statements of the body that was planned."""
        for statement in body:
            if not isinstance(statement, Store):
                self._write()
            self._statement(statement)
        self._write()

    def _write(self) -> None:
        store(self._env, self._waiting)
        self._waiting.clear()

    def _statement(self, node: Stmt) -> None:
        code, values = self._indices.code, self._values
        match node:
            case Load() | Store() | Prefetch():
                self._access(node)
            case Compute():
                args = {n: values[block] for n, block in enumerate(node.args)}
                values[node.out] = compute(self._indices, node, args)
            case Contract():
                operands = (values[node.acc], values[node.a], values[node.b])
                values[node.out] = contract(code, node, *operands)
            case Reduce():
                parts = [values[block] for block in node.blocks]
                for out, value in zip(node.outs, reduce(code, node, parts), strict=True):
                    values[out] = value
            case Broadcast():
                values[node.out] = broadcast(code, node, values[node.block])
            case Relayout():
                values[node.out] = relayout(code, node, values[node.block])
            case Loop():
                self._loop(node)
            case If():
                self._if(node)
            case Sync():
                pass
            case _:
                assert_never(node)

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
        bf16_rows = node.out.dtype is BF16 and not scalars
        rows = load_rows(self._env, node) if bf16_rows else None
        return load(self._env, node, scalars) if rows is None else rows

    # ---- control ------------------------------------------------------------------------------

    def _loop(self, node: Loop) -> None:
        code, indices = self._indices.code, self._indices
        start, stop = indices.emit(node.start), indices.emit(node.stop)
        if not node.inits and as_int(node.stop - node.start) == node.step:
            self._bind_counter(node, start, start)
            self.run(node.body)
            return
        inits = [self._canonical(self._values[block]) for block in node.inits]
        always = _runs(node)
        name = code.fresh("loop")
        before = code.label
        if always:
            code.jump(name)
        else:
            some = code.compare("icmp slt", start, stop)
            code.branch(some, name, f"{name}.done")
        code.place(name)
        counter = code.emit("i64", 1, "")
        counter_line = len(code.lines) - 1
        carried, lines = [], []
        for block, init in zip(node.carried, inits, strict=True):
            regs = []
            for reg in init.regs:
                regs.append(code.emit(reg.elem, reg.width, ""))
                lines.append(len(code.lines) - 1)
            carried.append(RegisterBlock(init.dtype, init.shape, init.chunks, tuple(regs)))
            self._values[block] = carried[-1]
        with code.scope():
            self._bind_counter(node, counter, start)
            self.run(node.body)
            yields = [self._canonical(self._values[block]) for block in node.yields]
            after = code.op("add nsw", counter, node.step)
            more = code.compare("icmp slt", after, stop)
        latch = code.label
        code.void(f"br {more}, label %{name}, label %{name}.done, !llvm.loop !0")
        code.lines[counter_line] = _phi(counter, (start, before), (after, latch))
        pairs = [
            (reg, first, last)
            for value, init, final in zip(carried, inits, yields, strict=True)
            for reg, first, last in zip(value.regs, init.regs, final.regs, strict=True)
        ]
        for line, (reg, first, last) in zip(lines, pairs, strict=True):
            code.lines[line] = _phi(reg, (first, before), (last, latch))
        code.place(f"{name}.done")
        for block, init, final in zip(node.results, inits, yields, strict=True):
            regs_out = final.regs
            if not always:
                regs_out = tuple(
                    code.emit(
                        last.elem, last.width, _incoming(last, (first, before), (last, latch))
                    )
                    for first, last in zip(init.regs, final.regs, strict=True)
                )
            self._values[block] = RegisterBlock(final.dtype, final.shape, final.chunks, regs_out)

    def _bind_counter(self, node: Loop, counter: Reg, start: Reg) -> None:
        """Names the loop variable, and the trip number behind it for the simplifier."""
        indices, code = self._indices, self._indices.code
        indices.values[node.var.name] = counter
        extent = (node.stop - node.start) // node.step
        trip = iterator(f"{node.var.name}.trip", extent)
        indices.steps[node.var] = node.start + node.step * trip
        passed = code.op("sub nsw", counter, start)
        number = code.op("udiv exact", passed, node.step)
        indices.values[f"{node.var.name}.trip"] = number

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
        """The value in the chunks that all that a loop carries has."""
        code = self._indices.code
        return in_chunks(code, value, carried_chunks(last_axis(value.shape), code.module.lanes))


def _runs(node: Loop) -> bool:
    """Whether the loop is known to run at least once."""
    trips = as_int(node.stop - node.start)
    return trips is not None and trips > 0


def _incoming(reg: Reg, *edges: tuple[Reg, str]) -> str:
    return f"phi {reg.type} " + ", ".join(f"[ {r.text}, %{label} ]" for r, label in edges)


def _phi(reg: Reg, *edges: tuple[Reg, str]) -> str:
    return f"  {reg.text} = {_incoming(reg, *edges)}"
