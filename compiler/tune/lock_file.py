"""Reads and writes lock files. Files are not trusted.

A lock is JSON that is laid out in lines, with an entry in each line. The reader takes one line
after the other, so that it needs little memory, and an error names its line.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from tcc.errors import UserError, file_errors
from tcc.passes.choose.choices_file import DIGEST, read_row
from tcc.tune.input_file import LONGEST_LINE, check_cores, check_length, check_site, opened_file
from tcc.tune.lock import (
    CHANGED,
    KEPT,
    PINNED,
    SKIPPED,
    SLOW_MACHINE,
    VERDICTS,
    VERSION,
    Home,
    Lock,
    LockEntry,
    ordered,
)

_MOST_BYTES, _LONGEST_TEXT, _MOST_GAIN = 32 << 20, 200, 1e9
_HINT = "make the lock again, with tcc tune MODEL --pin"
# A line of an entry as `lock_text` writes it, without escapes in its texts. It is JSON, and reading
# it by this expression takes a third of the time of a JSON reader.
_TEXT, _RATIO = r"[ !#-\[\]-~]", r"(?:0|[1-9]\d{0,8})\.\d{1,20}"
_WRITTEN_ENTRY = re.compile(
    rf'\{{"site": "({DIGEST.pattern})", "op": "({_TEXT}{{1,{_LONGEST_TEXT}}})", '
    rf'"verdict": (?:"({CHANGED}|{PINNED})", "alternative": "({_TEXT}+)"'
    rf'|"({KEPT}|{SKIPPED}|{SLOW_MACHINE})", "alternative": null), '
    rf'"gain": (?:null|\[({_RATIO}), ({_RATIO})\])\}},?'
)
_CONFLICT = re.compile(rb"(?:<{7}|={7}|>{7})(?: |\n|$)")


def read_lock(path: Path, flag: str = "--tuned") -> Lock:
    """Returns the lock in a file; `flag` names it in messages.

    Raises UserError, with the number of the line, for a file of another form.
    """
    with opened_file("lock", f"{flag} {path}", path, _MOST_BYTES) as file:
        reader = _Reader(file)
        try:
            return reader.lock()
        except ValueError as error:
            raise UserError(
                "the file is no lock",
                where=f"{flag} {path}, line {reader.number}",
                why="git has left a conflict here" if _CONFLICT.match(reader.last) else error,
                hint=_HINT,
            ) from error


class _Reader:
    """Reads a lock from a file; `number` is the number of the current line, and `last` its text."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self._size = file, sha256(), 0
        self.number, self.last = 0, b""

    def lock(self) -> Lock:
        head = _opened(self._line())
        if head.keys() != {"version", "targets"} or repr(head["version"]) != repr(VERSION):
            raise ValueError(f'it does not begin with {{"version": {VERSION}, "targets": [')
        sections: dict[Home, dict[str, LockEntry]] = {}
        if self._list(lambda line: self._section(line, sections)) or self._file.read(1):
            raise ValueError("something follows the end")
        return Lock(sections, self._hash.hexdigest())

    def _section(self, line: bytes, sections: dict[Home, dict[str, LockEntry]]) -> bool:
        """Adds the section that begins with a line; returns True if a comma follows it."""
        head = _opened(line)
        if head.keys() != {"target", "cores", "entries"} or not _is_text(head["target"]):
            raise ValueError("a section has target, cores and entries")
        check_cores(head["cores"])
        home = head["target"], head["cores"]
        if home in sections:
            raise ValueError("the target has another section above")
        sections[home] = {}
        return self._list(lambda entry: self._entry(entry, sections[home]))

    def _entry(self, line: bytes, entries: dict[str, LockEntry]) -> bool:
        """Adds the entry in a line; returns True if a comma follows it."""
        entry = _written_entry(line, self.number) or _entry(
            read_row(line.removesuffix(b",")), self.number
        )
        if entry.site in entries:
            raise ValueError(f"line {entries[entry.site].line} has the same site")
        entries[entry.site] = entry
        return line.endswith(b",")

    def _list(self, item: Callable[[bytes], bool]) -> bool:
        """Reads the items of a list and the line that closes it; returns True if a comma follows.

        `item` reads the item that begins with a line, and returns True if a comma follows it.
        """
        comma: bool | None = None
        while (line := self._line().strip()) not in (b"]}", b"]},"):
            if comma is False:
                raise ValueError("a comma is missing before this line")
            comma = item(line)
        if comma:
            raise ValueError("a comma stands before the end of a list")
        return line == b"]},"

    def _line(self) -> bytes:
        self.number += 1
        self.last = line = self._file.readline(LONGEST_LINE + 1)
        self._size += len(line)
        check_length(line)
        if self._size > _MOST_BYTES:
            raise ValueError(f"the file has more than {_MOST_BYTES >> 20} MiB")
        if not line:
            raise ValueError("the file ends here")
        self._hash.update(line)
        return line


