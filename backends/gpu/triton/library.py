"""The device functions of `functions.py` and `narrow_functions.py`, and the constants that they ask
for, as text."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tcc.record import record

_FILES = ("functions.py", "narrow_functions.py")


@record
class _Function:
    text: str
    uses: tuple[str, ...]


@lru_cache(1)
def _functions() -> dict[str, _Function]:
    """Every function of the files in order: one stands after those it uses."""
    found: dict[str, _Function] = {}
    for name in _FILES:
        _add_functions((Path(__file__).parent / name).read_text(), found)
    return found


def _add_functions(text: str, found: dict[str, _Function]) -> None:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            start = min(d.lineno for d in node.decorator_list)
            names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            uses = tuple(dict.fromkeys(n for n in names if n in found))
            found[node.name] = _Function("\n".join(lines[start - 1 : node.end_lineno]), uses)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = _Function(ast.unparse(node), ())


def function_names() -> tuple[str, ...]:
    """The names of all functions there are."""
    return tuple(_functions())


def function_text(names: Iterable[str]) -> str:
    """The definitions of these functions and of those they use, each once, in a fixed order.

    Raises KeyError for a function that there is none of.
    """
    functions = _functions()
    wanted = {functions[name] for name in names}
    for function in reversed(functions.values()):
        if function in wanted:
            wanted.update(functions[name] for name in function.uses)
    return "".join(f"{each.text}\n\n\n" for each in functions.values() if each in wanted)
