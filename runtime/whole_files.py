"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def write_whole(path: Path, data: bytes) -> None:
    """Writes `data` to another name beside `path`, and renames that; a device is written directly.

    Raises OSError if the file cannot be written. Then `path` is as before, and no part is left.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # a device or a pipe, which a rename would replace
        return
    partial = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
