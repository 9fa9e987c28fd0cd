"""Reads host programs in the text of `tcc.ir.program.text`.

Builds what the text says and nothing more; `tcc.ir.program.verify` judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tcc.ir.expr.parse import read_dtype, read_end
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    CallOp,
    Check,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    Place,
    Port,
    Program,
    ReadInt,
    Register,
    Relation,
    State,
    TensorRef,
    View,
    Weight,
)
from tcc.ir.tokens import Cursor

_T = TypeVar("_T")


def parse_program(text: str) -> Program:
    """The program that `program_text` printed.

    Raises `UserError` with the line and column of the first thing that is wrong.
    """
    cursor = Cursor(text)
    program = _Parser(cursor).program()
    read_end(cursor)
    return program


class _Parser:
    """One text being read."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def program(self) -> Program:
        cursor = self._cursor
        cursor.expect("program")
        cursor.expect("registers")
        registers = cursor.integer()
        cursor.expect("scratch")
        scratch = cursor.integer()
        cursor.expect("arena")
        arena = self._register()
        inputs = self._repeated("input", self._port)
        outputs = self._repeated("output", self._port)
        kernels = self._repeated("kernel", lambda: cursor.kind("string"))
        buffers: list[Buffer] = []
        while cursor.take("buffer"):
            self._is_next(self._numbered("b"), len(buffers))
            cursor.expect("=")
            buffers.append(Buffer(self._place(), cursor.kind("string")))
        return Program(
            inputs, outputs, registers, tuple(buffers), kernels, scratch, arena, self._body()
        )

    def _repeated(self, word: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        found: list[_T] = []
        while self._cursor.take(word):
            found.append(item())
        return tuple(found)

    def _listed(self, item: Callable[[], _T], ends: tuple[str, str] = ("(", ")")) -> tuple[_T, ...]:
        self._cursor.expect(ends[0])
        return self._cursor.items(ends[1], item)

    def _is_next(self, number: int, due: int) -> None:
        if number != due:
            raise self._cursor.error(f"buffer b{due} is due")

    def _numbered(self, letter: str) -> int:
        """`b3` as 3."""
        token = self._cursor.peek()
        word = self._cursor.kind("word")
        if word[:1] != letter or not word[1:].isdigit():
            raise self._cursor.error(f"{letter}0, {letter}1, ... is due", token)
        return int(word[1:])

    def _buffer(self) -> int:
        return self._numbered("b")

    def _register(self) -> Register:
        return -1 if self._cursor.take("none") else self._numbered("r")

    def _port(self) -> Port:
        cursor = self._cursor
        name = cursor.kind("string")
        cursor.expect(":")
        dtype = read_dtype(cursor)
        dims = self._listed(self._register, ("[", "]"))
        text = cursor.kind("string")
        return Port(name, dtype, dims, text, cursor.integer() if cursor.take("state") else -1)

    def _place(self) -> Place:
        cursor = self._cursor
        token = cursor.peek()
        kind = cursor.kind("word")
        if kind == "arena":
            offset, size = self._pair(self._listed(self._register))
            return Arena(offset, size)
        numbers = self._listed(cursor.integer)
        match kind, numbers:
            case "input", (port,):
                return Input(port)
            case "output", (port,):
                return Output(port)
            case "weight", (offset, size):
                return Weight(offset, size)
            case "state", (size,):
                return State(size)
            case "dynamic", ():
                return Dynamic()
            case "alias", ():
                return Alias()
        raise cursor.error("no place has this form", token)

    def _pair(self, numbers: tuple[int, ...]) -> tuple[int, int]:
        if len(numbers) != 2:
            raise self._cursor.error("two registers are due")
        return numbers[0], numbers[1]

    # ---- instructions ------------------------------------------------------------------------

    def _body(self) -> tuple[Instr, ...]:
        self._cursor.expect("{")
        found: list[Instr] = []
        while not self._cursor.take("}"):
            found.append(self._instr())
        return tuple(found)

    def _instr(self) -> Instr:
        cursor = self._cursor
        forms: dict[str, Callable[[], Instr]] = {
            "check": self._check,
            "allocate": self._allocate,
            "view": self._view,
            "launch": self._launch,
            "call": self._call,
            "copy": self._copy,
            "branch": self._branch,
            "loop": self._loop,
        }
        form = forms.get(cursor.peek().text)
        if form is not None:
            cursor.next()
            return form()
        target = self._register()
        cursor.expect("=")
        return self._value(target)

    def _value(self, target: Register) -> Let | ReadInt:
        cursor = self._cursor
        token = cursor.peek()
        name = cursor.kind("word")
        if name == "read":
            buffer = self._buffer()
            (element,) = self._listed(cursor.integer, ("[", "]"))
            cursor.expect(":")
            return ReadInt(target, buffer, read_dtype(cursor), element)
        if name.upper() not in IntOp.__members__:
            raise cursor.error("no integer instruction has this name", token)
        op = IntOp[name.upper()]
        if op is IntOp.CONST:
            return Let(target, op, cursor.integer())
        a, b = self._pair(self._listed(cursor.integer if op is IntOp.DIM else self._register))
        return Let(target, op, a, b)

    def _check(self) -> Check:
        a = self._register()
        token = self._cursor.peek()
        name = self._cursor.kind("word").upper()
        if name not in Relation.__members__:
            raise self._cursor.error("no relation has this name", token)
        b = self._register()
        return Check(Relation[name], a, b, self._cursor.kind("string"))

    def _allocate(self) -> Allocate:
        buffer, size = self._buffer(), self._register()
        return Allocate(buffer, size, self._cursor.take("keep"))

    def _view(self) -> View:
        buffer = self._buffer()
        self._cursor.expect("=")
        base = self._buffer()
        self._cursor.expect("+")
        return View(buffer, base, self._register())

    def _launch(self) -> Launch:
        kernel, grid = self._numbered("k"), self._register()
        buffers, ints = self._listed(self._buffer), self._listed(self._register)
        least = self._cursor.integer() if self._cursor.take("least") else 1
        return Launch(kernel, grid, buffers, ints, least)

    def _call(self) -> CallOp:
        op = self._cursor.kind("string")
        inputs, outputs = self._listed(self._tensor), self._listed(self._tensor)
        ints = self._listed(self._cursor.integer)
        return CallOp(op, inputs, outputs, ints, self._listed(self._register))

    def _tensor(self) -> TensorRef:
        buffer = self._buffer()
        self._cursor.expect(":")
        dtype = read_dtype(self._cursor)
        return TensorRef(buffer, dtype, self._listed(self._register, ("[", "]")))

    def _copy(self) -> Copy:
        target = self._buffer()
        self._cursor.expect("=")
        source = self._buffer()
        return Copy(target, source, self._register())

    def _branch(self) -> Branch:
        sizes_decide = self._cursor.peek().text[:1] == "r"
        when = self._register() if sizes_decide else -1
        condition = -1 if sizes_decide else self._buffer()
        then = self._body()
        self._cursor.expect("else")
        return Branch(condition, then, self._body(), when)

    def _loop(self) -> Loop:
        counter = self._register()
        self._cursor.expect("<")
        trips = self._register()
        condition = self._buffer() if self._cursor.take("while") else -1
        return Loop(trips, condition, counter, self._body())
