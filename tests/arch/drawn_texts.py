"""Draws docstrings and comments for readers who did not write them.

    python -m tests.arch.drawn_texts                  # the 200 texts of the seed below
    python -m tests.arch.drawn_texts --seed 7 --count 50

Each text stands below its file, line and signature, without the code.  A reader marks it `plain`,
`twice` (understood at the second reading) or `code` (only the code explains it).  At most 3 percent
may be `code` and 10 percent `twice`.  The next reading takes the next seed.
"""

import argparse
import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.arch.names import ROOT, sources
from tests.arch.texts import comments_at

SEED = 2617


@dataclass(frozen=True)
class Drawn:
    """A docstring or comment with its place; `signature` is empty for comments."""

    place: str
    signature: str
    text: str


def population(root: Path) -> Iterator[Drawn]:
    """Yields every docstring and comment of the counted folders, in a fixed order."""
    for path in sorted(sources(root)):
        source = path.read_text(encoding="utf-8")
        name = str(path.relative_to(root))
        for node in ast.walk(ast.parse(source)):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                line = getattr(node, "lineno", 1)
                yield Drawn(f"{name}:{line}", _signature(node), text)
        for line, text in comments_at(source):
            if not text.startswith(("fmt:", "type:", "noqa")):
                yield Drawn(f"{name}:{line}", "", text)


def draw(texts: Iterable[Drawn], count: int, seed: int) -> list[Drawn]:
    """Returns `count` of the texts; equal seeds and sources give equal texts."""
    return random.Random(seed).sample(list(texts), count)


def _signature(node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {node.name}({ast.unparse(node.args)}){result}"
    return "module"


def main() -> None:
    """Prints the drawn texts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    drawn = draw(population(ROOT), arguments.count, arguments.seed)
    for number, item in enumerate(drawn, 1):
        print(f"---- {number}  {item.place}\n{item.signature or 'comment'}\n{item.text}\n")


if __name__ == "__main__":
    main()
