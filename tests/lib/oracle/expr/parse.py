"""Parses tensor expressions in the text of `tcc.ir.graph.text`.

Each function takes a `Cursor` and leaves it behind the parsed text; `UserError` says where a text
is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan

from tcc.ir.expr import MONOIDS, Expr, Stage
from tcc.ir.expr.scalar import (
    FUNCTIONS,
    Scalar,
    Source,
    StageRef,
    apply,
    argument,
    cast,
    index_value,
    literal,
    read,
)
from tcc.ir.graph.text import INFIX
from tcc.ir.index import Index, Var, free_vars, iterator
from tcc.ir.lists import NOTHING, Dims, optional_of, sequence_of
from tcc.ir.types import DTYPES, DType, TensorType

from tests.lib.oracle.index.parse import read_end, read_index, read_sizes, read_symbol
from tests.lib.oracle.index.tokens import Cursor

_FUNCTION_OF = {mark: name for name, mark in INFIX.items()}


def parse_expr(text: str) -> Expr:
    """Parses the output of `expr_text`; does not verify the stages."""
    cursor = Cursor(text)
    expr = read_expr(cursor, read_sizes(cursor))
    read_end(cursor)
    return expr


def read_dtype(cursor: Cursor) -> DType:
    token = cursor.peek()
    name = cursor.kind("word")
    if name in ("optional", "sequence"):
        return _read_list_type(cursor, name)
    if name not in DTYPES:
        raise cursor.error("no element type has this name", token)
    return DTYPES[name]


def _read_list_type(cursor: Cursor, name: str) -> DType:
    """Parses `sequence(f32[2,?])` behind its first word."""
    token = cursor.peek()
    cursor.expect("(")
    make = optional_of if name == "optional" else sequence_of
    item = read_dtype(cursor)
    dims = _read_entry_sizes(cursor) if cursor.take("[") else None
    cursor.expect(")")
    try:
        return make(item, dims)
    except ValueError as error:
        raise cursor.error(str(error), token) from error


def _read_entry_sizes(cursor: Cursor) -> Dims:
    if cursor.take("-"):
        cursor.expect("]")
        return NOTHING
    return cursor.items("]", lambda: None if cursor.take("?") else cursor.integer())


def read_type(cursor: Cursor, sizes: Mapping[str, Index]) -> TensorType:
    """Parses `f32[n,4]`."""
    dtype = read_dtype(cursor)
    cursor.expect("[")
    return TensorType(dtype, cursor.items("]", lambda: read_index(cursor, sizes)))


def read_number(cursor: Cursor) -> bool | int | float:
    """Parses a number such as `true`, `-3`, `0.5`, `-inf` or `nan`."""
    if cursor.at("true", "false"):
        return cursor.next().text == "true"
    sign = -1 if cursor.take("-") else 1
    if cursor.at("inf", "nan"):
        return sign * (inf if cursor.next().text == "inf" else nan)
    text = cursor.kind("number")
    return sign * (int(text) if text.isdigit() else float(text))


# ---- expressions -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scope:
    """The names that a scalar's text may use."""

    params: Sequence[TensorType | None]
    stages: list[Stage]
    variables: dict[str, Index]
    lets: dict[str, Scalar] = field(default_factory=dict)


def read_expr(cursor: Cursor, sizes: Mapping[str, Index]) -> Expr:
    cursor.expect("expr")
    cursor.expect("(")
    params: list[TensorType | None] = []
    while not cursor.take(")"):
        if params:
            cursor.expect(",")
        cursor.expect(f"p{len(params)}")
        cursor.expect(":")
        params.append(None if cursor.take("none") else read_type(cursor, sizes))
    cursor.expect("{")
    stages: list[Stage] = []
    while not cursor.take("return"):
        cursor.expect(f"s{len(stages)}")
        stages.append(_stage(cursor, _Scope(params, stages, dict(sizes))))
    scope = _Scope(params, stages, {})
    outputs: list[StageRef] = []
    while not cursor.take("}"):
        if outputs:
            cursor.expect(",")
        token = cursor.peek()
        source = _source(cursor, scope)[0]
        if not isinstance(source, StageRef):
            raise cursor.error("outputs are stages", token)
        outputs.append(source)
    return Expr(tuple(params), tuple(stages), tuple(outputs))


def _stage(cursor: Cursor, scope: _Scope) -> Stage:
    cursor.expect("[")
    iters = _iterators(cursor, scope, "]")
    cursor.expect("=")
    monoid: str | None = None
    over: tuple[Var, ...] = ()
    if _at_reduction(cursor):
        name = cursor.next().text
        monoid = None if name == "none" else name
        cursor.expect("(")
        over = _iterators(cursor, scope, ")")
    _lets(cursor, scope)
    return Stage(iters, over, monoid, cursor.some(lambda: _scalar(cursor, scope)))


def _lets(cursor: Cursor, scope: _Scope) -> None:
    while cursor.take("let"):
        name = cursor.kind("word")
        cursor.expect("=")
        scope.lets[name] = _scalar(cursor, scope)
        cursor.expect("in")


def read_body(cursor: Cursor, variables: Mapping[str, Index]) -> Scalar:
    """Parses a scalar without reads, and the `let`s before it."""
    scope = _Scope((), [], dict(variables))
    _lets(cursor, scope)
    return _scalar(cursor, scope)


