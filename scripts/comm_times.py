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


def _own(perf: Path, *flags: str) -> tuple[Sizes, Sizes]:
    """Medians by bytes: of all_reduce, and of a copy of as many bytes."""
    sizes = ("-b", str(LEAST), "-e", str(MOST), "-f", str(FACTOR), "-n", str(RUNS))
    text = _run((perf, *sizes, "-g", "2", "-p", *flags))
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {int(r[0]): float(r[3]) for r in rows}, {int(r[0]): float(r[7]) for r in rows}


def _peers(folder: Path, launchers: Sequence[Launcher]) -> dict[str, list[str]]:
    """The command of each peer that is there; MPI's programs are compiled into `folder`."""
    arguments = [str(n) for n in (LEAST, MOST, FACTOR, RUNS)]
    found: dict[str, list[str]] = {}
    if importlib.util.find_spec("torch"):
        found["gloo"] = [sys.executable, str(ROOT / "scripts" / "comm_gloo.py"), *arguments]
    for launcher in launchers:
        prefix = launcher.mpiexec.parents[1]
        program = folder / f"mpi_peer-{prefix.name}"
        if not program.exists():
            source = str(ROOT / "runtime" / "bench" / "mpi_peer.c")
            _run((prefix / "bin" / "mpicc", "-O2", source, "-o", program))
        found[f"MPI of {prefix}"] = [*launcher.command(2), str(program), *arguments]
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
        own, copies = _own(perf, "-r")
        others = {"copy": copies, "symmetric": _own(perf, "-s", "-r")[0]}
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
