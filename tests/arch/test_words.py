"""Names are nouns, and sentences begin with their subject or verb."""

from pathlib import Path

import pytest

from tests.arch.drawn_texts import draw, population
from tests.arch.names import ROOT, bound_names, room_shares, sources
from tests.arch.texts import comments_at, poor_heads, texts

# The counts may only fall.
MOST_POOR_NAMES = 0.2  # percent of the bound names
MOST_POOR_HEADS = 4  # all of them in functions whose text is copied into kernels


def test_few_names_are_no_nouns() -> None:
    shares = room_shares(ROOT).values()
    poor, bound = map(sum, zip(*shares, strict=True))
    assert bound > 40_000
    assert 100 * poor / bound <= MOST_POOR_NAMES, "python -m tests.arch.names lists them"


def test_few_sentences_begin_with_of_by_what_or_whether() -> None:
    heads = [
        f"{path.relative_to(ROOT)}: {head}"
        for path in sources(ROOT)
        for text in texts(path.read_text(encoding="utf-8"))
        for head in poor_heads(text)
    ]
    assert len(heads) <= MOST_POOR_HEADS, "\n".join(heads)


def test_names_are_counted_once_a_binding() -> None:
    text = "def f(self, found, *rest):\n    found = [x for x in rest]\n    _, y = found\n"
    assert sorted(bound_names(text)) == ["found", "found", "rest", "x", "y"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""What a file says."""\n', 1),
        ('"""Returns it.  By way of a file."""\n', 1),
        ('def f():\n    """Reads.\n\n    Of two files the first.\n    """\n', 1),
        ("x = 1  # Whether it is\n", 1),
        ("# Says what it is,\n# by its name: of two.\n", 0),
        ('x = "What?"\n', 0),
    ],
)
def test_heads_are_those_of_docstrings_and_comments(text: str, count: int) -> None:
    assert len([head for part in texts(text) for head in poor_heads(part)]) == count


def test_equal_seeds_draw_equal_texts(tmp_path: Path) -> None:
    (tmp_path / "compiler").mkdir()
    lines = [f"# Why {n}.\nx = {n}  # fmt: skip\n" for n in range(9)]
    (tmp_path / "compiler" / "a.py").write_text("\n".join(lines), encoding="utf-8")
    texts = [*population(tmp_path)]
    assert {text.text for text in texts} == {f"Why {n}." for n in range(9)}
    assert draw(texts, 4, seed=3) == draw(texts, 4, seed=3) != draw(texts, 4, seed=4)


def test_a_comment_behind_code_stands_alone() -> None:
    text = "x = 1  # Bytes.\n# Why it is\n# so.\ny = 2\n"
    assert [*comments_at(text)] == [(1, "Bytes."), (2, "Why it is\nso.")]
