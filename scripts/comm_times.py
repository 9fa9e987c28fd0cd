"""Times of all_reduce by several libraries in turns, for comm_check: medians of ratios."""

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

LEAST, MOST, FACTOR = 4 << 10, 32 << 20, 2
RUNS = 200

Sizes = dict[int, float]


def _run(command: Sequence[str | Path], **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False,
        env=os.environ | variables,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{command}: {done.stderr[-2000:]}")
    return done.stdout


def _peer(text: str) -> Sizes:
    """Microseconds by bytes, of lines `bytes microseconds`."""
    rows = (line.split() for line in text.splitlines() if line[:1].isdigit())
    return {int(row[0]): float(row[1]) for row in rows}


def table(text: str) -> list[dict[str, str]]:
    """The rows that tcc-perf prints, by the names of its columns."""
    lines = text.splitlines()
    names = next(line.split()[1:] for line in reversed(lines) if line.startswith("#"))
    rows = (line.split() for line in lines if not line.startswith("#"))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _own(perf: Path, *flags: str) -> tuple[Sizes, Sizes]:
    """Rank 0's medians by bytes: of all_reduce, and of a copy of as many bytes."""
    sizes = ("-b", str(LEAST), "-e", str(MOST), "-f", str(FACTOR), "-n", str(RUNS), "-a", "0")
    rows = table(_run((perf, *sizes, "-c", "0", "-g", "2", "--pin", *flags)))
    return (
        {int(row["bytes"]): float(row["p50"]) for row in rows},
        {int(row["bytes"]): float(row["copy"]) for row in rows},
    )


def _peers(folder: Path, launchers: Sequence[Launcher]) -> dict[str, list[str]]:
    """The command of each peer that is there; MPI's programs are compiled into `folder`."""
    arguments = [str(n) for n in (LEAST, MOST, FACTOR, RUNS)]
    found: dict[str, list[str]] = {}
    if importlib.util.find_spec("torch"):
        found["gloo"] = [sys.executable, str(ROOT / "scripts" / "comm_gloo.py"), *arguments]
    for launcher in launchers:
        program = folder / f"{launcher.mpiexec.parents[1].name}-{launcher.compiler.name}"
        if not program.exists():
            source = str(ROOT / "runtime" / "bench" / "mpi_peer.c")
            _run((launcher.compiler, "-O2", source, "-o", program))
            found[f"MPI of {launcher.mpiexec}"] = [*launcher.command(2), str(program), *arguments]
    return found


@dataclass(frozen=True, slots=True)
class Times:
    """By bytes: microseconds of all_reduce, and what each of the others takes over it (medians)."""

    staged: Sizes
    ratios: dict[str, Sizes]


def measured(perf: Path, launchers: Sequence[Launcher], rounds: int) -> Times:
    """Times all_reduce, staged and symmetric, a copy, and the peers that are there, in turns."""
    peers = _peers(perf.parent, launchers)
    staged: dict[int, list[float]] = defaultdict(list)
    ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        own, copies = _own(perf, "--rewrite")
        others = {"copy": copies, "symmetric": _own(perf, "--symmetric", "--rewrite")[0]}
        others |= {name: _peer(_run(command)) for name, command in peers.items()}
        for size, taken in own.items():
            staged[size].append(taken)
            for name, its in others.items():
                ratios[name][size].append(its[size] / taken)
    return Times(
        {size: statistics.median(taken) for size, taken in staged.items()},
        {
            name: {size: statistics.median(found) for size, found in its.items()}
            for name, its in ratios.items()
        },
    )


def times(perf: Path, launchers: Sequence[Launcher], rounds: int) -> None:
    """Prints for each size the microseconds, then what others take as multiples of it."""
    found = measured(perf, launchers, rounds)
    print(f"all_reduce of f32, 2 pinned ranks, median of {rounds} rounds in turns")
    print(f"{'bytes':>10} {'us':>10}  times of others over it: {', '.join(found.ratios)}")
    for size, taken in found.staged.items():
        columns = "".join(f"{its[size]:10.2f}" for its in found.ratios.values())
        print(f"{size:>10} {taken:>10.2f}{columns}", flush=True)
