"""The sources define each public class name once, so that the name identifies the class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from tests.arch.names import ROOT, sources


def public_classes(text: str) -> list[str]:
    """Returns the top-level classes of a module whose names do not begin with an underscore."""
    body = ast.parse(text).body
    names = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def doubles(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the places of each name that several modules (place, text) define."""
    places = defaultdict(list)
    for place, text in modules:
        for name in public_classes(text):
            places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_public_class_name_exists_twice() -> None:
    modules = [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in sources(ROOT)
    ]
    assert sum(len(public_classes(text)) for _, text in modules) > 300
    assert doubles(modules) == {}, "give one of the classes a name that says more"


def test_public_classes_of_the_top_level_are_counted() -> None:
    first = "class Stage:\n    class Inner: ...\n\nclass _Site: ...\n"
    second = "class Stage(Base): ...\n\nclass _Site: ...\n\nclass Inner: ...\n"
    assert doubles([("a", first), ("b", second)]) == {"Stage": ["a", "b"]}
