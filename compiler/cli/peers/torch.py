"""Runs .pt2 archives by PyTorch's operators: MODEL.pt2 INPUTS.npz THREADS [BEGIN:END:FILE ...].

`BEGIN:END:FILE` runs the archive on several sets of inputs, as `worker.run_ranges` explains.  FILE
is the archive itself, or JSON that says how the operands of its contractions are rounded.  The
archive's outputs are named by their index.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tcc.cli.peers.worker import Arrays, Run, run_ranges, serve
from tcc.frontends import replayed
from tcc.frontends.rounding import Rounding


def prepare(model: Path, feed: Path, threads: int, *ranges: str) -> Run:
    """Returns a function that returns the outputs of `model` for all `ranges`, by name."""

    def open_model(path: str) -> Callable[[Arrays], Arrays]:
        rounding = {} if path == str(model) else json.loads(Path(path).read_text())
        return replayed(str(model), Rounding(**rounding))

    outputs = run_ranges(feed, ranges, open_model)
    return lambda: outputs


if __name__ == "__main__":
    serve(prepare)
