"""The compiler stays small: tokens of its Python code, without comments and docstrings."""

import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compiler", "passes", "backends")
BUDGET = 620_000
NOTHING = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
BREAKS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def tokens(path: Path) -> int:
    """A string that begins a statement is a docstring."""
    count, begins = 0, True
    with path.open(encoding="utf-8") as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in BREAKS:
                begins = True
            elif token.type not in NOTHING:
                count += not (begins and token.type == tokenize.STRING)
                begins = False
    return count


def test_the_code_is_within_its_budget(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text('"""Four words of docstring."""\n\nx = f(1)  # six tokens\n')
    assert tokens(example) == 6
    total = sum(tokens(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert 400_000 < total <= BUDGET
