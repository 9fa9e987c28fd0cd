"""Texts and tables as lines that fit a terminal; rich measures, wraps and aligns them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TextIO

# The columns of a terminal that does not tell its size.
_COLUMNS = 80
# The spaces between two columns of a table, and before a text that continues on a further line.
_GAP, _HANG = 2, 4
# The least columns in which the last cells of a table are wrapped; with less they stand below.
_ROOM = 24
_DUMB = ("dumb", "unknown")
# A number with a unit at most, as in 1.5e-05, 87% flops, 1.02x or -.
_NUMBER = re.compile(r"-|[-+]?\d[\d.,]*(e[-+]?\d+)?[%x]?( \w+)?")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells with equally many cells each.

    The first row has the heads of the columns if `has_heads` is true. Columns of numbers are then
    aligned to the right, and all other columns to the left.
    """

    rows: Sequence[Sequence[str]]
    has_heads: bool = True

    def escaped(self, printable: Callable[[str], str]) -> Table:
        """Returns the table with `printable` applied to each cell."""
        return replace(self, rows=[[printable(cell) for cell in row] for row in self.rows])


def columns(stream: TextIO) -> int | None:
    """Returns the columns of the terminal behind `stream`; None if it is no terminal.

    The variable COLUMNS takes precedence on a terminal if it is a number above 0. Elsewhere it does
    not count, because libraries set it for the programs that they start.
    """
    if not stream.isatty():
        return None
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


