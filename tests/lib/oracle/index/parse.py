"""Parses index expressions and the facts of sizes in the text of `tcc.ir.index.text`.

Each function takes a `Cursor` and leaves it behind the parsed text; `UserError` says where a text
is wrong. The simplifier builds index expressions, so any Python-like spelling is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from tcc.ir.index import (
    Index,
    as_int,
    const,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    symbol,
)

from tests.lib.oracle.index.tokens import Cursor


def parse_index(text: str, variables: Mapping[str, Index]) -> Index:
    """Parses the index expression `text` over variables by name."""
    cursor = Cursor(text)
    index = read_index(cursor, variables)
    read_end(cursor)
    return index


def read_end(cursor: Cursor) -> None:
    if cursor.peek().kind != "end":
        raise cursor.error("the text should end here")


def read_index(cursor: Cursor, variables: Mapping[str, Index]) -> Index:
    total = const(0)
    sign = -1 if cursor.take("-") else 1
    while True:
        total = total + mul(_term(cursor, variables), sign)
        if not cursor.at("+", "-"):
            return total
        sign = 1 if cursor.next().text == "+" else -1


def _term(cursor: Cursor, variables: Mapping[str, Index]) -> Index:
    value = _factor(cursor, variables)
    while cursor.at("*", "//", "%"):
        mark = cursor.next()
        other = _factor(cursor, variables)
        if mark.text == "*":
            value = value * other
            continue
        if (as_int(other) or 1) <= 0 or other is const(0):
            raise cursor.error("divisors are positive", mark)
        value = (floordiv if mark.text == "//" else mod)(value, other)
    return value


def _factor(cursor: Cursor, variables: Mapping[str, Index]) -> Index:
    if cursor.take("("):
        value = read_index(cursor, variables)
        cursor.expect(")")
        return value
    if cursor.at("min", "max") and cursor.peek(1).text == "(":
        which = minimum if cursor.next().text == "min" else maximum
        cursor.expect("(")
        a = read_index(cursor, variables)
        cursor.expect(",")
        b = read_index(cursor, variables)
        cursor.expect(")")
        return which(a, b)
    if cursor.peek().kind == "number":
        return const(cursor.integer())
    token = cursor.peek()
    name = cursor.kind("word", "string")
    if name not in variables:
        raise cursor.error("no size or iterator has this name", token)
    return variables[name]


def read_sizes(cursor: Cursor) -> dict[str, Index]:
    """Parses the `size` lines at the head of a text."""
    sizes: dict[str, Index] = {}
    while cursor.at("size"):
        cursor.next()
        token = cursor.peek()
        name = cursor.kind("word", "string")
        if name in sizes:
            raise cursor.error("a size is declared once", token)
        sizes[name] = read_symbol(cursor, name)
    return sizes


def read_symbol(cursor: Cursor, name: str) -> Index:
    """Parses `in [1,64] divisor 4 typical 32`, the facts of the variable `name`."""
    token = cursor.peek()
    cursor.expect("in")
    cursor.expect("[")
    lo = cursor.integer()
    cursor.expect(",")
    hi = None if cursor.at("]") else cursor.integer()
    cursor.expect("]")
    divisor = cursor.integer() if cursor.take("divisor") else 1
    if divisor <= 0 or hi == lo:
        raise cursor.error("a size has a positive divisor and more than one value", token)
    typical = cursor.integer() if cursor.take("typical") else None
    return symbol(name, lo, hi, divisor, typical)
