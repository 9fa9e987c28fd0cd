"""The worker that runs an artifact with tcc of another commit: MODEL.so INPUTS.npz THREADS TREE.

TREE is the development tree of that commit, from which this process imports tcc.
"""

import sys

sys.path.insert(0, sys.argv[4])

from tcc.cli.peers.tcc import prepare

try:
    from tcc.runtime.worker import serve
except ModuleNotFoundError:  # commits before 30 November 2026
    from tcc.cli.peers.worker import serve  # type: ignore[import-not-found,no-redef]

if __name__ == "__main__":
    serve(lambda model, feed, threads, _: prepare(model, feed, threads))
