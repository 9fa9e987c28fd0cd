"""Opens files that are not trusted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from tcc.errors import UserError, file_errors
from tcc.passes.choose.choices_file import DIGEST

LONGEST_LINE = 256 << 10
_MOST_CORES = 1 << 16


@contextmanager
def opened_file(noun: str, where: str, path: Path, limit: int) -> Iterator[BinaryIO]:
    """Yields a regular file of at most `limit` bytes; `noun` and `where` name it in messages.

    Raises UserError for anything else, such as a pipe, which could block forever, and for a file
    that cannot be read.
    """
    what = f"the {noun} cannot be read"
    with (
        file_errors(what, where),
        open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file,
    ):
        status = os.fstat(file.fileno())
        if not S_ISREG(status.st_mode) or status.st_size > limit:
            why = f"it is no file, or has more than {limit >> 20} MiB"
            raise UserError(what, where=where, why=why, hint="give another file")
        yield file


def check_length(line: bytes) -> None:
    """Raises ValueError for a line of more than `LONGEST_LINE` bytes."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it has more than {LONGEST_LINE >> 10} KiB")


def check_cores(cores: Any) -> None:
    """Raises ValueError unless `cores` is a number of cores."""
    if type(cores) is not int or not 0 < cores <= _MOST_CORES:
        raise ValueError("cores is no number of cores")


def check_site(site: Any) -> None:
    """Raises ValueError unless `site` is the digest of a site."""
    if not isinstance(site, str) or not DIGEST.fullmatch(site):
        raise ValueError("site is no digest of 32 hexadecimal digits")
