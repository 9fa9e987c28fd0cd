"""Parses tile kernels in the text of `tcc.ir.tile.text`.

The parser builds exactly the text; `tcc.ir.tile.verify` checks it.
"""

from __future__ import annotations

from tcc.ir.index import Index, Var, free_vars
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    Guard,
    If,
    Indirect,
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

from tests.lib.oracle.expr.parse import read_body, read_dtype, read_iterator, read_number, read_type
from tests.lib.oracle.index.parse import read_end, read_index, read_sizes
from tests.lib.oracle.index.tokens import Cursor


def parse_kernel(text: str) -> TileKernel:
    """Parses the output of `kernel_text`.

    Raises `UserError` with the line and column of the first error.
    """
    cursor = Cursor(text)
    kernel = _Parser(cursor, read_sizes(cursor)).kernel()
    read_end(cursor)
    return kernel


class _Parser:
    """A parser of one text: its variables, buffers and blocks by name."""

    def __init__(self, cursor: Cursor, variables: dict[str, Index]) -> None:
        self._cursor, self._variables = cursor, variables
        self._buffers: dict[str, TileBuffer] = {}
        self._blocks: dict[str, Block] = {}

    def kernel(self) -> TileKernel:
        cursor = self._cursor
        cursor.expect("kernel")
        cursor.expect("(")
        sizes = self._cursor.items(")", lambda: free_vars(read_index(cursor, self._variables))[0])
        cursor.expect("parallel")
        cursor.expect("(")
        axes = self._cursor.items(")", lambda: read_iterator(cursor, self._variables))
        cursor.expect("{")
        buffers = []
        while cursor.at(*(s.value for s in MemorySpace)):
            buffers.append(self._buffer())
        passed = tuple(b for b in buffers if b.scope is not MemorySpace.LOCAL)
        local = tuple(b for b in buffers if b.scope is MemorySpace.LOCAL)
        pairs = []
        while cursor.take("place"):
            pairs.append(self._pair(passed))
        past = []
        while cursor.take("nontemporal"):
            past.append(self._passed(passed))
        return TileKernel(passed, local, sizes, axes, self._body(), tuple(pairs), tuple(past))

    def _pair(self, passed: tuple[TileBuffer, ...]) -> tuple[int, int]:
        """Parses `%result over %operand` as positions in `passed`."""
        result = self._passed(passed)
        self._cursor.expect("over")
        return self._passed(passed), result

    def _passed(self, passed: tuple[TileBuffer, ...]) -> int:
        token = self._cursor.peek()
        name = self._cursor.kind("value")
        if self._buffers.get(name) not in passed:
            raise self._cursor.error("no buffer of a launch has this name", token)
        return passed.index(self._buffers[name])

    def _buffer(self) -> TileBuffer:
        scope = MemorySpace(self._cursor.kind("word"))
        name = self._cursor.kind("value")
        self._cursor.expect(":")
        type_ = read_type(self._cursor, self._variables)
        self._cursor.expect("align")
        align = self._cursor.integer()
        self._buffers[name] = TileBuffer(name, type_.dtype, type_.shape, scope, align)
        return self._buffers[name]

    # ---- blocks ----------------------------------------------------------------------------

    def _use(self) -> Block:
        token = self._cursor.peek()
        name = self._cursor.kind("value")
        if name not in self._blocks:
            raise self._cursor.error("no block has this name", token)
        return self._blocks[name]

    def _result(self) -> Block:
        """Parses `%v: f32[2,4]`, which is not visible until it is defined."""
        name = self._cursor.kind("value")
        self._cursor.expect(":")
        dtype = read_dtype(self._cursor)
        self._cursor.expect("[")
        return Block(name, dtype, self._cursor.items("]", self._cursor.integer))

    def _define(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            if block.name in self._blocks:
                raise self._cursor.error(f"%{block.name} was defined before this")
            self._blocks[block.name] = block

    # ---- statements --------------------------------------------------------------------------

    def _body(self) -> tuple[Stmt, ...]:
        """Parses statements up to and including `}`; leaves a `yield` to the loop."""
        statements: list[Stmt] = []
        while not self._cursor.at("}", "yield"):
            statements.append(self._statement())
        if self._cursor.at("}"):
            self._cursor.next()
        return tuple(statements)

    def _statement(self) -> Stmt:
        cursor = self._cursor
        if cursor.take("sync"):
            return Sync()
        if cursor.take("store"):
            block = self._use()
            cursor.expect("to")
            buffer, indices, indirect, variables = self._place(block.shape)
            return Store(buffer, indices, block, self._guards(variables), indirect)
        if cursor.take("prefetch"):
            buffer, indices, indirect, _ = self._place(())
            cursor.expect("level")
            level, write = cursor.integer(), cursor.take("to")
            if write:
                cursor.expect("write")
            return Prefetch(buffer, indices, indirect, level, write)
        if cursor.take("if"):
            return self._if()
        if cursor.at("for"):
            return self._loop(())
        outs = self._cursor.some(self._result)
        cursor.expect("=")
        node = self._loop(outs) if cursor.at("for") else self._value(outs)
        self._define(outs)
        return node

    def _value(self, outs: tuple[Block, ...]) -> Stmt:
        cursor, out = self._cursor, outs[0]
        token = cursor.peek()
        word = cursor.kind("word")
        match word:
            case "load":
                buffer, indices, indirect, variables = self._place(out.shape)
                guards = self._guards(variables)
                fill = read_number(cursor) if cursor.take("fill") else 0
                return Load(out, buffer, indices, guards, fill, indirect)
            case "compute":
                cursor.expect("(")
                args = self._cursor.items(")", self._use)
                return Compute(out, read_body(cursor, self._with_lanes(out.shape)), args)
            case "contract":
                return self._contract(out)
            case "reduce":
                monoid = cursor.kind("word")
                cursor.expect("(")
                blocks = self._cursor.items(")", self._use)
                cursor.expect("over")
                cursor.expect("(")
                return Reduce(outs, monoid, blocks, self._cursor.items(")", cursor.integer))
            case "broadcast":
                return Broadcast(out, self._use())
            case "relayout":
                block = self._use()
                cursor.expect("order")
                cursor.expect("(")
                return Relayout(out, block, self._cursor.items(")", cursor.integer))
        raise cursor.error("no statement has this name", token)

    def _contract(self, out: Block) -> Contract:
        cursor = self._cursor
        a, a_axes = self._labelled()
        cursor.expect("*")
        b, b_axes = self._labelled()
        cursor.expect("+")
        acc, out_axes = self._labelled()
        return Contract(out, acc, a, b, out_axes, a_axes, b_axes)

    def _labelled(self) -> tuple[Block, tuple[str, ...]]:
        block = self._use()
        self._cursor.expect("[")
        return block, self._cursor.items("]", lambda: self._cursor.kind("word"))

    # ---- accesses ------------------------------------------------------------------------------

    def _with_lanes(self, shape: tuple[int, ...]) -> dict[str, Index]:
        return self._variables | {f"l{n}": lane for n, lane in enumerate(lanes(shape))}

    def _place(
        self, shape: tuple[int, ...]
    ) -> tuple[TileBuffer, tuple[Index, ...], Indirect, dict[str, Index]]:
        """Parses `b0[4*i+l0, t0 | t0: 0..n = %v]`; the bindings come last but are parsed first."""
        cursor = self._cursor
        token = cursor.peek()
        name = cursor.kind("value")
        if name not in self._buffers:
            raise cursor.error("no buffer has this name", token)
        variables = self._with_lanes(shape)
        cursor.expect("[")
        start = cursor.position
        while not cursor.at("|", "]"):
            if cursor.peek().kind == "end":
                raise cursor.error("']' is due")
            cursor.next()
        indirect: list[tuple[Var, Block]] = []
        while cursor.take("|"):
            var = read_iterator(cursor, variables)
            cursor.expect("=")
            indirect.append((var, self._use()))
        end = cursor.position
        cursor.expect("]")
        cursor.position = start
        indices: list[Index] = []
        while not cursor.at("|", "]"):
            if indices:
                cursor.expect(",")
            indices.append(read_index(cursor, variables))
        cursor.position = end + 1
        return self._buffers[name], tuple(indices), tuple(indirect), variables

    def _guards(self, variables: dict[str, Index]) -> tuple[Guard, ...]:
        return (
            self._cursor.some(lambda: self._guard(variables)) if self._cursor.take("where") else ()
        )

    def _guard(self, variables: dict[str, Index]) -> Guard:
        if self._cursor.integer() != 0:
            raise self._cursor.error("guards start at 0")
        self._cursor.expect("<=")
        index = read_index(self._cursor, variables)
        self._cursor.expect("<")
        return Guard(index, read_index(self._cursor, variables))

    # ---- control ---------------------------------------------------------------------------------

    def _if(self) -> If:
        cursor = self._cursor
        lhs = read_index(cursor, self._variables)
        cursor.expect("<")
        rhs = read_index(cursor, self._variables)
        cursor.expect("{")
        then = self._body()
        otherwise: tuple[Stmt, ...] = ()
        if cursor.take("else"):
            cursor.expect("{")
            otherwise = self._body()
        return If(lhs, rhs, then, otherwise)

    def _loop(self, results: tuple[Block, ...]) -> TileLoop:
        cursor = self._cursor
        cursor.expect("for")
        outer = dict(self._variables)
        var = read_iterator(cursor, self._variables)
        cursor.expect("in")
        start = read_index(cursor, outer)
        cursor.expect("..")
        stop = read_index(cursor, outer)
        cursor.expect("step")
        step = cursor.integer()
        pairs: tuple[tuple[Block, Block], ...] = ()
        if cursor.take("carry"):
            cursor.expect("(")
            pairs = self._cursor.items(")", self._carried)
        self._define(tuple(c for c, _ in pairs))
        cursor.expect("{")
        body = self._body()
        yields: tuple[Block, ...] = ()
        if cursor.take("yield"):
            yields = self._cursor.some(self._use)
            cursor.expect("}")
        self._variables = outer
        inits, carried = tuple(i for _, i in pairs), tuple(c for c, _ in pairs)
        return TileLoop(var, start, stop, step, inits, carried, body, yields, results)

    def _carried(self) -> tuple[Block, Block]:
        block = self._result()
        self._cursor.expect("=")
        return block, self._use()
