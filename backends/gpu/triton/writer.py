"""Writes lines of Python: nested scopes, unique names, shared expressions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tcc.frozen import frozen


@frozen
class PyExpr:
    """A Python expression.

    `depth` is the nesting depth of the innermost scope whose variables it uses. An `atomic`
    expression needs no parentheses as an operand.
    """

    text: str
    depth: int = 0
    atomic: bool = True

    @property
    def operand(self) -> str:
        return self.text if self.atomic else f"({self.text})"


@dataclass(slots=True)
class _Scope:
    lines: list[str] = field(default_factory=list)
    named: dict[str, PyExpr] = field(default_factory=dict)


class Writer:
    """The body of a function; its names are not among `reserved`."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = {"tl", "triton", "float", *keyword.kwlist, *reserved}
        self._scopes = [_Scope()]

    @property
    def depth(self) -> int:
        return len(self._scopes) - 1

    def name(self, like: str) -> str:
        """Returns an unused name similar to `like`."""
        word = re.sub(r"\W", "_", like)
        word = word if re.match(r"[A-Za-z_]", word) else f"v{word}"
        candidate, count = word, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{word}_{count}"
        self._taken.add(candidate)
        return candidate

    def line(self, text: str) -> None:
        """Appends a line to the innermost scope."""
        self._scopes[-1].lines.append(text)

    def define(self, like: str, text: str) -> PyExpr:
        """Assigns `text` to a new name in the innermost scope; returns the name."""
        name = self.name(like)
        self.line(f"{name} = {text}")
        return PyExpr(name, self.depth)

    def share(self, like: str, value: PyExpr) -> PyExpr:
        """Returns a name for `value`.

        It is assigned once, in the outermost scope that has its operands.
        """
        for scope in self._scopes[: value.depth + 1]:
            if value.text in scope.named:
                return scope.named[value.text]
        name = PyExpr(self.name(like), value.depth)
        scope = self._scopes[value.depth]
        scope.lines.append(f"{name.text} = {value.text}")
        scope.named[value.text] = name
        return name

    @contextmanager
    def scope(self) -> Iterator[list[str]]:
        """Collects the lines that are written inside; they go to `block` once the scope is closed.

        Until then, shared names of outer scopes can still be inserted before the block.
        """
        inner = _Scope()
        self._scopes.append(inner)
        yield inner.lines
        self._scopes.pop()

    def block(self, head: str, lines: list[str]) -> None:
        """Writes a head with indented lines below it, or with `pass` if there are none."""
        self.line(head)
        self._scopes[-1].lines += [f"    {line}" for line in lines or ["pass"]]

    def lines(self) -> list[str]:
        """Returns the lines of the function; all scopes must be closed."""
        (scope,) = self._scopes
        return scope.lines
