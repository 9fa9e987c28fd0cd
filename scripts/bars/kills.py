"""Limits for jobs with a killed rank: the time until all ranks have ended, and their messages."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from environment import ROOT
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain
from tcc.driver import compile_model
from tcc.options import read_options

from bars.engines import installed
from bars.figures import Figure, at_most, say

sys.path.insert(0, str(ROOT))
from tests.jobs import MARK, is_loaded, long_model, rank_processes, wait_for_ends

_KILLS, _RANKS, _BAR = 20, 2, 2000.0
_MOMENTS = 0.3  # the longest time in seconds from the load of the model on all ranks to the kill


def kills(folder: Path) -> Iterator[Figure]:
    """Yields the longest time from a kill of a rank to the end of the last rank.

    There is a figure for `tcc run --nproc` and for each mpiexec.  A second figure for `tcc run`
    counts the kills after which every other rank has said a sentence.
    """
    library = build_comm_library(find_toolchain(), folder)
    onnx.save(long_model(), folder / "long.onnx")
    artifact = folder / "long.so"
    compile_model(folder / "long.onnx", read_options({"ranks": _RANKS}), artifact)
    rank_command = (sys.executable, "-m", "tcc", "run", str(artifact))
    variables = {"TCC_COMM_LIBRARY": str(library)}
    commands = {"tcc run": ((*rank_command, f"--nproc={_RANKS}"), variables)}
    for launcher in installed():
        command = (*launcher.command(_RANKS), *rank_command)
        commands[launcher.name] = (command, variables | launcher.variables)
    for name, (command, variables) in commands.items():
        trials = []
        for number in range(_KILLS):
            trials.append(_killed(command, variables, artifact, number))
            say(f"{name}: kill {number + 1} of {_KILLS}: {trials[-1][0]:.0f} ms")
        longest = max(milliseconds for milliseconds, _ in trials)
        yield at_most(f"{name}: from a kill to the last end", longest, _BAR, "ms")
        if name == "tcc run":
            spoken = sum(sentences for _, sentences in trials)
            what = "tcc run: kills after which the others spoke"
            yield Figure(what, f"{spoken} of {_KILLS}", f"{_KILLS}", spoken == _KILLS)


def _killed(
    command: Sequence[str], variables: Mapping[str, str], artifact: Path, seed: int
) -> tuple[float, bool]:
    """Kills a rank of a job at a moment in its run that `seed` draws.

    Returns the milliseconds until all ranks have ended, infinite if one lives for a minute, and
    True if every other rank has said a sentence.
    """
    draws, mark = random.Random(seed), str(uuid.uuid4())
    process = subprocess.Popen(
        command, env={**os.environ, **variables, MARK: mark}, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        ranks: dict[int, int] = {}
        while len(ranks) < _RANKS or not all(is_loaded(p, artifact) for p in ranks.values()):
            if process.poll() is not None:
                raise RuntimeError(f"{command} ended: {process.communicate()[1]}")
            ranks = rank_processes(mark)
        time.sleep(draws.uniform(0, _MOMENTS))
        victim = draws.randrange(_RANKS)
        start = time.monotonic()
        os.kill(ranks[victim], signal.SIGKILL)
        alive = wait_for_ends([*ranks.values()], 60)
        milliseconds = float("inf") if alive else (time.monotonic() - start) * 1e3
        lines = process.communicate(timeout=60)[1].splitlines()
    finally:
        process.kill()
        process.wait()
    survivors = ranks.keys() - {victim}
    return milliseconds, all(
        any(line.startswith(f"rank {rank}: ") for line in lines) for rank in survivors
    )
