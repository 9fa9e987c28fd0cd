"""Prints a scalar tile kernel as one C function.

The parallel axes become loops around the statements. Blocks have one element, so a block becomes a
variable, a constant, or a name for another variable. Only blocks that fill the padding of scratch
have several elements, which all are the same constant.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from math import prod
from typing import assert_never

from tcc.backends.c.indices import IndexText
from tcc.backends.c.lines import Lines
from tcc.backends.c.names import CNames
from tcc.backends.c.scalars import scalar_text
from tcc.backends.c.simplify import simplified
from tcc.backends.c.types import from_memory, literal, memory_type, to_memory, value_type
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Const, apply, argument, cast, substitute_indices
from tcc.ir.index import Index, Var, as_int, const, substitute, var_of
from tcc.ir.layout import row_major_position
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    MemorySpace,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileBuffer,
    TileKernel,
    TileLoop,
    lanes,
)
from tcc.zipped import zip_equal

_NAMES = {MemorySpace.INPUT: "in", MemorySpace.OUTPUT: "out", MemorySpace.LOCAL: "scratch"}


@frozen
class KernelFunction:
    """The C function of a kernel, with its `name` and its `text`.

    `buffers` are pairs: the position of a buffer among the kernel's buffers, and the buffer.
    `sizes` are the positions of the sizes that are used. `scratch` is the size of the static arrays
    in bytes.
    """

    name: str
    text: str
    buffers: tuple[tuple[int, TileBuffer], ...]
    sizes: tuple[int, ...]
    scratch: int


class KernelPrinter(Lines):
    """Prints the statements of a kernel as C."""

    def __init__(self, kernel: TileKernel) -> None:
        super().__init__()
        self._kernel, self._taken = kernel, CNames()
        self._variables: dict[str, str] = {}
        self._buffers: dict[TileBuffer, str] = {}
        self._blocks: dict[Block, str] = {}
        self._index = IndexText(lambda var: self._variables[var.name])
        for number, buffer in enumerate(kernel.buffers):
            self._buffers[buffer] = self._taken.fresh(f"{_NAMES[buffer.scope]}{number}")
        for number, buffer in enumerate(kernel.locals):
            self._buffers[buffer] = self._taken.fresh(f"scratch{number}")
        for var in kernel.sizes:
            self._variables[var.name] = self._taken.fresh(var.name)

    def function(self, name: str, comment: Sequence[str]) -> KernelFunction:
        """Returns the kernel as the C function `name`, with `comment` above it and without
        unused buffers.

        Raises InternalError if a block has more than one element.
        """
        kernel = self._kernel
        with ExitStack() as loops:
            for axis in kernel.axes:
                loops.enter_context(self._for(axis, const(0), extent(axis), 1))
            self._body(kernel.body)
        lines = simplified(self._lines)
        words = set(re.findall(r"\w+", " ".join(lines)))
        buffers = [(n, b) for n, b in enumerate(kernel.buffers) if self._buffers[b] in words]
        sizes = [n for n, v in enumerate(kernel.sizes) if self._variables[v.name] in words]
        parameters = [
            f"{'const ' * (b.scope is MemorySpace.INPUT)}{memory_type(b.dtype)} *{self._buffers[b]}"
            for _, b in buffers
        ]
        parameters += [f"int64_t {self._variables[kernel.sizes[n].name]}" for n in sizes]
        local = [b for b in kernel.locals if self._buffers[b] in words]
        scratch = sum(_count(b) * b.dtype.bytes for b in local)
        head = f"static void {name}({', '.join(parameters) or 'void'})"
        declarations = (self._local(buffer, lines) for buffer in local)
        text = "\n".join([*comment, head, "{", *declarations, *lines, "}"])
        return KernelFunction(name, text, tuple(buffers), tuple(sizes), scratch)

    def _local(self, buffer: TileBuffer, lines: Sequence[str]) -> str:
        kind, name = memory_type(buffer.dtype), self._buffers[buffer]
        text = f"    static {kind} {name}[{_count(buffer)}];"
        is_read = any(f"{name}[" in line.partition(" = ")[2] for line in lines)
        return text if is_read else f"{text}\n    (void){name}; /* nothing reads it */"

    # ---- loops, names and values -----------------------------------------------------------------

    def _for(self, var: Var, start: Index, stop: Index, step: int) -> AbstractContextManager[None]:
        start_text, stop_text = self._index(start), self._index(stop)
        name = self._variables[var.name] = self._taken.fresh(var.name)
        increment = f"{name}++" if step == 1 else f"{name} += {step}"
        return self._braces(
            f"for (int32_t {name} = {start_text}; {name} < {stop_text}; {increment})"
        )

    def _temporary(self, kind: str, text: str) -> str:
        name = self._taken.fresh("t")
        self._line(f"const {kind} {name} = {text};")
        return name

    def _define(self, block: Block, text: str) -> None:
        """Declares a C variable that holds the block."""
        name = self._blocks[_scalar(block)] = self._taken.fresh("v")
        self._line(f"const {value_type(block.dtype)} {name} = {text};")

    def _value(self, block: Block) -> str:
        return self._blocks[_scalar(block)]

    # ---- statements ------------------------------------------------------------------------

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
                for out, block in zip_equal(node.outs, node.blocks):
                    self._blocks[out] = self._value(block)
            case Broadcast() | Relayout():
                self._blocks[node.out] = self._value(node.block)
            case TileLoop():
                self._loop(node)
            case If():
                condition = f"{self._index(node.lhs)} < {self._index(node.rhs)}"
                self._if(condition, node.then, node.otherwise)
            case Prefetch() | Sync():
                pass
            case _:
                assert_never(node)

    def _place(self, node: Load | Store, shape: tuple[int, ...]) -> tuple[str, str]:
        """Returns the C text of an element, and of the condition for its access ("" for always)."""
        mapping = _lanes_at_zero(shape)
        for var, block in node.indirect:
            self._variables[var.name] = f"(int64_t){self._value(block)}"
        flat = substitute(row_major_position(node.indices, node.buffer.sizes), mapping)
        condition = " && ".join(
            self._index.guard(substitute(g.index, mapping), substitute(g.extent, mapping))
            for g in node.guards
        )
        return f"{self._buffers[node.buffer]}[{self._index(flat)}]", condition

    def _load(self, node: Load) -> None:
        place, guard = self._place(node, node.out.shape)
        text, dtype = from_memory(place, node.out.dtype), node.out.dtype
        self._define(node.out, f"{guard} ? {text} : {literal(node.fill, dtype)}" if guard else text)

    def _store(self, node: Store) -> None:
        """Stores a block.

        All elements of a block with several elements are the same constant, so C loops store it.
        """
        with ExitStack() as loops:
            for var in map(var_of, lanes(node.block.shape)):
                if var is not None and extent(var) is not const(1):
                    loops.enter_context(self._for(var, const(0), extent(var), 1))
            place, guard = self._place(node, node.block.shape)
            text = f"{place} = {to_memory(self._blocks[node.block], node.block.dtype)};"
            self._line(f"if ({guard}) {text}" if guard else text)

    def _compute(self, node: Compute) -> None:
        body = substitute_indices(node.body, _lanes_at_zero(node.out.shape))
        if isinstance(body, Const):
            self._blocks[node.out] = literal(body.value, body.dtype)
        else:
            args = list(map(self._value, node.args))
            self._define(node.out, scalar_text(body, args, self._index, self._temporary))

    def _contract(self, node: Contract) -> None:
        dtype = node.acc.dtype
        acc, a, b = (argument(n, x.dtype) for n, x in enumerate((node.acc, node.a, node.b)))
        body = apply("add", acc, apply("mul", cast(a, dtype), cast(b, dtype)))
        self._compute(Compute(node.out, body, (node.acc, node.a, node.b)))

    def _loop(self, node: TileLoop) -> None:
        sums = []
        for carried, init, result in zip_equal(node.carried, node.inits, node.results):
            name = self._taken.fresh("sum" if carried.dtype.is_float else "s")
            self._line(f"{value_type(carried.dtype)} {name} = {self._value(init)};")
            self._blocks[carried] = self._blocks[result] = name
            sums.append(name)
        with self._for(node.var, node.start, node.stop, node.step):
            self._body(node.body)
            values = list(map(self._value, node.yields))
            for n, text in enumerate(values):
                # The new value is another carried variable, which the lines below may overwrite
                # before they read it. So it is copied first.
                if text in sums and text != sums[n]:
                    values[n] = self._temporary(value_type(node.carried[n].dtype), text)
            for name, text in zip_equal(sums, values):
                if text != name:
                    self._line(f"{name} = {text};")


def _scalar(block: Block) -> Block:
    if prod(block.shape) != 1:
        raise InternalError(f"block {block.name} is no scalar", where="backends/c")
    return block


def _count(buffer: TileBuffer) -> int:
    count = as_int(prod(buffer.sizes, start=const(1)))
    if count is None:
        raise InternalError("a kernel's scratch has a symbolic size", where="backends/c")
    return max(count, 1)


def _lanes_at_zero(shape: tuple[int, ...]) -> dict[Var, Index]:
    variables = (var_of(lane) for lane in lanes(shape))
    return {v: const(0) for v in variables if v is not None and extent(v) is const(1)}
