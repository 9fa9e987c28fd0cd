"""Reads definitions from C files, and selects those that a C text needs, in a valid order.

The files are those of the functions that programs call (`src/ops`), and a file of the caller. Their
top-level definitions begin in the first column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

_OPS = Path(__file__).parent / "src" / "ops"
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_LEADING = re.compile(r"((?:(?:/\*.*?\*/|//[^\n]*)\s*)*)(.*)", re.DOTALL)
_WORD = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


@dataclass(frozen=True, slots=True)
class _Definition:
    """A definition in a C file, with the comment before it.

    `names` are the names that it defines, and `words` the words that it uses.
    """

    file: str
    text: str
    names: frozenset[str]
    words: tuple[str, ...]
    shared: bool  # True if code in other files can use the names


# The definitions by (file, name); the file is "" for names that all files share.
_Table: TypeAlias = Mapping[tuple[str, str], _Definition]


def needed(text: str, support: Path) -> list[str]:
    """Returns the definitions that `text` uses, in an order that C accepts; all become static.

    They come from `src/ops` and from the file `support`, whose names all files share.
    """
    table = _table(support)
    definitions: dict[_Definition, None] = {}
    first_files: dict[str, str] = {}  # name -> the first file that defines it
    for word in dict.fromkeys(_WORD.findall(_bare(text))):
        _collect(table, word, "", definitions, first_files)
    return [_static(table, definition, first_files) for definition in definitions]


def _collect(
    table: _Table,
    word: str,
    file: str,
    definitions: dict[_Definition, None],
    first_files: dict[str, str],
    outer: frozenset[_Definition] = frozenset(),
) -> None:
    definition = _find(table, word, file)
    if definition is None or definition in definitions or definition in outer:
        return
    for inner_word in definition.words:
        _collect(table, inner_word, definition.file, definitions, first_files, outer | {definition})
    definitions[definition] = None
    for name in definition.names:
        first_files.setdefault(name, definition.file)


def _static(table: _Table, definition: _Definition, first_files: dict[str, str]) -> str:
    """Returns the definition's text as static.

    If another file has already defined a name, this file's name becomes its prefix.
    """
    text = definition.text
    for word in definition.words:
        other = _find(table, word, definition.file)
        if other and not other.shared and first_files[word] != other.file:
            text = re.sub(rf"(?<![\w.>]){word}\b", f"{Path(other.file).stem}_{word}", text)
    comments, code = _LEADING.fullmatch(text).groups()  # type: ignore[union-attr]
    is_static = code.startswith(("typedef", "enum", "struct", "static", "#"))
    return text if is_static else f"{comments}static {code}"


@cache
def _table(support: Path) -> _Table:
    table: dict[tuple[str, str], _Definition] = {}
    for path in (support, *sorted(_OPS.glob("*.[ch]"))):
        for definition in _definitions(path, path == support or path.suffix == ".h"):
            for name in definition.names:
                table.setdefault((path.name, name), definition)
                if definition.shared:
                    table.setdefault(("", name), definition)
    return table


def _find(table: _Table, word: str, file: str) -> _Definition | None:
    return table.get(("", word)) or table.get((file, word))


def _definitions(path: Path, everywhere: bool) -> Iterator[_Definition]:
    for text in _chunks(path.read_text()):
        code = _bare(text)
        names = _names(code)
        if names:
            static = code.startswith("static") or not re.match(r"\w[\w *]*\(", code)
            words = tuple(dict.fromkeys(_WORD.findall(code)))
            yield _Definition(path.name, text, names, words, everywhere or not static)


def _bare(text: str) -> str:
    return _STRING.sub('""', _COMMENT.sub(" ", text)).strip()


def _chunks(text: str) -> Iterator[str]:
    """Yields the top-level definitions of a C file, each with the comment right before it."""
    lines: list[str] = []
    for line in text.splitlines():
        if not lines and not line:
            continue
        lines.append(line)
        chunk = "\n".join(lines)
        if chunk.count("/*") > chunk.count("*/"):
            continue  # a line of a comment may end as a definition does
        code = _bare(chunk)
        if line.startswith(("#include", "#if", "#end")):
            lines = []
        elif not code:
            if not line:
                lines = []  # a comment before an empty line describes no definition
        elif _is_whole(code, line):
            yield chunk
            lines = []


def _is_whole(code: str, line: str) -> bool:
    if code.startswith("#"):
        return not line.endswith("\\")
    return code.count("{") == code.count("}") and code.endswith((";", "}"))


def _names(code: str) -> frozenset[str]:
    """Returns the names that a definition defines; empty for the declaration of a function."""
    if code.startswith("#define"):
        return frozenset(re.findall(r"#define (\w+)", code))
    if code.startswith(("enum", "typedef enum")):
        body = code[code.index("{") + 1 : code.rindex("}")]
        tail = re.findall(r"\w+", code[code.rindex("}") :])
        return frozenset([*re.findall(r"(?:^|,)\s*(\w+)", body), *tail])
    if code.startswith(("typedef", "struct", "union")):
        pointer = re.match(r"typedef [\w ]*\(\*(\w+)\)", code)
        if pointer:
            return frozenset({pointer[1]})
        tags = re.findall(r"^(?:typedef )?(?:struct|union) (\w+)", code) if "{" in code else []
        bare_code = re.sub(r"\s*__attribute__\(\(.*\)\)", "", code)
        return frozenset([*tags, *re.findall(r"\} (\w+);$|(\w+);$", bare_code)[0][:]]) - {""}
    head = re.match(r"[\w\s*]*?(\w+)\s*([(\[=;])", code)
    if head is None or (head[2] == "(" and not code.endswith("}")):
        return frozenset()
    return frozenset({head[1]})
