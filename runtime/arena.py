"""Plans an arena: gives every buffer of a CSV file an offset.

    python -m tcc.runtime.arena FILE.csv --capacity 1048576 --seconds 10

The file has the columns id, lower, upper and size, in any order. A buffer occupies `size` bytes at
the times lower <= t < upper. The last line printed is `peak P bound B verdict valid|invalid`. P is
the size of the arena in bytes, B a lower bound for any plan, and the verdict that of an independent
check.

Exit codes: 0: a valid plan within the capacity; 1: a plan above the capacity; 2: a wrong file or
argument; 3: the planner's library is missing; 130: interrupted.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tcc.runtime.planner import LIBRARY, MOST_BYTES, ArenaPlan, Life, Planner

COLUMNS = ("id", "lower", "upper", "size")


class LivesError(ValueError):
    """An error in a CSV file of buffers; the message says where and why."""


def read_lives(file: TextIO, name: str) -> dict[str, Life]:
    """Returns the buffers of a CSV file by their id, in the order of the file.

    Raises LivesError, whose message names the line.
    """
    rows = _rows(file, name)
    _, header = next(rows, (1, []))
    if sorted(header) != sorted(COLUMNS):
        raise LivesError(f"{name}, line 1: the columns are not {', '.join(COLUMNS)}")
    lives: dict[str, Life] = {}
    remaining = MOST_BYTES
    for line, row in rows:
        where = f"{name}, line {line}"
        if len(row) != len(COLUMNS):
            raise LivesError(f"{where}: {len(row)} values for {len(COLUMNS)} columns")
        values = dict(zip(header, row, strict=True))
        lower, upper, size = (_number(values[column], column, where) for column in COLUMNS[1:])
        if values["id"] in lives:
            raise LivesError(f"{where}: the id {values['id']!r} is that of an earlier line")
        if upper <= lower:
            raise LivesError(f"{where}: upper {upper} is not above lower {lower}")
        remaining -= size + 1  # the planner counts `alignment` (here 1) more bytes for each buffer
        if remaining < 0:
            raise LivesError(f"{where}: the sizes up to here sum to more than 2^62")
        lives[values["id"]] = Life(lower, upper, size)
    return lives


def _rows(file: TextIO, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each nonempty row with its line number; spaces around values are removed."""
    reader = csv.reader(file)
    try:
        for row in reader:
            if row:
                yield reader.line_num, [value.strip() for value in row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise LivesError(f"{name}, line {reader.line_num + 1}: {error}") from error


def _number(text: str, column: str, where: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise LivesError(f"{where}: {column} {text[:40]!r} is no whole number")
    if text.startswith("-"):
        raise LivesError(f"{where}: {column} {text[:40]} is negative")
    if len(text) > 40 or int(text) > MOST_BYTES:
        raise LivesError(f"{where}: {column} {text[:40]} is above 2^62")
    return int(text)


class _Progress:
    """Ends a search after `seconds`, and shows its progress if stderr is a terminal."""

    def __init__(self, seconds: float) -> None:
        self._start = self._shown = time.monotonic()
        self._seconds = seconds

    def __call__(self, steps: int, peak: int) -> bool:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown >= 1:
            self._shown = now
            passed = f"{now - self._start:.0f} s"
            print(f"\r{passed}, {steps:,} steps, peak {peak}\033[K", end="", file=sys.stderr)
        return now - self._start < self._seconds

    def close(self) -> None:
        """Erases the progress line."""
        if self._shown != self._start:
            print("\r\033[K", end="", file=sys.stderr)


def write_plan(path: Path, lives: dict[str, Life], plan: ArenaPlan) -> None:
    """Writes the buffers with an additional column `offset`.

    The file appears complete or not at all.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*COLUMNS, "offset"))
            for (key, life), offset in zip(lives.items(), plan.offsets, strict=True):
                writer.writerow((key, life.lower, life.upper, life.size, offset))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_valid(planner: Planner, lives: Sequence[Life], plan: ArenaPlan) -> bool:
    try:
        planner.check(lives, plan)
    except ValueError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tcc.runtime.arena",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE.csv", type=Path)
    parser.add_argument(
        "--capacity", metavar="BYTES", type=int, help="how much there is; default: no limit"
    )
    parser.add_argument(
        "--seconds", type=float, default=10, help="when the search ends (default: 10)"
    )
    parser.add_argument(
        "--steps", type=int, help="end it after so many steps instead: equal on every machine"
    )
    parser.add_argument(
        "--output", metavar="OUT.csv", type=Path, help="write the offsets into this file"
    )
    arguments = parser.parse_args(words)
    for name in ("capacity", "seconds", "steps"):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value <= MOST_BYTES:
            parser.error(f"argument --{name}: {value} is not from 0 to 2^62")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    with arguments.file.open(newline="", encoding="utf-8") as file:
        lives_by_id = read_lives(file, str(arguments.file))
    planner, lives = Planner(), tuple(lives_by_id.values())
    progress = _Progress(arguments.seconds if arguments.steps is None else float("inf"))
    try:
        plan = planner.plan(
            lives, capacity=arguments.capacity or 0, steps=arguments.steps, go_on=progress
        )
    finally:
        progress.close()
    valid = _is_valid(planner, lives, plan)
    if arguments.output and valid:
        write_plan(arguments.output, lives_by_id, plan)
    print(f"peak {plan.peak} bound {plan.bound} verdict {'valid' if valid else 'invalid'}")
    return int(not valid or (arguments.capacity is not None and plan.peak > arguments.capacity))


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = _arguments(words)
    if not LIBRARY.is_file():
        print(
            f"error: the planner's library is missing\n  at: {LIBRARY}\n"
            "  to do: install tcc where a C compiler is, or run scripts/devtree in its sources",
            file=sys.stderr,
        )
        return 3
    try:
        return _run(arguments)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
