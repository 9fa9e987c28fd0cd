"""ARCHITECTURE.md is two screens, and every file and name on it exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
LINES, COLUMNS, QUESTIONS = 110, 100, 26
ROOMS = "backends|compiler|passes|runtime|scripts|tests"
PLACE = re.compile(rf"\b((?:{ROOMS})/[\w./]*\w/?)(?::([\w.]+))?")


def names_of(path: Path) -> set[str]:
    """Returns the functions, classes, methods and tables of a module, or the functions of a C
    file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"^\w[\w *]*?(\w+)\(", text, re.MULTILINE))
    names: set[str] = set()
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(name)):
                names.add(name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return names


def missing(text: str) -> list[str]:
    """Returns the references in `text` to a file, or a name in a file, that does not exist."""
    places = [(match[1], match[2]) for match in PLACE.finditer(text)]
    assert len(places) > 2 * QUESTIONS
    return [
        f"{path}:{name}" if name else path
        for path, name in places
        if not (ROOT / path).exists() or (name and name not in names_of(ROOT / path))
    ]


def test_every_file_and_name_of_the_page_exists() -> None:
    assert missing(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("place", "renamed"),
    [
        ("passes/place.py:PLACE", "passes/places.py:PLACE"),
        ("passes/fuse/partition.py:partition", "passes/fuse/partition.py:part"),
        ("CoreChooser.bind", "CoreChooser.bound"),
        ("interpret.c:tcc_interpret_all", "interpret.c:tcc_interpret_some"),
    ],
)
def test_a_name_that_moved_is_found(place: str, renamed: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert place in text
    assert len(missing(text.replace(place, renamed))) >= 1


def test_the_page_is_two_screens_of_numbered_questions() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    questions = [int(line.split()[0]) for line in lines if re.match(r"\d+ +[A-Z].*\?", line)]
    assert questions == list(range(1, QUESTIONS + 1))


@pytest.mark.parametrize("page", ["README.md", "GUIDE.md", "CONTRIBUTING.md"])
def test_pages_for_newcomers_link_to_it(page: str) -> None:
    assert "](ARCHITECTURE.md)" in (ROOT / page).read_text(encoding="utf-8")