def moves_cursor(stream: TextIO) -> bool:
    """Returns True if `stream` is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", *_DUMB)


def has_styles(stream: TextIO) -> bool:
    """Returns True if heads of tables may be bold: NO_COLOR is unset, and no dumb terminal."""
    return moves_cursor(stream) and not os.environ.get("NO_COLOR")


def lines(
    items: Iterable[str | Table], width: int | None, *, hang: int = _HANG, styles: bool = False
) -> Iterator[str]:
    """Yields the lines of texts and tables, which have at most `width` columns (None: any number).

    A text that is wider is wrapped at spaces, and a longer word anywhere; `hang` more spaces than
    at its start indent its further lines. `styles`: the heads of tables are bold.
    """
    for item in items:
        if isinstance(item, Table):
            yield from _table_lines(item, width, styles)
        else:
            yield from _wrapped(item, width, hang)


def shortened(text: str, width: int) -> str:
    """Returns the text, cut to `width` columns; three dots replace the rest."""
    if _cells(text) <= width:
        return text
    start: str = _rich("cells").set_cell_size(text, max(width - 3, 0))
    return (start + "...")[: max(width, 0)]


def _rich(name: str) -> Any:
    """Returns a module of rich, which takes longer to import than most commands take."""
    return import_module(f"rich.{name}")


def _cells(text: str) -> int:
    """Returns the columns that a text takes; Chinese characters, for example, take two."""
    if text.isascii():
        return len(text)
    count: int = _rich("cells").cell_len(text)
    return count


def _wrapped(text: str, width: int | None, hang: int) -> Iterator[str]:
    if width is None or _cells(text) <= width:
        yield text
        return
    body = text.lstrip()
    # In a terminal of a few columns the indents go first.
    indent = min(len(text) - len(body), width // 4)
    hang = min(indent + hang, width // 2, max(width - 2, 0))
    first, *further_lines = _folded(body, width - indent, width - hang)
    yield " " * indent + first
    for line in further_lines:
        yield " " * hang + line


def _folded(text: str, first: int, width: int) -> Iterator[str]:
    """Yields the lines of a text: one in `first` columns, and the others in `width` columns.

    Lines end at spaces; a word is broken only where it is wider than a line.
    """
    line, room = "", first
    for word in re.findall(r"\s*\S+", text):
        if _cells(line) + _cells(word) <= room:
            line += word
            continue
        if line:
            yield line
            room = width
        *parts, line = _chopped(word.lstrip(), min(room, width))
        yield from parts
        room = width if parts else room
    yield line


def _chopped(word: str, width: int) -> list[str]:
    """Returns a word in parts of at most `width` columns."""
    if word.isascii():
        return [word[n : n + width] for n in range(0, len(word), width)]
    parts: list[str] = _rich("cells").chop_cells(word, width)
    return parts


def _console(width: int, *, styles: bool = False) -> Any:
    """Returns a console that writes into a string."""
    return _rich("console").Console(
        file=io.StringIO(),
        width=width,
        height=25,
        force_terminal=styles,
        color_system="standard" if styles else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


# ---- tables --------------------------------------------------------------------------------------


def _table_lines(table: Table, width: int | None, styles: bool) -> Iterator[str]:
    if not table.rows:
        return
    widths = [max(map(_cells, column)) for column in zip(*table.rows, strict=True)]
    before = sum(widths[:-1]) + _GAP * (len(widths) - 1)
    if width is None or before + widths[-1] <= width:
        yield from _aligned(table, table.rows, widths, styles=styles)
    elif before - _GAP <= width and not _has_numbers(table, len(widths) - 1):
        yield from _with_wide_cells(table, widths, width, styles)
    else:
        yield from _records(table, width)


def _with_wide_cells(
    table: Table, widths: Sequence[int], width: int, styles: bool
) -> Iterator[str]:
    """Yields the lines of a table whose last column is too wide for the terminal.

    The last cells are wrapped in their column if it has room for all words. Else the cells that are
    too wide stand below their rows.
    """
    room = width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
    widths = [*widths[:-1], max(room, 0)]
    words = (_cells(word) for row in table.rows for word in row[-1].split())
    wraps = room >= _ROOM and max(words, default=0) <= room
    inline_rows: list[Sequence[str]] = []
    for number, row in enumerate(table.rows):
        last = row[-1]
        if wraps or _cells(last) <= room:
            inline_rows.append(row)
            continue
        head = not number and table.has_heads
        yield from _aligned(
            table, inline_rows, widths, first=number - len(inline_rows), styles=styles
        )
        yield from _aligned(table, [row[:-1]], widths[:-1], first=number, styles=styles)
        if not head:
            yield from _wrapped(" " * _HANG + last, width, 0)
        inline_rows = []
    first = len(table.rows) - len(inline_rows)
    yield from _aligned(table, inline_rows, widths, first=first, styles=styles)


def _aligned(
    table: Table,
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    *,
    first: int = 0,
    styles: bool,
) -> Iterator[str]:
    """Yields the lines of rows in columns of `widths`; `first` is the number of the first row."""
    if not rows:
        return
    text, grid = _rich("text"), _rich("table").Table.grid(padding=(0, _GAP, 0, 0))
    for number, column in enumerate(widths):
        grid.add_column(
            justify="right" if _has_numbers(table, number) else "left",
            width=column,
            overflow="fold",
            no_wrap=number < len(widths) - 1,
        )
    for number, row in enumerate(rows, first):
        style = "bold" if table.has_heads and not number else ""
        grid.add_row(*(text.Text(cell, style=style) for cell in row))
    console = _console(sum(widths) + _GAP * len(widths), styles=styles)
    console.print(grid)
    for line in console.file.getvalue().splitlines():
        yield line.rstrip()


def _has_numbers(table: Table, column: int) -> bool:
    """Returns True if each cell of the column below its head is a number or empty."""
    cells = [row[column] for row in table.rows[1:] if row[column]]
    return table.has_heads and bool(cells) and all(map(_NUMBER.fullmatch, cells))


def _records(table: Table, width: int) -> Iterator[str]:
    """Yields a few lines for each row, for a terminal in which the columns have no room.

    The head of a column stands before each cell.
    """
    heads, rows = [""] * len(table.rows[0]), table.rows
    if table.has_heads:
        heads, rows = list(rows[0]), rows[1:]
    for row in rows:
        pairs = [f"{head} {cell}".strip() for head, cell in zip(heads, row, strict=True) if cell]
        yield from _wrapped(", ".join(pairs), width, _HANG)
