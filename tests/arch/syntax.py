"""Walks of syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but the expressions, most of a tree and slow to walk: no import is in one."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)
