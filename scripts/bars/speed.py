"""Limits for time: processes that run at once, a call of Module, and collectives."""

from __future__ import annotations

import statistics
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from comm_times import CollectiveTimes, measured, table
from environment import ROOT
from onnx import TensorProto, helper, save
from tcc import compile as compile_model
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars.engines import installed, prefixes
from bars.figures import TESTS, Figure, absent, at_least, at_most, compiled, output, say

sys.path += (str(TESTS), str(TESTS / "comm"))

from library import build_program
from plugins import LIBRARIES
from trials import SYSTEM, WORKERS

TURNS, MILLISECONDS = 15, 400
MIB = 1 << 20


def processes(folder: Path) -> Iterator[Figure]:
    """Yields how much slower two processes on two CPUs are with two threads each than with one.

    The figure is the median of TURNS ratios; each is of two measurements, one after another.
    """
    program = compiled(folder, "crowd", (*WORKERS, *SYSTEM))

    def runs(threads: int) -> int:
        printed = output("taskset", "-c", "0,1", program, "2", "1", str(threads), str(MILLISECONDS))
        return int(printed.split()[0])

    ratios = [runs(1) / max(1, runs(2)) for _ in range(TURNS)]
    yield at_most("2 processes: 2 threads' time over 1 thread's", statistics.median(ratios), 1.3)


def call(folder: Path) -> Iterator[Figure]:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "call", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    save(model, folder / "call.onnx")
    module, x = compile_model(folder / "call.onnx"), np.ones(4, np.float32)
    rounds = timeit.repeat(lambda: module(x), number=1000, repeat=301)
    yield at_most("a call of Module, NumPy arrays", statistics.median(rounds) * 1e3, 2, "us")
    yield at_most("a call of Module, quickest round", min(rounds) * 1e3, 2, "us")


def _tcc_times(times: CollectiveTimes) -> Iterator[Figure]:
    for size, bar in ((4 << 10, 1), (64 << 10, 10), (MIB, 60)):
        yield at_most(f"all_reduce of {size >> 10} KiB", times.staged[size], bar, "us")
    for size in (s for s in times.staged if s >= 8 * MIB):
        share = times.ratios["copy"][size]
        yield at_least(f"all_reduce of {size >> 20} MiB over the copy limit", share, 0.75)
    yield at_least("symmetric over staged, 32 MiB", 1 / times.ratios["symmetric"][32 * MIB], 1.6)


def _peers(times: CollectiveTimes) -> Iterator[Figure]:
    for name, bar in (("gloo", 5.0), ("MPI", 1.4)):
        what = f"speed over {name}'s, worst size from 4 KiB on"
        peer_ratios = [times.ratios[peer] for peer in times.ratios if peer.startswith(name)]
        if not peer_ratios:
            yield absent(what, f">= {bar:g}", "not installed")
            continue
        best = {size: min(sizes[size] for sizes in peer_ratios) for size in times.staged}
        worst = min(best, key=best.__getitem__)
        yield at_least(what, best[worst], bar, note=f"({worst >> 10} KiB)")


def _more_ranks(perf: Path) -> Iterator[Figure]:
    """Yields figures of all_reduce of 1 MiB with more ranks than CPUs (two).

    The first is the time of four ranks over the time of two, the second the longest time of four.
    """

    def row(ranks: int) -> dict[str, float]:
        flags = ("-b", "1M", "-e", "1M", "-n", "500", "-c", "0", "-a", "0", "-g", str(ranks))
        printed = table(output("taskset", "-c", "0,1", perf, *flags))[0]
        return {name: float(printed[name]) for name in ("p50", "max")}

    two, four = zip(*((row(2), row(4)) for _ in range(5)), strict=True)
    ratio = statistics.median(b["p50"] / a["p50"] for a, b in zip(two, four, strict=True))
    yield at_most("4 ranks over 2 ranks, 2 CPUs, 1 MiB", ratio, 4)
    worst = max(times["max"] for times in four) / 1e3
    yield at_most("4 ranks, 2 CPUs, the longest of 2,500", worst, 20, "ms")


def all_reduce(folder: Path) -> Iterator[Figure]:
    """Yields the times of all_reduce between two pinned ranks.

    Then yields their ratios to the time of a copy of as many bytes, and to the times of the
    installed peers (Gloo, MPI), and the figures with more ranks than CPUs.
    """
    library = build_comm_library(find_toolchain(), folder)
    perf = build_program(folder, str(ROOT / "runtime/bench/perf"), library)
    say("all_reduce: five rounds of all sizes")
    times = measured(perf, installed(), 5)
    yield from _tcc_times(times)
    yield from _peers(times)
    yield from _more_ranks(perf)


def collectives(folder: Path) -> Iterator[Figure]:
    """Yields a figure for each check of scripts/comm_check, and one for all of them.

    The checks are all collectives over each library, ranks that end at random moments, and ranks on
    two hosts.
    """
    del folder
    command = [sys.executable, str(ROOT / "scripts" / "comm_check"), "--rounds", "0"]
    command += ["--mpi", *map(str, prefixes())]
    for name, library in LIBRARIES.items():
        if library.is_in(library.prefix):
            command += [f"--{name}", str(library.prefix)]
        else:
            yield absent(f"the matrix over {name}", "ok", f"not in {library.prefix}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            yield _outcome(line)
    good = process.returncode == 0
    yield Figure("all of scripts/comm_check", "holds" if good else "does not", "holds", good)


def _outcome(line: str) -> Figure:
    """Returns the figure that a line `CHECK: RESULT` of comm_check states."""
    what, _, text = line.partition(": ")
    text = text.strip()
    good = None if text.startswith("not here") else not text.startswith("FAILED")
    return Figure(what, text, "holds", good)
