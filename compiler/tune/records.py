"""Records: the measurements of sweeps, one in each line of a file that only grows.

{"sum": "0f3c...", "record": {"version": 1, "tcc": "0.1.0", "machine": "a, 2 cores", ...}}

`sum` is a checksum of the text of the record. Files can be concatenated, and equal lines count
once. Several processes may append to a file. A process that is killed leaves a part of a line at
most, which readers ignore.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tcc.errors import UserError, file_errors
from tcc.frozen import frozen
from tcc.passes.choose.choices_file import read_row
from tcc.tune.input_file import LONGEST_LINE, check_cores, check_length, check_site, opened_file
from tcc.tune.measurement import OUTCOMES, PHASES, Measurement

_VERSION = 1
# A file of this size is read within 2 s, so a broken one is refused as soon.
_MOST_BYTES, _LONGEST_TEXT, _LONGEST_CHOICE = 24 << 20, 1000, 64 << 10
_MOST_NUMBER = 1e18  # above any seconds, and any multiply-adds per second
_START, _MIDDLE, _END = b'{"sum": "', b'", "record": ', b"}"
_SUM = 16  # hexadecimal digits of a checksum
_NUMBERS = ("seconds", "partner", "peaks")
_TEXTS = {"tcc": _LONGEST_TEXT, "machine": _LONGEST_TEXT, "target": _LONGEST_TEXT,
          "op": _LONGEST_TEXT, "candidate": _LONGEST_CHOICE, "why": _LONGEST_CHOICE}  # fmt: skip


@frozen
class Record:
    """A measurement, with the version of tcc and the machine that made it."""

    tcc: str
    machine: str
    measurement: Measurement


_KEYS = {"version", "tcc", "machine", *(field.name for field in fields(Measurement))}


def record_line(record: Record) -> bytes:
    """Returns the line of a record; equal records have equal lines."""
    facts = {"version": _VERSION, "tcc": record.tcc, "machine": record.machine}
    body = json.dumps(facts | asdict(record.measurement)).encode()
    return b"%s%s%s%s%s\n" % (_START, _checksum(body), _MIDDLE, body, _END)


def append(path: Path, records: Iterable[Record]) -> None:
    """Appends records to a file, which need not exist.

    Each line is written at once. Other processes may append to the file at the same time. Raises
    UserError if the file cannot be written.
    """
    with file_errors("the records cannot be written", f"--records {path}"):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _drop_torn_line(file)
            for record in records:
                line = record_line(record)
                if os.write(file.fileno(), line) != len(line):
                    raise OSError(28, "No space is left for a record")


def _drop_torn_line(file: Any) -> None:
    """Removes the end of a file behind its last line, which a killed process has left."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - LONGEST_LINE)
    tail = os.pread(file.fileno(), size - start, start)
    if not tail.endswith(b"\n") and tail:
        os.ftruncate(file.fileno(), start + tail.rfind(b"\n") + 1)


# ---- reading ------------------------------------------------------------------------------------


