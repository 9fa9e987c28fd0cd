"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def write_whole(path: Path, data: bytes) -> None:
    """Writes `data` to another name beside `path`, and renames that; a device is written directly.

    Raises OSError if the file cannot be written. Then `path` is as before, and no part is left.
    """
    write_all({path: data})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Writes several files as `write_whole` does; none is renamed before all are written.

    Raises OSError if a file cannot be written. Then no part is left, and all files are as before,
    unless the system refuses to rename a file after it renamed another.
    """
    partials: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            if path.exists() and not path.is_file():
                path.write_bytes(data)  # a device or a pipe, which a rename would replace
                continue
            partial = path.with_name(f".{path.name}.{token_hex(8)}")
            partials[partial] = path
            partial.write_bytes(data)
        for partial, path in partials.items():
            os.replace(partial, path)
    except BaseException:
        for partial in partials:
            with suppress(OSError):
                partial.unlink()
        raise
