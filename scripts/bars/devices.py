"""Limits for collectives of GPUs, with stand-in libraries on every machine and on a real GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from environment import ROOT
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars.figures import TESTS, Figure, absent, say
from gpu.run import why_no_gpu

sys.path += (str(ROOT), str(TESTS / "comm"))

from library import DEVICE_LIBRARIES, build_nccl, build_program, run

RANKS = (1, 2, 3, 4)
_HOLDS, _DOES_NOT = "all hold", "some do not hold"


def devices(folder: Path) -> Iterator[Figure]:
    """Yields a figure for each stand-in library (NCCL, ...) and a figure for a real GPU.

    A stand-in library checks each call that it gets: in all collectives, and, for NCCL, also in
    every scenario of a failing library. On the GPU, one rank runs each operation.
    """
    library = build_comm_library(find_toolchain(), folder)
    matrix, faults = (build_program(folder, name, library) for name in ("matrix", "device_faults"))
    text = (TESTS / "comm" / "device_faults.c").read_text()
    scenarios = re.findall(r'^    \{"(\w+)", \1, ', text, re.MULTILINE)
    for name in DEVICE_LIBRARIES:
        variables = build_nccl(folder, name)
        commands = [(matrix, str(n), "short", "shared", name) for n in RANKS]
        if name == "nccl":  # one library is enough: the code that handles faults is common
            commands += [(faults, scenario) for scenario in scenarios]
        good = all([_holds(*command, **variables) for command in commands])
        what = f"{name.upper()}'s calls, {RANKS[0]} to {RANKS[-1]} ranks"
        yield Figure(what, _HOLDS if good else _DOES_NOT, _HOLDS, good)
    yield _on_one_gpu(folder)


def _holds(*command: str | Path, **variables: str) -> bool:
    say(" ".join(map(str, command[1:])))
    try:
        return run(*command, **variables) == "ok\n"
    except (AssertionError, TimeoutError) as error:
        say(str(error))
        return False


def _on_one_gpu(folder: Path) -> Figure:
    what, reason = "each operation of the library, one rank", why_no_gpu()
    if reason is not None:
        return absent(what, _HOLDS, "no GPU that torch sees")
    program, out = str(ROOT / "scripts" / "gpu_check"), str(folder / "gpu")
    check = (program, "--only", "collectives", "-o", out)
    process = subprocess.run(
        [sys.executable, *check], stdout=subprocess.PIPE, text=True, check=False
    )
    say(process.stdout)
    if "collectives: not here" in process.stdout:
        return absent(what, _HOLDS, "no NCCL or RCCL")
    good = process.returncode == 0
    return Figure(what, _HOLDS if good else _DOES_NOT, _HOLDS, good)
