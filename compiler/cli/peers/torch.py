"""Runs .pt2 archives by PyTorch's operators: MODEL.pt2 INPUTS.npz THREADS [BEGIN:END:FILE ...].

Each `BEGIN:END:FILE` runs the archive on the sets of inputs BEGIN to END - 1 (`worker.run_ranges`).
If FILE is MODEL.pt2, the archive runs unchanged.  Otherwise FILE is JSON with the fields of
`Rounding`: it says how the operands of contractions are rounded.  Outputs are named by their index
in the archive.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tcc.frontends import replayed
from tcc.frontends.rounding import Rounding
from tcc.runtime.worker import Arrays, Run, run_ranges, serve


def prepare(model: Path, feed: Path, threads: int, *ranges: str) -> Run:
    """Returns a function that returns the outputs of `model` for all `ranges`, by name."""

    def open_model(path: str) -> Callable[[Arrays], Arrays]:
        rounding = {} if path == str(model) else json.loads(Path(path).read_text())
        return replayed(str(model), Rounding(**rounding))

    outputs = run_ranges(feed, ranges, open_model)
    return lambda: outputs


if __name__ == "__main__":
    serve(prepare)
