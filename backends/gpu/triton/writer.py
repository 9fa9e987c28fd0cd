"""Lines of Python being written: nested scopes, unique names, expressions that are named once."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tcc.record import record


@record
class PyExpr:
    """A Python expression; `depth` is that of the innermost scope it depends on.

    `atomic` expressions are operands of anything without parentheses around them.
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
    """One function's body.  `reserved` are the names that it must not take."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = {"tl", "triton", "float", *keyword.kwlist, *reserved}
        self._scopes = [_Scope()]

    @property
    def depth(self) -> int:
        return len(self._scopes) - 1

    def name(self, like: str) -> str:
        """A name that is not in use, like this one."""
        word = re.sub(r"\W", "_", like)
        word = word if re.match(r"[A-Za-z_]", word) else f"v{word}"
        found, count = word, 1
        while found in self._taken:
            count += 1
            found = f"{word}_{count}"
        self._taken.add(found)
        return found

    def line(self, text: str) -> None:
        """A line at the end of the innermost scope."""
        self._scopes[-1].lines.append(text)

    def define(self, like: str, text: str) -> PyExpr:
        """A new name for the value of `text`, in the innermost scope."""
        name = self.name(like)
        self.line(f"{name} = {text}")
        return PyExpr(name, self.depth)

    def share(self, like: str, value: PyExpr) -> PyExpr:
        """A name for `value`, given once in the outermost scope that has what it depends on."""
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
        """What is written inside goes to a list, which `block` takes once all scopes are closed.

        Until then shared names of the scopes around may still be put before it.
        """
        inner = _Scope()
        self._scopes.append(inner)
        yield inner.lines
        self._scopes.pop()

    def block(self, head: str, lines: list[str]) -> None:
        """A head with lines below it, indented; none at all become `pass`."""
        self.line(head)
        self._scopes[-1].lines += [f"    {line}" for line in lines or ["pass"]]

    def lines(self) -> list[str]:
        """What was written, all scopes closed."""
        (only,) = self._scopes
        return only.lines
