"""The console command `tcc`; `python -m tcc` is the same command."""

import os

# `_signal` is built in; `signal` would import further modules first.
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
    # One thread suffices: nothing here depends on the speed of NumPy's matmuls, and starting more
    # threads takes 20 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _end)
    __import__("tcc.cli.commands", fromlist=["main"]).main()


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + SIGINT)


if __name__ == "__main__":
    main()
