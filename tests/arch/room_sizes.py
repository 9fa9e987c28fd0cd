"""The size of each room of the sources, in logic tokens.

A logic token is a token of Python's tokenizer outside comments, docstrings, import statements and
annotations: these four explain the logic and carry none of it, so they cost nothing.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

TOPS = ("compiler", "passes", "backends")
Position: TypeAlias = tuple[int, int]  # line, column in characters
Span: TypeAlias = tuple[Position, Position]

BREAKS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_LOGIC = BREAKS | {tokenize.ENDMARKER}
# From Python 3.12 on the tokenizer takes an f-string apart; here it is one token, as in 3.11.
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
FSTRING_END = getattr(tokenize, "FSTRING_END", -1)


def room_sizes(root: Path) -> dict[str, int]:
    """Returns the logic tokens of each room: a folder two levels deep, or the files of a top
    folder."""
    sizes: Counter[str] = Counter()
    for top in TOPS:
        for path in (root / top).rglob("*.py"):
            folders = path.relative_to(root).parent.parts
            sizes["/".join(folders[:2])] += logic_tokens(path.read_text(encoding="utf-8"))
    return dict(sizes)


def logic_tokens(text: str) -> int:
    """Returns the number of logic tokens in the text of a module; raises SyntaxError for other
    text."""
    spans = sorted(_spans_without_logic(text))
    count = depth = index = 0
    end: Position = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        while index < len(spans) and spans[index][0] <= token.start:
            end = max(end, spans[index][1])
            index += 1
        depth -= token.type == FSTRING_END
        if token.type not in NO_LOGIC and token.start >= end and not depth:
            count += token.type != FSTRING_END
        depth += token.type == FSTRING_START
    return count


def _spans_without_logic(text: str) -> Iterator[Span]:
    lines = text.split("\n")

    def position(line: int, byte: int) -> Position:
        """Converts `ast`'s byte offset to the tokenizer's offset in characters."""
        return line, len(lines[line - 1].encode()[:byte].decode())

    for node in _nodes_without_logic(ast.parse(text)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        yield (
            position(node.lineno, node.col_offset),
            position(node.end_lineno, node.end_col_offset),
        )


def _nodes_without_logic(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                yield node
            case ast.arg(annotation=ast.expr() as annotation):
                yield annotation
            case ast.FunctionDef(returns=ast.expr() as annotation):
                yield annotation
            case ast.AsyncFunctionDef(returns=ast.expr() as annotation):
                yield annotation
            case ast.AnnAssign(annotation=annotation):
                yield annotation
