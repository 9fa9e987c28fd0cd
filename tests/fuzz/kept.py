"""The corpora of the fuzz targets: an archive each in tests/fuzz/corpus, of inputs that together
reach what fuzzing has reached."""

from __future__ import annotations

import zipfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
_DATE = (1980, 1, 1, 0, 0, 0)  # equal inputs make equal archives


def kept_inputs(target: str) -> list[bytes]:
    """Those of one target."""
    with zipfile.ZipFile(CORPUS / f"{target}.zip") as archive:
        return [archive.read(name) for name in archive.namelist()]


def write_inputs(target: str, folder: Path) -> list[Path]:
    """The same as files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, data in enumerate(kept_inputs(target)):
        paths.append(folder / f"kept-{number}")
        paths[-1].write_bytes(data)
    return paths


def keep_inputs(target: str, folder: Path) -> None:
    """Makes the files of `folder` the target's corpus, in the order of their contents."""
    contents = sorted({path.read_bytes() for path in folder.iterdir()})
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(contents):
            archive.writestr(zipfile.ZipInfo(f"{number:04}", _DATE), data, zipfile.ZIP_DEFLATED)
