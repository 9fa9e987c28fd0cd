"""A corpus of hostile inputs: the files of each case, and the required reaction of tcc.

    python -m tests.lib.fuzz.hostile FOLDER       writes every case to FOLDER/NAME/

A case is a model (`m.onnx` and files beside it, or `m.pt2`) that is compiled, a model that is
compiled and run with arrays, or an artifact that is loaded. The outcomes are:

    WORKS     exit code 0
    REFUSED   exit code 2 and a message: of the import, of the load, or of the run
    EITHER    either of them

In all cases there is no signal, no traceback or internal error, no hang, no memory beyond the cap,
and no path that the compilation of a clean model does not open.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import hostile_archives, hostile_artifacts, hostile_files, hostile_graphs, hostile_runs
from .hostile_case import Case


def cases() -> tuple[Case, ...]:
    """Returns all cases, whose names are distinct."""
    all_cases: list[Case] = []
    for module in (
        hostile_files,
        hostile_graphs,
        hostile_runs,
        hostile_artifacts,
        hostile_archives,
    ):
        all_cases += module.cases()
    return tuple(all_cases)


def main(folder: Path) -> None:
    for case in cases():
        case.write_to(folder / case.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
