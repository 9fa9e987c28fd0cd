"""Reads files of forced choices, as `tcc inspect MODEL --choices --json` prints them.

    {"site": "0f3c...", "alternative": "apart"}

Each line of a file has a JSON object.  A site is a place in the model where the compiler chooses
among alternatives.  `site` is the digest or the text of a site, and `alternative` the digest or the
text of an alternative.  Other keys are ignored.  Files are not trusted.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tcc.errors import UserError, file_errors
from tcc.passes.choose.ledger import Line
from tcc.schedule.alternatives import read_site

_MOST_BYTES, _MOST_LINES = 256 << 20, 200_000
_LONGEST_LINE = 8 << 20
_LONGEST_NUMBER = 40
# A table for bytes.translate: a digit for each character of a number, and a space for any other.
_DIGITS = bytes(48 if n in b"+-.eE0123456789" else 32 for n in range(256))
_LONG_NUMBER = b"0" * (_LONGEST_NUMBER + 1)
DIGEST = re.compile(r"[0-9a-f]{32}")
_HINT = "tcc inspect MODEL --choices --json prints such a file"


def read_lines(path: Path) -> tuple[Line, ...]:
    """Returns the lines of the file `path`.

    Raises UserError, with the number of the line, for a file in another format.
    """
    place = f"--choices {path}"
    with file_errors("the file of choices cannot be read", place, _HINT), path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES or data.count(b"\n") > _MOST_LINES:
        raise UserError(
            "the file of choices is too large",
            where=place,
            why=f"it has more than {_MOST_BYTES >> 20} MiB or {_MOST_LINES} lines",
            hint=_HINT,
        )
    lines: dict[str, Line] = {}
    for line in _parsed(data, path):
        other = lines.setdefault(line.site, line)
        if other is not line:
            raise UserError(
                "a site has two choices",
                where=line.where,
                why=f"{other.where} names the same site",
                hint="keep one of the lines",
            )
    return tuple(lines.values())


def _parsed(data: bytes, path: Path) -> Iterator[Line]:
    for number, text in enumerate(data.split(b"\n"), 1):
        if text.strip():
            where = f"--choices {path}, line {number}"
            try:
                yield _line(text, where)
            except ValueError as error:
                raise UserError(
                    "a line is no choice", where=where, why=error, hint=_HINT
                ) from error


def _line(text: bytes, where: str) -> Line:
    if len(text) > _LONGEST_LINE:
        raise ValueError(f"it has more than {_LONGEST_LINE >> 20} MiB")
    row = read_row(text)
    site, alternative = row.get("site"), row.get("alternative")
    if not isinstance(site, str) or not isinstance(alternative, str):
        raise ValueError('it needs the texts "site" and "alternative"')
    digest = site if DIGEST.fullmatch(site) else read_site(site).digest
    return Line(digest, alternative, where)


def read_row(text: bytes) -> dict[str, Any]:
    """Returns the JSON object in a line.

    Raises ValueError, with a sentence, for anything else: also for an object that has a key twice,
    and for a number that is not finite or has more than 40 characters.
    """
    try:
        decoder = _STRICT_DECODER if _LONG_NUMBER in text.translate(_DIGITS) else _DECODER
        line = text.decode().strip(" \t\r\n")
        row, end = decoder.raw_decode(line)
        if end != len(line):
            raise ValueError("something follows its JSON")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    if b"\\u" in text and not _is_unicode(row):
        raise ValueError("a text has half of a surrogate pair")
    return row


def _is_unicode(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("it has a key twice")
    return row


def _short(digits: str) -> str:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number has more than {_LONGEST_NUMBER} characters")
    return digits


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unrepeated, parse_constant=_no_number)
# It calls Python for each number, which takes long.
_STRICT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unrepeated,
    parse_int=lambda digits: int(_short(digits)),
    parse_float=lambda digits: float(_short(digits)),
    parse_constant=_no_number,
)
