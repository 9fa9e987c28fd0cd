"""Collects the lines of a C function's body, indented by the braces around them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Lines(ABC):
    """Prints statements one after another."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1

    @abstractmethod
    def _statement(self, node: Any) -> None:
        """Prints a statement and the statements inside it."""

    def _body(self, body: Sequence[Any]) -> None:
        for node in body:
            self._statement(node)

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def _braces(self, head: str = "", *, closed: bool = True) -> Iterator[None]:
        """Prints `head` and braces around the lines that are printed inside.

        With `closed` False, no closing brace is printed, because the next head begins with it, as
        `} else {` does.
        """
        self._line(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        if closed:
            self._line("}")

    def _if(self, condition: str, then: Sequence[Any], otherwise: Sequence[Any]) -> None:
        with self._braces(f"if ({condition})", closed=not otherwise):
            self._body(then)
        if otherwise:
            with self._braces("} else"):
                self._body(otherwise)
