"""The corpora of the fuzz targets: an archive per target in tests/lib/fuzz/corpus.

A corpus together reaches all lines that fuzzing has reached.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
_LONGEST = 2048  # The largest number of bytes of an input in a corpus.
_DATE = (1980, 1, 1, 0, 0, 0)  # A fixed date makes archives of equal inputs equal.


def kept_inputs(target: str) -> list[bytes]:
    """Returns a target's corpus."""
    with zipfile.ZipFile(CORPUS / f"{target}.zip") as archive:
        return [archive.read(name) for name in archive.namelist()]


def write_inputs(target: str, folder: Path) -> list[Path]:
    """Writes a target's corpus as files of a folder, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, data in enumerate(kept_inputs(target)):
        paths.append(folder / f"kept-{number}")
        paths[-1].write_bytes(data)
    return paths


def least_inputs(check: Callable[[bytes], None], folders: Iterable[Path]) -> list[bytes]:
    """Returns the inputs in `folders`, short inputs first, that reach lines no earlier input
    reached."""
    reached: set[tuple[str, int]] = set()
    inputs = []
    contents = {path.read_bytes() for folder in folders for path in folder.iterdir()}
    for data in sorted(contents, key=lambda data: (len(data), data)):
        lines = _lines(check, data)
        if len(data) <= _LONGEST and not lines <= reached:
            reached |= lines
            inputs.append(data)
    return inputs


def _lines(check: Callable[[bytes], None], data: bytes) -> set[tuple[str, int]]:
    """Returns the lines of tcc that `check(data)` runs."""
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if "/tcc/" not in name:
            return None
        lines.add((name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        check(data)
    finally:
        sys.settrace(None)
    return lines


def keep_inputs(target: str, inputs: Iterable[bytes]) -> None:
    """Makes the inputs the target's corpus, sorted by their contents."""
    contents = sorted(set(inputs))
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(contents):
            archive.writestr(zipfile.ZipInfo(f"{number:04}", _DATE), data, zipfile.ZIP_DEFLATED)
