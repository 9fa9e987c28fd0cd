"""Times the all_reduce of several libraries in turns, for comm_check; reports medians of ratios."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT
from hosts.launchers import Launcher

MIN_BYTES, MAX_BYTES, FACTOR = 4 << 10, 32 << 20, 2
RUNS = 200

Sizes = dict[int, float]


def _run(command: Sequence[str | Path], **variables: str) -> str:
    process = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False,
        env=os.environ | variables,
    )  # fmt: skip
    if process.returncode:
        sys.exit(f"{command}: {process.stderr[-2000:]}")
    return process.stdout


def _peer_medians(text: str) -> Sizes:
    """Reads lines `bytes microseconds`; returns a map from bytes to microseconds."""
    rows = (line.split() for line in text.splitlines() if line[:1].isdigit())
    return {int(row[0]): float(row[1]) for row in rows}


def table(text: str) -> list[dict[str, str]]:
    """Returns the rows that tcc-perf prints, each as a map from column name to text."""
    lines = text.splitlines()
    names = next(line.split()[1:] for line in reversed(lines) if line.startswith("#"))
    rows = (line.split() for line in lines if not line.startswith("#"))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _tcc_medians(perf: Path, *flags: str) -> tuple[Sizes, Sizes]:
    """Returns rank 0's median microseconds by bytes: (all_reduce, a copy of as many bytes)."""
    sizes = (
        "-b",
        str(MIN_BYTES),
        "-e",
        str(MAX_BYTES),
        "-f",
        str(FACTOR),
        "-n",
        str(RUNS),
        "-a",
        "0",
    )
    rows = table(_run((perf, *sizes, "-c", "0", "-g", "2", "--pin", *flags)))
    return (
        {int(row["bytes"]): float(row["p50"]) for row in rows},
        {int(row["bytes"]): float(row["copy"]) for row in rows},
    )


def _peer_commands(folder: Path, launchers: Sequence[Launcher]) -> dict[str, list[str]]:
    """Returns the command of each installed peer; the programs for MPI are compiled into
    `folder`."""
    arguments = [str(n) for n in (MIN_BYTES, MAX_BYTES, FACTOR, RUNS)]
    commands: dict[str, list[str]] = {}
    if importlib.util.find_spec("torch"):
        commands["gloo"] = [sys.executable, str(ROOT / "scripts" / "comm_gloo.py"), *arguments]
    for launcher in launchers:
        program = folder / f"{launcher.mpiexec.parents[1].name}-{launcher.compiler.name}"
        if not program.exists():
            source = str(ROOT / "runtime" / "bench" / "mpi_peer.c")
            _run((launcher.compiler, "-O2", source, "-o", program))
            commands[f"MPI of {launcher.mpiexec}"] = [
                *launcher.command(2),
                str(program),
                *arguments,
            ]
    return commands


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Median times of all_reduce by bytes.

    `staged` has tcc's microseconds in ordinary memory. `ratios` has, for each peer, its time over
    `staged`; "copy" and "symmetric" (tcc in the symmetric arena) count as peers.
    """

    staged: Sizes
    ratios: dict[str, Sizes]


def measured(perf: Path, launchers: Sequence[Launcher], rounds: int) -> CollectiveTimes:
    """Times all_reduce (in ordinary memory and in the symmetric arena), a copy, and the peers.

    All take turns in each round.
    """
    peers = _peer_commands(perf.parent, launchers)
    staged: dict[int, list[float]] = defaultdict(list)
    ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        medians, copies = _tcc_medians(perf, "--rewrite")
        peer_medians = {
            "copy": copies,
            "symmetric": _tcc_medians(perf, "--symmetric", "--rewrite")[0],
        }
        peer_medians |= {name: _peer_medians(_run(command)) for name, command in peers.items()}
        for size, microseconds in medians.items():
            staged[size].append(microseconds)
            for name, by_size in peer_medians.items():
                ratios[name][size].append(by_size[size] / microseconds)
    return CollectiveTimes(
        {size: statistics.median(microseconds) for size, microseconds in staged.items()},
        {
            name: {size: statistics.median(size_ratios) for size, size_ratios in by_size.items()}
            for name, by_size in ratios.items()
        },
    )


def times(perf: Path, launchers: Sequence[Launcher], rounds: int) -> None:
    """Prints for each size the microseconds of all_reduce, and the times of peers as multiples
    of it."""
    result = measured(perf, launchers, rounds)
    print(f"all_reduce of f32, 2 pinned ranks, median of {rounds} rounds in turns")
    print(f"{'bytes':>10} {'us':>10}  times of others over it: {', '.join(result.ratios)}")
    for size, microseconds in result.staged.items():
        columns = "".join(f"{by_size[size]:10.2f}" for by_size in result.ratios.values())
        print(f"{size:>10} {microseconds:>10.2f}{columns}", flush=True)
