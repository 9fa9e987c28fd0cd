"""The texts of the device functions in `functions.triton` and `narrow_functions.triton`, with their
constants."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tcc.frozen import frozen

_FILES = ("functions.triton", "narrow_functions.triton")


@frozen
class _Function:
    text: str
    uses: tuple[str, ...]


@lru_cache(1)
def _functions() -> dict[str, _Function]:
    """Returns all functions of both files by name; each comes after those that it calls."""
    functions: dict[str, _Function] = {}
    for name in _FILES:
        _add_functions((Path(__file__).parent / name).read_text(), functions)
    return functions


def _add_functions(text: str, functions: dict[str, _Function]) -> None:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            start = min(d.lineno for d in node.decorator_list)
            names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            uses = tuple(dict.fromkeys(n for n in names if n in functions))
            functions[node.name] = _Function("\n".join(lines[start - 1 : node.end_lineno]), uses)
        elif isinstance(node, ast.Assign):
            functions[ast.unparse(node.targets[0])] = _Function(ast.unparse(node), ())


def function_names() -> tuple[str, ...]:
    """Returns the names of all functions."""
    return tuple(_functions())


def function_text(names: Iterable[str]) -> str:
    """Returns the definitions of these functions and of those that they call, in a fixed order.

    Each occurs once. Raises KeyError for an unknown function.
    """
    functions = _functions()
    selection = {functions[name] for name in names}
    for function in reversed(functions.values()):
        if function in selection:
            selection.update(functions[name] for name in function.uses)
    return "".join(
        f"{definition.text}\n\n\n" for definition in functions.values() if definition in selection
    )
