"""The runtime's C files have no circular use of functions, and its headers no circular include."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import networkx as nx

SOURCES = Path(__file__).resolve().parents[2] / "runtime" / "src"
# The names that a file defines for others: `type tcc_name(...) {` and `type tcc_name = {` at the
# start of a line.
DEFINED = re.compile(
    r"^(?!static|typedef)\w[\w ()*]*?\b(tcc_\w+)(?:\([^;{}]*\)\s*\{|(?:\[\w*\])?\s*=\s*\{)", re.M
)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
INCLUDED = re.compile(r'^#include "(?:\.\./)?([\w./]+)"', re.M)


def texts(pattern: str) -> dict[str, str]:
    """Returns the text of each source file, without comments, by its path below src."""
    paths = sorted(SOURCES.rglob(pattern))
    return {str(p.relative_to(SOURCES)): COMMENT.sub("", p.read_text()) for p in paths}


def uses(files: Mapping[str, str]) -> nx.DiGraph:
    """Returns the graph of files in which an edge leads from a user to the file that defines a
    name."""
    owner = {name: file for file, text in files.items() for name in DEFINED.findall(text)}
    words = {file: set(re.findall(r"\btcc_\w+", text)) for file, text in files.items()}
    edges = (
        (file, owner[name])
        for file, identifiers in words.items()
        for name in identifiers
        if name in owner
    )
    return nx.DiGraph((a, b) for a, b in edges if a != b)


def circles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]


def test_no_two_files_need_each_other() -> None:
    graph = uses(texts("*.c"))
    pairs = [
        ("instance.c", "interpret.c"),
        ("interpret.c", "crew.c"),
        ("program.c", "instructions.c"),
        ("gpu/instance.c", "prepare.c"),
        ("ops/sort.c", "ops/order.c"),
    ]
    assert set(pairs) <= set(graph.edges), "the patterns miss what files use"
    assert circles(graph) == []


def test_headers_do_not_include_one_another() -> None:
    graph = nx.DiGraph()
    for file, text in texts("*.h").items():
        for other in INCLUDED.findall(text):
            graph.add_edge(Path(file).name, Path(other).name)
    assert ("workers.h", "runtime.h") in graph.edges
    assert circles(graph) == []


def test_a_circle_is_found() -> None:
    files = {
        "a.c": "int tcc_one(void) {\n    return tcc_two();\n}\n",
        "b.c": "const int tcc_two_table[2] = {1, 2};\nint tcc_two(void) {\n    tcc_one();\n}\n",
        "c.c": "int main(void) { return tcc_one(); }\n",
    }
    assert circles(uses(files)) == [["a.c", "b.c"]]