def _opened(line: bytes) -> dict[str, Any]:
    """Returns the object that a line begins, with the list that it opens left empty."""
    if not line.strip().endswith(b"["):
        raise ValueError("the line does not open a list, as tcc writes it")
    return read_row(line + b"]}")


def _written_entry(line: bytes, number: int) -> LockEntry | None:
    """Returns the entry in a line as `lock_text` writes it; None for a line that needs a JSON
    reader, which gives the same entry for all lines that this function reads."""
    parts = _WRITTEN_ENTRY.fullmatch(line.decode("latin-1"))
    if parts is None:
        return None
    site, op, changed, alternative, other, gain, bound = parts.groups()
    gains = None if gain is None else _gain([float(gain), float(bound)])
    return LockEntry(site, op, changed or other, alternative, gains, number)


def _entry(row: dict[str, Any], line: int) -> LockEntry:
    """Returns the entry of a JSON object; raises ValueError for another object."""
    if row.keys() != {"site", "op", "verdict", "alternative", "gain"}:
        raise ValueError("an entry has site, op, verdict, alternative and gain")
    site, op, verdict = row["site"], row["op"], row["verdict"]
    alternative, gain = row["alternative"], row["gain"]
    check_site(site)
    if not _is_text(op):
        raise ValueError(f"op is no text of up to {_LONGEST_TEXT} characters")
    if verdict not in VERDICTS:
        raise ValueError(f"verdict is none of {', '.join(VERDICTS)}")
    if (verdict in (CHANGED, PINNED)) != (isinstance(alternative, str) and alternative != ""):
        raise ValueError(f"only {CHANGED} and {PINNED} entries have an alternative")
    if alternative is not None and not isinstance(alternative, str):
        raise ValueError("alternative is no text")
    return LockEntry(site, op, verdict, alternative, _gain(gain), line)


def _gain(gain: Any) -> tuple[float, float] | None:
    if gain is None:
        return None
    if (
        not isinstance(gain, list)
        or [type(number) for number in gain] != [float, float]
        or not all(0 < number < _MOST_GAIN for number in gain)
    ):
        raise ValueError("gain is no ratio with its lower bound, as in [1.46, 1.38]")
    return gain[0], gain[1]


def _is_text(item: Any) -> bool:
    return isinstance(item, str) and 0 < len(item) <= _LONGEST_TEXT


# ---- writing ------------------------------------------------------------------------------------


def lock_text(lock: Lock) -> str:
    """Returns the text of a lock: sorted, with an entry in each line."""
    sections = []
    for (target, cores), entries in ordered(lock):
        head = json.dumps({"target": target, "cores": cores, "entries": []})
        rows = ",\n".join(f"  {json.dumps(entry.record)}" for entry in entries)
        sections.append(f" {head.removesuffix(']}')}\n{rows}\n ]}}")
    lines = [f'{{"version": {VERSION}, "targets": [', *([",\n".join(sections)] if sections else ())]
    return "\n".join((*lines, "]}\n"))


def update_lock(path: Path, change: Callable[[Lock], Lock]) -> Lock:
    """Replaces the lock in a file by the lock that `change` makes of it, and returns the new lock.

    A missing file is an empty lock. The file changes at once or not at all, and processes that
    update it at the same time wait for each other. Raises UserError if the file is no lock or
    cannot be written.
    """
    place = path.resolve()
    with (
        file_errors("the lock cannot be written", f"--lock {path}"),
        _alone(place.parent),
    ):
        old = read_lock(place, "--lock") if place.exists() else Lock()
        lock = change(old)
        _write(place, lock_text(lock).encode())
        return lock


def _write(place: Path, data: bytes) -> None:
    temporary = place.with_name(f".{place.name}-{token_hex(8)}")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb"
        ) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process is in this context for `folder`, if its file system has
    locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
