"""Parses graphs in the text of `tcc.ir.graph.text`.

The parser builds exactly the text and takes types as written, so that the verifier can refuse a
wrong graph. A store supplies constants by their digest.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from tcc.errors import UserError
from tcc.ir.expr import Expr
from tcc.ir.graph import ConstantStore, Graph, Handle, Node, Value
from tcc.ir.index import Index
from tcc.ir.op import NoAttrs, OpSpec
from tcc.ir.types import DType, TensorType

from tests.lib.oracle.expr.parse import read_dtype, read_expr, read_number, read_type
from tests.lib.oracle.index.parse import read_end, read_index, read_sizes
from tests.lib.oracle.index.tokens import Cursor


def parse_graph(text: str, table: Mapping[str, OpSpec], store: ConstantStore) -> Graph:
    """Parses the output of `graph_text`, with ops of `table` and constants of `store`.

    Raises `UserError` with the line and column of the first error.
    """
    cursor = Cursor(text)
    sizes = read_sizes(cursor)
    graph = _Parser(cursor, sizes, table, store).graph({})
    read_end(cursor)
    return graph


class _Parser:
    """A parser of one text: its cursor, size symbols, ops and constants."""

    def __init__(
        self,
        cursor: Cursor,
        sizes: Mapping[str, Index],
        table: Mapping[str, OpSpec],
        store: ConstantStore,
    ) -> None:
        self._cursor, self._sizes, self._table, self._store = cursor, sizes, table, store
        self._defined: set[str] = set()
        self._hints: dict[type[Any], dict[str, Any]] = {}
        self._handles: dict[str, list[Handle]] = {}
        for handle in store.handles():
            self._handles.setdefault(handle.digest[:16], []).append(handle)

    # ---- graphs --------------------------------------------------------------------------

    def graph(self, outer: Mapping[str, Value]) -> Graph:
        """Parses a graph; `outer` are the values of the graphs around it."""
        cursor = self._cursor
        cursor.expect("graph")
        name = cursor.kind("word", "number", "string")
        visible = dict(outer)
        cursor.expect("(")
        inputs = self._cursor.items(")", lambda: self._typed(self._definition(), visible))
        cursor.expect("{")
        constants: dict[Value, Handle] = {}
        nodes: list[Node] = []
        aliases: list[tuple[Value, Value]] = []
        while not cursor.take("return"):
            if cursor.take("alias"):
                output = self._value(visible)
                cursor.expect("=")
                aliases.append((output, self._value(visible)))
            elif self._at_constant():
                value, handle = self._constant(visible)
                constants[value] = handle
            else:
                nodes.append(self._node(visible))
        outputs = self._cursor.items("}", lambda: self._value(visible))
        return Graph(name, inputs, outputs, tuple(nodes), constants, self._store, tuple(aliases))

    def _definition(self) -> str:
        token = self._cursor.peek()
        name = self._cursor.kind("value")
        if name in self._defined:
            raise self._cursor.error("a value is defined once", token)
        self._defined.add(name)
        return name

    def _typed(self, name: str, visible: dict[str, Value]) -> Value:
        self._cursor.expect(":")
        visible[name] = Value(name, read_type(self._cursor, self._sizes))
        return visible[name]

    def _value(self, visible: Mapping[str, Value]) -> Value:
        token = self._cursor.peek()
        name = self._cursor.kind("value")
        if name not in visible:
            raise self._cursor.error("no value has this name here", token)
        return visible[name]

    def _at_constant(self) -> bool:
        return self._cursor.peek().kind == "value" and self._cursor.peek(3).kind == "digest"

    def _constant(self, visible: dict[str, Value]) -> tuple[Value, Handle]:
        name = self._definition()
        self._cursor.expect("=")
        self._cursor.expect("const")
        token = self._cursor.peek()
        matches = self._handles.get(self._cursor.kind("digest")[:16], [])
        if len(matches) != 1:
            raise self._cursor.error("the store has not one array of this digest", token)
        self._ranks(matches[0])
        return self._typed(name, visible), matches[0]

    def _ranks(self, handle: Handle) -> None:
        """Parses `on N ranks`, which follows the digest of a constant that differs by rank."""
        token, count = self._cursor.peek(), 1
        if self._cursor.take("on"):
            count = int(self._cursor.kind("number"))
            self._cursor.expect("ranks")
        if count != self._store.ranks(handle):
            raise self._cursor.error("the store has another number of arrays", token)

    def _node(self, visible: dict[str, Value]) -> Node:
        cursor = self._cursor
        names = self._results()
        token = cursor.peek()
        op = self._table.get(cursor.kind("word"))
        if op is None:
            raise cursor.error("no op has this name", token)
        cursor.expect("(")
        inputs = self._cursor.items(
            ")", lambda: None if cursor.take("none") else self._value(visible)
        )
        attrs = self._attrs(op.attrs, visible) if cursor.at("{") else NoAttrs()
        outputs: list[Value] = []
        if names:
            cursor.expect(":")
        for name in names:
            if outputs:
                cursor.expect(",")
            outputs.append(Value(name, read_type(cursor, self._sizes)))
        visible.update(zip(names, outputs, strict=True))
        loc = cursor.next().text if cursor.peek().kind == "location" else ""
        return Node(op, attrs, inputs, tuple(outputs), loc)

    def _results(self) -> list[str]:
        """Parses `%a, %b =`, or nothing for an op without results."""
        names: list[str] = []
        while self._cursor.peek().kind == "value":
            names.append(self._definition())
            if not self._cursor.take(","):
                self._cursor.expect("=")
                break
        return names

    # ---- attributes ----------------------------------------------------------------------

    def _attrs(self, form: type[Any], visible: Mapping[str, Value]) -> Any:
        """Parses `{field=value, ...}` as a dataclass; fields with a default may be absent."""
        cursor = self._cursor
        cursor.expect("{")
        if form not in self._hints:
            self._hints[form] = _hints(form)
        hints = self._hints[form]
        values: dict[str, Any] = {}

        def field() -> None:
            token = cursor.peek()
            name = cursor.kind("word")
            if name not in hints or name in values:
                raise cursor.error(f"{form.__name__} has no such field, or has it twice", token)
            cursor.expect("=")
            values[name] = self._attribute(hints[name], visible)

        self._cursor.items("}", field)
        for f in fields(form):
            if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
                raise cursor.error(f"field {f.name} is missing")
        return form(**values)

    def _attribute(self, hint: Any, visible: Mapping[str, Value]) -> Any:
        """Parses a value of the type `hint`."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._alternative(args, visible)
        if origin is tuple:
            return self._tuple(args, visible)
        if origin is typing.Literal:
            hint = type(args[0])
        if isinstance(hint, type):
            return self._plain(hint, visible)
        raise self._cursor.error(f"attributes of type {hint} have no text")

    def _alternative(self, hints: tuple[Any, ...], visible: Mapping[str, Value]) -> Any:
        """Parses the first alternative that fits and is followed by the end of a value."""
        if type(None) in hints and self._cursor.take("none"):
            return None
        start, defined, error = self._cursor.position, set(self._defined), None
        for hint in (h for h in hints if h is not type(None)):
            try:
                value = self._attribute(hint, visible)
                if self._cursor.at(",", "}", ")"):
                    return value
                error = error or self._cursor.error("',' is due")
            except UserError as found:
                error = error or found
            self._cursor.position, self._defined = start, set(defined)
        raise error or self._cursor.error("'none' is due")

    def _tuple(self, hints: tuple[Any, ...], visible: Mapping[str, Value]) -> tuple[Any, ...]:
        self._cursor.expect("(")
        if len(hints) == 2 and hints[1] is Ellipsis:
            return self._cursor.items(")", lambda: self._attribute(hints[0], visible))
        kinds = list(hints)
        return self._cursor.items(
            ")", lambda: self._attribute(kinds.pop(0) if kinds else None, visible)
        )

    def _plain(self, hint: type[Any], visible: Mapping[str, Value]) -> Any:
        cursor, token = self._cursor, self._cursor.peek()
        if hint in (bool, int, float):
            value = read_number(cursor)
            if type(value) is not hint and (hint, type(value)) != (float, int):
                raise cursor.error(f"a value of type {hint.__name__} is due", token)
            return value
        if hint is str:
            return cursor.kind("string")
        if hint is Index:
            return read_index(cursor, self._sizes)
        if hint is DType:
            return read_dtype(cursor)
        if hint is TensorType:
            return read_type(cursor, self._sizes)
        if hint is Graph:
            return self.graph(visible)
        if hint is Expr:
            return read_expr(cursor, self._sizes)
        if issubclass(hint, Enum):
            name = cursor.kind("word")
            if name not in hint.__members__:
                raise cursor.error(f"{hint.__name__} has no such member", token)
            return hint[name]
        if is_dataclass(hint):
            return self._attrs(hint, visible)
        raise cursor.error(f"attributes of type {hint.__name__} have no text", token)


def _hints(form: type[Any]) -> dict[str, Any]:
    """Returns the field types of a dataclass."""
    hints = typing.get_type_hints(form)
    return {f.name: hints[f.name] for f in fields(form)}
