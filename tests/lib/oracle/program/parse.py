"""Parses host programs in the text of `tcc.ir.program.text`.

The parser builds exactly the text; `tcc.ir.program.verify` checks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tcc.ir.program import Buffer, Instr, Port, Program, RankGroup, TensorRef
from tcc.ir.program.table import ENUMS, INSTRUCTIONS, PLACES, Field, FieldCount, Kind, Row

from tests.lib.oracle.expr.parse import read_dtype
from tests.lib.oracle.index.parse import read_end
from tests.lib.oracle.index.tokens import Cursor

_T = TypeVar("_T")


def parse_program(text: str) -> Program:
    """Parses the output of `program_text`.

    Raises `UserError` with the line and column of the first error.
    """
    cursor = Cursor(text)
    program = _Parser(cursor).program()
    read_end(cursor)
    return program


def _by_word(rows: Sequence[Row]) -> Mapping[str, Row]:
    """Returns rows by the first word of their texts."""
    texts = ("".join(part for part in row.text if isinstance(part, str)) for row in rows)
    return {re.findall("[a-z]+", text)[0]: row for text, row in zip(texts, rows, strict=True)}


_INSTRUCTIONS, _PLACES = _by_word(INSTRUCTIONS), _by_word(PLACES)


class _Parser:
    """A parser of one text."""

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
        arena = self._value(Kind.USED)
        inputs = self._repeated("input", self._port)
        outputs = self._repeated("output", self._port)
        kernels = self._repeated("kernel", lambda: cursor.kind("string"))
        buffers: list[Buffer] = []
        while cursor.take("buffer"):
            if self._value(Kind.READ) != len(buffers):
                raise cursor.error(f"buffer b{len(buffers)} is due")
            cursor.expect("=")
            place = self._node(_PLACES, "no place has this form")
            buffers.append(Buffer(place, cursor.kind("string")))
        groups = self._repeated("group", self._group)
        body = self._body()
        return Program(
            inputs, outputs, registers, tuple(buffers), kernels, scratch, arena, body, groups
        )

    def _group(self) -> RankGroup:
        name, lists = self._cursor.kind("string"), []
        while self._cursor.at("("):
            lists.append(self._listed(self._cursor.integer))
        return RankGroup(name, tuple(lists))

    def _repeated(self, word: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        nodes: list[_T] = []
        while self._cursor.take(word):
            nodes.append(item())
        return tuple(nodes)

    def _listed(self, item: Callable[[], _T], ends: str = "()") -> tuple[_T, ...]:
        self._cursor.expect(ends[0])
        return self._cursor.items(ends[1], item)

    def _port(self) -> Port:
        cursor = self._cursor
        name = cursor.kind("string")
        cursor.expect(":")
        dtype, dims, text = read_dtype(cursor), self._dims(), cursor.kind("string")
        return Port(name, dtype, dims, text, cursor.integer() if cursor.take("state") else -1)

    def _dims(self) -> tuple[int, ...]:
        return self._listed(partial(self._value, Kind.USED), "[]")

    # ---- instructions and places ---------------------------------------------------------------

    def _body(self) -> tuple[Instr, ...]:
        self._cursor.expect("{")
        instructions: list[Instr] = []
        while not self._cursor.take("}"):
            instructions.append(self._node(_INSTRUCTIONS, "no instruction has this name"))
        return tuple(instructions)

    def _node(self, rows: Mapping[str, Row], unknown: str) -> Any:
        """Parses an instruction or a place by its word, which may stand behind a register and
        `=`."""
        cursor = self._cursor
        token = cursor.peek(2 if cursor.peek(1).text == "=" else 0)
        row = rows.get(token.text)
        if row is None:
            raise cursor.error(unknown, token)
        values: dict[str, Any] = {"op": row.operation} if row.operation else {}
        for part in row.text:
            if isinstance(part, Field):
                values[part.name] = self._field(part)
                continue
            for word in re.findall(r"\w+|[^\w\s]", part):
                cursor.expect(word)
        return row.node(**values)

    def _field(self, field: Field) -> Any:
        kind, cursor = field.kind, self._cursor
        if kind is Kind.BODY:
            return self._body()
        if field.form is FieldCount.TENSORS:
            return self._listed(partial(self._tensor, kind))
        if field.form is FieldCount.MANY:
            return self._listed(partial(self._value, kind))
        if kind.absent is not None:
            is_next = cursor.peek().text[:1] == kind.letter
            has_lead = cursor.take(field.lead) if field.lead else is_next
            if kind is Kind.FLAG:
                return has_lead
            if not has_lead:
                return kind.absent
        return self._value(kind)

    def _tensor(self, kind: Kind) -> TensorRef:
        buffer = self._value(kind)
        self._cursor.expect(":")
        return TensorRef(buffer, read_dtype(self._cursor), self._dims())

    def _value(self, kind: Kind) -> Any:
        cursor = self._cursor
        match kind:
            case Kind.STRING | Kind.FUNCTION:
                return cursor.kind("string")
            case Kind.DTYPE | Kind.INTEGER:
                return read_dtype(cursor)
            case _ if kind in ENUMS:
                return self._named(kind)
            case _:
                return self._numbered(kind.letter) if kind.letter else cursor.integer()

    def _named(self, kind: Kind) -> Any:
        token, members = self._cursor.peek(), ENUMS[kind].__members__
        name = self._cursor.kind("word").upper()
        if name not in members:
            raise self._cursor.error(f"no {kind.text} has this name", token)
        return members[name]

    def _numbered(self, letter: str) -> int:
        """Parses `b3` as 3, and `none` as no register (-1)."""
        if letter == "r" and self._cursor.take("none"):
            return -1
        token = self._cursor.peek()
        word = self._cursor.kind("word")
        if word[:1] != letter or not word[1:].isdigit():
            raise self._cursor.error(f"{letter}0, {letter}1, ... is due", token)
        return int(word[1:])
