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

from tcc.errors import UserError
from tcc.passes.choose.ledger import Line
from tcc.schedule.alternatives import read_site

_MOST_BYTES, _MOST_LINES = 256 << 20, 200_000
_LONGEST_LINE = 8 << 20
_DIGEST = re.compile(r"[0-9a-f]{32}")
_HINT = "tcc inspect MODEL --choices --json prints such a file"


def read_lines(path: Path) -> tuple[Line, ...]:
    """Returns the lines of the file `path`.

    Raises UserError, with the number of the line, for a file in another format.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            "the file of choices cannot be read",
            where=f"--choices {path}",
            why=error.strerror or str(error),
            hint=_HINT,
        ) from error
    if len(data) > _MOST_BYTES or data.count(b"\n") > _MOST_LINES:
        raise UserError(
            "the file of choices is too large",
            where=f"--choices {path}",
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
            except (ValueError, RecursionError) as error:
                raise UserError(
                    "a line is no choice",
                    where=where,
                    why=str(error) if type(error) is ValueError else "it is not JSON",
                    hint=_HINT,
                ) from error


def _line(text: bytes, where: str) -> Line:
    if len(text) > _LONGEST_LINE:
        raise ValueError(f"it has more than {_LONGEST_LINE >> 20} MiB")
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    site, alternative = row.get("site"), row.get("alternative")
    if not isinstance(site, str) or not isinstance(alternative, str):
        raise ValueError('it needs the texts "site" and "alternative"')
    digest = site if _DIGEST.fullmatch(site) else read_site(site).digest
    return Line(digest, alternative, where)
