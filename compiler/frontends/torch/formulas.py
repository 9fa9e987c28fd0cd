"""Sizes in archives of torch: text such as `Add(Symbol('s0', integer=True), Integer(1))`.

It is the notation of sympy's `srepr`, whose reader evaluates it as Python.  This one knows names,
numbers, texts and calls, and looks nothing up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from tcc.frontends.torch.calls import Formula

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<number>-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
    r"|'(?P<text>[^'\\]*)'|(?P<mark>[(),=]))"
)
_LONGEST = 1 << 16
_DEEPEST = 64
_LITERALS = {"true": True, "false": False, "True": True, "False": False}


def read_formula(text: str) -> Any:
    """A number, or the `Formula` that `text` says; raises ValueError where it says none."""
    if len(text) > _LONGEST:
        raise ValueError(f"a size of {len(text)} characters")
    tokens = list(_tokens(text))
    found, end = _term(tokens, 0, 0)
    if end != len(tokens) - 1:
        raise ValueError(f"'{text[:80]}' goes on after its end")
    return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"'{text[at : at + 20]}' is no part of a size")
        yield match.lastgroup, match.group(match.lastgroup)
        at = match.end()
    yield "end", ""


def _term(tokens: list[tuple[str, str]], at: int, depth: int) -> tuple[Any, int]:
    """What stands at token `at`, and the token behind it."""
    if depth > _DEEPEST:
        raise ValueError("a size is nested too deeply")
    kind, text = tokens[at]
    if kind == "number":
        return _number(text), at + 1
    if kind == "text":
        return text, at + 1
    if kind != "name":
        raise ValueError(f"'{text}' stands where a size is due")
    if tokens[at + 1] != ("mark", "("):
        return _LITERALS.get(text, Formula(text, ())), at + 1
    arguments: list[Any] = []
    at += 2
    while tokens[at] != ("mark", ")"):
        if tokens[at][0] == "name" and tokens[at + 1] == ("mark", "="):
            _, at = _term(tokens, at + 2, depth + 1)  # assumptions and precisions
        else:
            found, at = _term(tokens, at, depth + 1)
            arguments.append(found)
        if tokens[at] == ("mark", ","):
            at += 1
        elif tokens[at] != ("mark", ")"):
            raise ValueError(f"'{tokens[at][1]}' stands where ',' or ')' is due")
    return _made(text, arguments), at + 1


def _number(text: str) -> int | float:
    if len(text) > 40:
        raise ValueError("a number is too long")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _made(head: str, arguments: list[Any]) -> Any:
    match head, arguments:
        case "Integer", [int(value)]:
            return value
        case "Float", [str(text)]:
            return _real(text)
        case "Symbol", [str()]:
            return Formula(head, tuple(arguments))
        case (("Integer" | "Float" | "Symbol"), _):
            raise ValueError(f"a {head} without a value")
    if any(isinstance(a, str) for a in arguments):
        raise ValueError(f"{head} of a text")
    return Formula(head, tuple(arguments))


def _real(text: str) -> float:
    if len(text) > 400:
        raise ValueError("a number is too long")
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text} is no size")
    return found
