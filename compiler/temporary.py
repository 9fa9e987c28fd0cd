"""Folders for a moment, gone however the process that made them ends."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def temporary_folder(prefix: str = "tcc-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent`, or in that for temporary files; forks of its process leave it
    alone.

    Its name is known before it is made, and its removal is begun again after an interruption: a
    signal leaves nothing, whenever it comes.  Raises OSError where it cannot be made.
    """
    folder = Path(parent or tempfile.gettempdir(), f"{prefix}{token_hex(8)}")
    process = os.getpid()
    try:
        try:
            folder.mkdir(0o700)
            yield folder
        finally:
            _remove(folder, process)
    finally:
        _remove(folder, process)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
