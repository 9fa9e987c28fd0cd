"""Writes files that are complete at any time: it renames complete temporary files beside them."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path`, and creates its folder if it is missing.

    If the process is stopped before the end, the file keeps its old contents.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
