"""The worker that runs an artifact: MODEL.so INPUTS.npz THREADS."""

from pathlib import Path

from tcc.artifact import load
from tcc.runtime.worker import Run, read_arrays, serve


def prepare(artifact: Path, feed: Path, threads: int) -> Run:
    """Returns a function that runs the artifact once on the arrays of `feed`."""
    module = load(artifact, threads)
    inputs = read_arrays(feed)
    return lambda: module.run(inputs)


if __name__ == "__main__":
    serve(prepare)
