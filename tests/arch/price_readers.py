"""Finds code that compares prices itself, by the names in the comparison.

    if seconds < lowest: ...        min(plans, key=lambda p: p.price)        both compare prices

A comparison counts where one of its operands, or of the key of a `min`, `max`, `sorted` or `sort`,
has a name with the word price, prices, seconds or cycles. `alternatives.py` and `passes/choose` may
compare.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("compiler/schedule", "passes", "backends")
CHOOSERS = ("compiler/schedule/alternatives.py", "passes/choose/")
WORDS = {"price", "prices", "seconds", "cycles"}
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SORTS = {"min", "max", "sorted", "sort"}


def price_readers(root: Path) -> Counter[str]:
    """Returns the number of price comparisons outside the choosers, by file."""
    counts: Counter[str] = Counter()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(CHOOSERS):
                counts[name] += len(list(comparisons(path.read_text(encoding="utf-8"))))
    return +counts


def comparisons(text: str) -> Iterator[int]:
    """Yields the line numbers at which a module's text compares prices."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(ops=operators) if any(isinstance(op, ORDERS) for op in operators):
                if _has_price(node):
                    yield node.lineno
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SORTS:
                if any(map(_has_price, (*node.args, *node.keywords))):
                    yield node.lineno


def _has_price(tree: ast.AST) -> bool:
    return any(not WORDS.isdisjoint(_words(node)) for node in ast.walk(tree))


def _words(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.split("_")
    return []
