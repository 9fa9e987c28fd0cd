"""Writes files that are complete at any time: beside their places, then renamed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to `path`, and makes its folder where it is missing.  If the process stops on
    the way, the old contents stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
