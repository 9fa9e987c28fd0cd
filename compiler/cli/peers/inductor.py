"""The worker that runs an archive with torch.compile: MODEL.pt2 INPUTS.npz THREADS.

Outputs are named by their index in the archive.
"""

import os
from pathlib import Path

from tcc.frontends import compiled_by_torch
from tcc.runtime.worker import Run, read_arrays, serve


def prepare(model: Path, feed: Path, threads: int) -> Run:
    """Returns a function that runs the compiled archive once on the arrays of `feed`."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(feed.parent / "inductor")
    return compiled_by_torch(str(model), read_arrays(feed), threads)


if __name__ == "__main__":
    serve(prepare)
