"""A scalar tile kernel as one C function: its parallel axes are loops around its statements.

Blocks have one element: each is a variable, a constant, or another name of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import assert_never

from tcc.backends.c.indices import IndexText
from tcc.backends.c.names import Names
from tcc.backends.c.scalars import scalar_text
from tcc.backends.c.simplify import simplified
from tcc.backends.c.types import from_memory, literal, memory_type, to_memory, value_type
from tcc.errors import InternalError
from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Const, apply, argument, cast, substitute_indices
from tcc.ir.index import Index, Var, as_int, const, substitute, var_of
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Loop,
    MemorySpace,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileBuffer,
    TileKernel,
    lanes,
)
from tcc.record import record

_NAMES = {MemorySpace.INPUT: "in", MemorySpace.OUTPUT: "out", MemorySpace.LOCAL: "scratch"}


@record
class KernelFunction:
    """A kernel's function `text`, the positions of the buffers and sizes it takes, and the bytes of
    its static `scratch`."""

    text: str
    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    scratch: int


def kernel_function(kernel: TileKernel, name: str, comment: Sequence[str]) -> KernelFunction:
    """The function `name`, with `comment` above it; buffers that nothing reads are left out.

    Raises InternalError for a kernel with blocks of more than one element.
    """
    return _Printer(kernel).function(name, comment)


class _Printer:
    def __init__(self, kernel: TileKernel) -> None:
        self._kernel, self._taken = kernel, Names()
        self._variables: dict[str, str] = {}
        self._buffers: dict[TileBuffer, str] = {}
        self._blocks: dict[Block, str] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._index = IndexText(self._variable)
        for number, buffer in enumerate(kernel.buffers):
            self._buffers[buffer] = self._taken.fresh(f"{_NAMES[buffer.scope]}{number}")
        for number, buffer in enumerate(kernel.locals):
            self._buffers[buffer] = self._taken.fresh(f"scratch{number}")
        for var in kernel.sizes:
            self._variables[var.name] = self._taken.fresh(var.name)

    def function(self, name: str, comment: Sequence[str]) -> KernelFunction:
        kernel = self._kernel
        for axis in kernel.axes:
            self._open_loop(axis, "0", self._index(extent(axis)), 1)
        self._body(kernel.body)
        for _ in kernel.axes:
            self._close()
        self._lines = simplified(self._lines)
        used = set(re.findall(r"\w+", " ".join(self._lines)))
        buffers = [n for n, b in enumerate(kernel.buffers) if self._buffers[b] in used]
        sizes = [n for n, v in enumerate(kernel.sizes) if self._variables[v.name] in used]
        taken = [self._parameter(kernel.buffers[n]) for n in buffers]
        taken += [f"int64_t {self._variables[kernel.sizes[n].name]}" for n in sizes]
        local = [b for b in kernel.locals if self._buffers[b] in used]
        scratch = sum(_count(b) * b.dtype.bytes for b in local)
        head = f"static void {name}({', '.join(taken) or 'void'})"
        text = "\n".join([*comment, head, "{", *map(self._local, local), *self._lines, "}"])
        return KernelFunction(text, tuple(buffers), tuple(sizes), scratch)

    def _parameter(self, buffer: TileBuffer) -> str:
        kind = "const " if buffer.scope is MemorySpace.INPUT else ""
        return f"{kind}{memory_type(buffer.dtype)} *{self._buffers[buffer]}"

    def _local(self, buffer: TileBuffer) -> str:
        kind, name = memory_type(buffer.dtype), self._buffers[buffer]
        text = f"    static {kind} {name}[{_count(buffer)}];"
        read = any(f"{name}[" in line.partition(" = ")[2] for line in self._lines)
        return text if read else f"{text}\n    (void){name}; /* nothing reads it */"

    # ---- text ------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _open_loop(self, var: Var, start: str, stop: str, step: int) -> None:
        name = self._variables[var.name] = self._taken.fresh(var.name)
        after = f"{name}++" if step == 1 else f"{name} += {step}"
        self._open(f"for (int32_t {name} = {start}; {name} < {stop}; {after})")

    def _open(self, head: str) -> None:
        self._line(f"{head} {{")
        self._depth += 1

    def _close(self, otherwise: str = "") -> None:
        self._depth -= 1
        self._line("}" + otherwise)
        self._depth += bool(otherwise)

    def _variable(self, var: Var) -> str:
        return self._variables[var.name]

    def _temporary(self, kind: str, text: str) -> str:
        name = self._taken.fresh("t")
        self._line(f"const {kind} {name} = {text};")
        return name

    def _define(self, block: Block, text: str) -> None:
        """A variable of its own."""
        self._check(block)
        name = self._blocks[block] = self._taken.fresh("v")
        self._line(f"const {value_type(block.dtype)} {name} = {text};")

    def _check(self, *blocks: Block) -> None:
        for block in blocks:
            if prod(block.shape) != 1:
                raise InternalError(f"block {block.name} is no scalar", where="backends/c")

    # ---- statements ------------------------------------------------------------------------

    def _body(self, body: Sequence[Stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: Stmt) -> None:
        match node:
            case Load():
                self._load(node)
            case Store():
                self._store(node)
            case Compute():
                self._compute(node)
            case Contract():
                self._contract(node)
            case Reduce():
                self._check(*node.blocks)
                for out, block in zip(node.outs, node.blocks, strict=True):
                    self._blocks[out] = self._blocks[block]
            case Broadcast() | Relayout():
                self._check(node.out, node.block)
                self._blocks[node.out] = self._blocks[node.block]
            case Loop():
                self._loop(node)
            case If():
                self._open(f"if ({self._index(node.lhs)} < {self._index(node.rhs)})")
                self._body(node.then)
                if node.otherwise:
                    self._close(" else {")
                    self._body(node.otherwise)
                self._close()
            case Prefetch() | Sync():
                pass
            case _:
                assert_never(node)

    def _place(self, node: Load | Store, shape: tuple[int, ...]) -> tuple[str, str]:
        """The element, and the condition under which it is there."""
        at = _lanes_at_zero(shape)
        for var, block in node.indirect:
            self._variables[var.name] = f"(int64_t){self._blocks[block]}"
        flat: Index = const(0)
        for index, size in zip(node.indices, node.buffer.sizes, strict=True):
            flat = flat * size + substitute(index, at)
        guards = [(substitute(g.index, at), substitute(g.extent, at)) for g in node.guards]
        found = " && ".join(self._index.guard(index, stop) for index, stop in guards)
        return f"{self._buffers[node.buffer]}[{self._index(flat)}]", found

    def _load(self, node: Load) -> None:
        place, guard = self._place(node, node.out.shape)
        text, dtype = from_memory(place, node.out.dtype), node.out.dtype
        self._define(node.out, f"{guard} ? {text} : {literal(node.fill, dtype)}" if guard else text)

    def _store(self, node: Store) -> None:
        self._check(node.block)
        place, guard = self._place(node, node.block.shape)
        text = f"{place} = {to_memory(self._blocks[node.block], node.block.dtype)};"
        self._line(f"if ({guard}) {text}" if guard else text)

    def _compute(self, node: Compute) -> None:
        self._check(node.out, *node.args)
        body = substitute_indices(node.body, _lanes_at_zero(node.out.shape))
        args = [self._blocks[block] for block in node.args]
        if isinstance(body, Const):
            self._blocks[node.out] = literal(body.value, body.dtype)
            return
        self._define(node.out, scalar_text(body, args, self._index, self._temporary))

    def _contract(self, node: Contract) -> None:
        self._check(node.out, node.acc, node.a, node.b)
        dtype = node.acc.dtype
        acc, a, b = (argument(n, x.dtype) for n, x in enumerate((node.acc, node.a, node.b)))
        body = apply("add", acc, apply("mul", cast(a, dtype), cast(b, dtype)))
        args = [self._blocks[block] for block in (node.acc, node.a, node.b)]
        self._define(node.out, scalar_text(body, args, self._index, self._temporary))

    def _loop(self, node: Loop) -> None:
        self._check(*node.carried)
        held = []
        for carried, init, result in zip(node.carried, node.inits, node.results, strict=True):
            name = self._taken.fresh("sum" if carried.dtype.is_float else "s")
            self._line(f"{value_type(carried.dtype)} {name} = {self._blocks[init]};")
            self._blocks[carried] = self._blocks[result] = name
            held.append(name)
        start, stop = self._index(node.start), self._index(node.stop)
        self._open_loop(node.var, start, stop, node.step)
        self._body(node.body)
        found = [self._blocks[block] for block in node.yields]
        for n, text in enumerate(found):
            if text in held and text != held[n]:  # it may be assigned before it is read
                dtype = node.carried[n].dtype
                found[n] = self._temporary(value_type(dtype), text)
        for name, text in zip(held, found, strict=True):
            if text != name:
                self._line(f"{name} = {text};")
        self._close()


def _count(buffer: TileBuffer) -> int:
    count = as_int(prod(buffer.sizes, start=const(1)))
    if count is None:
        raise InternalError("a kernel's scratch has a symbolic size", where="backends/c")
    return max(count, 1)


def _lanes_at_zero(shape: tuple[int, ...]) -> dict[Var, Index]:
    found = (var_of(lane) for lane in lanes(shape))
    return {var: const(0) for var in found if var is not None}
