"""The sentences of docstrings and comments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

# English that starts a sentence with these words hides the subject or the verb.
_POOR_HEAD = re.compile(r"(?:^|[.!?:]\s+|\n\n)((?:Of|By|What|Whether)\b[^.\n]*)")


def texts(source: str) -> Iterator[str]:
    """Yields the docstrings of a module, then its comments; adjacent lines are one comment."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring
    yield from (text for _, text in comments_at(source))


def comments_at(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line of the first character, text) of each comment of a module.

    Comments on adjacent lines count as a single comment.
    """
    lines: list[str] = []
    first = after = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            row = token.start[0]
            is_alone = not token.line[: token.start[1]].strip()
            if lines and not (is_alone and row == after):
                yield first, "\n".join(lines)
                lines = []
            first = row if not lines else first
            lines.append(token.string.lstrip("# "))
            after = row + 1 if is_alone else 0  # a comment behind code ends with its line
    if lines:
        yield first, "\n".join(lines)


def poor_heads(text: str) -> list[str]:
    """Returns the starts of sentences that begin with Of, By, What or Whether."""
    return [match.group(1) for match in _POOR_HEAD.finditer(text)]
