"""Tells the types of files with magika.

python models/examples/magika_files.py magika_v3_3.onnx README.md pyproject.toml
python models/examples/magika_files.py --save samples README.md pyproject.toml    # for tcc quantize
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tcc
from tcc.runtime.ranking import Ranking, read_labels

HERE = Path(__file__).parent
# Bytes that are read at each end of a file, bytes that the model takes, and the padding's number.
BLOCK, PART, PADDING = 4096, 1024, 256


def features(path: Path) -> Any:
    """Returns the first and the last 1,024 bytes of a file, without white space at its ends."""
    with path.open("rb") as file:
        first = file.read(BLOCK).lstrip()[:PART]
        file.seek(-min(BLOCK, path.stat().st_size), 2)
        last = file.read().rstrip()[-PART:]
    numbers = np.full(2 * PART, PADDING, np.int32)
    numbers[: len(first)] = list(first)
    numbers[2 * PART - len(last) :] = list(last)
    return numbers


def save(folder: Path, *files: str) -> None:
    """Writes the inputs of the model for each file as samples `0000.npy` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        np.save(folder / f"{number:04}.npy", features(Path(file))[None])


def main(model: str, *files: str) -> None:
    """Prints the most likely type of each file, and its probability."""
    if model == "--save":
        return save(Path(files[0]), *files[1:])
    module = tcc.compile(model)
    ranking = Ranking(1, read_labels(HERE / "magika_labels.txt"))
    scores = module(np.stack([features(Path(file)) for file in files]))
    for file, [(_, label, score)] in zip(files, ranking.rows(scores), strict=True):
        print(f"{file}: {label} {score:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