def read_records(paths: Sequence[Path], flag: str = "--from") -> list[Record]:
    """Returns the records of files; equal records count once, and the order of the files and lines
    has no effect.

    `flag` names the files in messages. Raises UserError, with the number of the line, for a file of
    another form. An incomplete line at the end of a file, also of a file that was concatenated with
    others, is ignored.
    """
    records: dict[bytes, Record] = {}
    for path in paths:
        with opened_file("records", f"{flag} {path}", path, _MOST_BYTES) as file:
            lines = iter(partial(file.readline, LONGEST_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                try:
                    _add(line, records)
                except ValueError as error:
                    raise UserError(
                        "a line is no record",
                        where=f"{flag} {path}, line {number}",
                        why=error,
                        hint="remove the line, or the file",
                    ) from error
    return [records[key] for key in sorted(records)]


def _add(line: bytes, records: dict[bytes, Record]) -> None:
    """Adds the record in a line; raises ValueError if the line has none."""
    check_length(line)
    # A process that was killed has left the text before the last start of a record.
    start = max(0, line.rfind(_START))
    torn = line[:start] if line.endswith(b"\n") else line
    if torn[: len(_START)] != _START[: len(torn)]:
        raise ValueError("it does not begin as a record")
    if not line.endswith(b"\n"):
        return
    key = line[start:-1]
    if key not in records:
        records[key] = _record(read_row(_body(key)))


def _body(line: bytes) -> bytes:
    """Returns the text of the record in a line; raises ValueError unless its checksum fits."""
    begin = len(_START) + _SUM
    checksum, middle = line[len(_START) : begin], line[begin : begin + len(_MIDDLE)]
    body = line[begin + len(_MIDDLE) : -len(_END)]
    if not line.startswith(_START) or middle != _MIDDLE or not line.endswith(_END):
        raise ValueError("it does not have the form of a record")
    if checksum != _checksum(body):
        raise ValueError("its checksum is another one")
    return body


def _checksum(body: bytes) -> bytes:
    return sha256(body).hexdigest()[:_SUM].encode()


def _record(row: dict[str, Any]) -> Record:
    """Returns the record of a JSON object; raises ValueError for another object."""
    if repr(row.get("version")) != repr(_VERSION):
        raise ValueError(f"its version is not {_VERSION}")
    if row.keys() != _KEYS:
        raise ValueError(f"a record has {', '.join(sorted(_KEYS))}")
    for name, longest in _TEXTS.items():
        if not isinstance(row[name], str) or len(row[name]) > longest:
            raise ValueError(f"{name} is no text of up to {longest} characters")
    check_cores(row["cores"])
    if row["site"] != "":
        check_site(row["site"])
    if row["phase"] not in PHASES or row["outcome"] not in OUTCOMES:
        raise ValueError("phase or outcome has no such value")
    rounds = {name: _numbers(name, row[name]) for name in _NUMBERS}
    if len({*map(len, rounds.values())}) > 1:
        raise ValueError("seconds, partner and peaks have different lengths")
    facts = {name: row[name] for name in row.keys() - {"version", "tcc", "machine"}}
    return Record(row["tcc"], row["machine"], Measurement(**facts | rounds))


def _numbers(name: str, items: Any) -> tuple[float, ...]:
    types = {*map(type, items)} if isinstance(items, list) else {str}
    if not types <= {int, float} or (types and not 0 < min(items) <= max(items) < _MOST_NUMBER):
        raise ValueError(f"{name} is no list of positive numbers")
    return tuple(items) if types == {float} else tuple(map(float, items))


# ---- use ----------------------------------------------------------------------------------------


def shard_of(text: str) -> tuple[int, int]:
    """Returns (number, count) for a text such as 2/5; raises ValueError for another text."""
    numbers = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if numbers is None or not 0 < int(numbers[1]) <= int(numbers[2]):
        raise ValueError(f"{text!r} is no part such as 2/5")
    return int(numbers[1]), int(numbers[2])


def in_shard(site: str, shard: tuple[int, int]) -> bool:
    """Returns True if the site with this digest belongs to shard `shard[0]`, counted from 1, of
    `shard[1]` shards."""
    number, count = shard
    return int(site, 16) % count == number - 1


def comparable(records: Sequence[Record]) -> list[Measurement]:
    """Returns the measurements of records, with peaks in parts of the best peak of their machine.

    So a round counts if its machine was at its usual speed, whichever machine that is.
    """
    best: dict[str, float] = {}
    for record in records:
        peak = max(record.measurement.peaks, default=0.0)
        best[record.machine] = max(best.get(record.machine, 0.0), peak)
    return [
        replace(m, peaks=tuple(peak / best[record.machine] for peak in m.peaks))
        for record in records
        for m in (record.measurement,)
    ]