def read_iterator(cursor: Cursor, variables: dict[str, Index]) -> Var:
    """Parses `i0: 0..n` and adds the variable to `variables`."""
    return _iterator(cursor, _Scope((), [], variables))


def _at_reduction(cursor: Cursor) -> bool:
    """Distinguishes `max(i0: 0..n) body` and `sum() body` from the function `max(a, b)`."""
    if not cursor.at(*MONOIDS, "none") or cursor.peek(1).text != "(":
        return False
    return cursor.peek(2).text == ")" or [cursor.peek(n).text for n in (3, 5)] == [":", ".."]


def _iterators(cursor: Cursor, scope: _Scope, end: str) -> tuple[Var, ...]:
    return cursor.items(end, lambda: _iterator(cursor, scope))


def _iterator(cursor: Cursor, scope: _Scope) -> Var:
    """Parses `i0: 0..n`, or `t0 in [lo,hi]` for other variables, and adds the variable to the
    scope."""
    name = cursor.kind("word", "string")
    if cursor.take(":"):
        if cursor.integer() != 0:
            raise cursor.error("iterators start at 0")
        cursor.expect("..")
        index = iterator(name, read_index(cursor, scope.variables))
    else:
        index = read_symbol(cursor, name)
    scope.variables[name] = index
    return free_vars(index)[0]


def _scalar(cursor: Cursor, scope: _Scope) -> Scalar:
    """Parses an operand, or two operands with an infix operator between them."""
    operand = _operand(cursor, scope)
    if cursor.at(*_FUNCTION_OF):
        function = _FUNCTION_OF[cursor.next().text]
        return apply(function, operand, _operand(cursor, scope))
    return operand


def _operand(cursor: Cursor, scope: _Scope) -> Scalar:
    if cursor.take("("):
        inner = _scalar(cursor, scope)
        cursor.expect(")")
        return inner
    token, after = cursor.peek(), cursor.peek(1)
    if token.kind == "number" or cursor.at("-", "true", "false", "inf", "nan"):
        value = read_number(cursor)
        return literal(value, _of_type(cursor))
    if after.text == "[":
        return _read(cursor, scope)
    if after.text == "(":
        return _call(cursor, scope)
    name = cursor.kind("word")
    if name not in scope.lets:
        raise cursor.error("no scalar has this name", token)
    return scope.lets[name]


def _of_type(cursor: Cursor) -> DType:
    cursor.expect(":")
    return read_dtype(cursor)


def _call(cursor: Cursor, scope: _Scope) -> Scalar:
    token = cursor.peek()
    name = cursor.kind("word")
    cursor.expect("(")
    if name == "index":
        index = read_index(cursor, scope.variables)
        cursor.expect(")")
        return index_value(index, _of_type(cursor))
    if name == "arg":
        number = cursor.integer()
        cursor.expect(")")
        return argument(number, _of_type(cursor))
    if name == "cast":
        inner = _scalar(cursor, scope)
        cursor.expect(",")
        dtype = read_dtype(cursor)
        cursor.expect(")")
        return cast(inner, dtype)
    args = cursor.items(")", lambda: _scalar(cursor, scope))
    if name not in FUNCTIONS or FUNCTIONS[name].arity != len(args):
        raise cursor.error(f"no function has this name and {len(args)} arguments", token)
    return apply(name, *args)


def _source(cursor: Cursor, scope: _Scope) -> tuple[Source, DType]:
    token = cursor.peek()
    name = cursor.kind("word")
    number, _, component = name[1:].partition(".")
    if number.isdigit() and (not component or component.isdigit()):
        n, c = int(number), int(component or 0)
        param = scope.params[n] if name[0] == "p" and n < len(scope.params) else None
        if param is not None and not component:
            return n, param.dtype
        if name[0] == "s" and n < len(scope.stages) and c < len(scope.stages[n].body):
            return StageRef(n, c), scope.stages[n].body[c].dtype
    raise cursor.error("no operand or earlier stage has this name", token)


def _read(cursor: Cursor, scope: _Scope) -> Scalar:
    """Parses `p0[t0,i1 | fill 0.0 | t0: 0..n = p1[i0]]`; the last part is parsed first."""
    source, dtype = _source(cursor, scope)
    start = cursor.position
    _skip_to_bindings(cursor)
    fill: bool | int | float | None = None
    indirect: list[tuple[Var, Scalar]] = []
    inner = _Scope(scope.params, scope.stages, dict(scope.variables), scope.lets)
    while cursor.take("|"):
        if cursor.take("fill"):
            fill = read_number(cursor)
            continue
        var = _iterator(cursor, inner)
        cursor.expect("=")
        indirect.append((var, _scalar(cursor, scope)))
    end = cursor.position
    cursor.expect("]")
    cursor.position = start + 1
    indices: list[Index] = []
    while not cursor.at("|", "]"):
        if indices:
            cursor.expect(",")
        indices.append(read_index(cursor, inner.variables))
    cursor.position = end + 1
    return read(source, tuple(indices), dtype, fill=fill, indirect=tuple(indirect))


def _skip_to_bindings(cursor: Cursor) -> None:
    cursor.expect("[")
    while not cursor.at("|", "]"):
        if cursor.peek().kind == "end":
            raise cursor.error("']' is due")
        cursor.next()
