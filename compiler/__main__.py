"""The console command `tcc`; `python -m tcc` is the same command."""

import os

# The built-in module; importing `signal` would load further modules first.
from _signal import (  # type: ignore[import-not-found]
    SIGINT,
    default_int_handler,
    getsignal,
    signal,
)


def main() -> None:
    """Runs the command line.

    Until the command line handles errors, Ctrl-C ends the process at once, with the same message
    and exit code.
    """
    # NumPy's matmuls are of no use for speed here, and their threads take 20 ms to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _end)
    __import__("tcc.cli.commands", fromlist=["main"]).main()


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + SIGINT)


if __name__ == "__main__":
    main()
