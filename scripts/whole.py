"""Files that are whole at any time: written beside their places, and renamed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path`, whose folder is made where it is not; a stop on the way leaves what
    was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
