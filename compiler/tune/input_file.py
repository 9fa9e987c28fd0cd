"""Opens files that are not trusted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from tcc.errors import UserError, file_errors


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
