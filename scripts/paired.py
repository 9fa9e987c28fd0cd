"""Compares tcc with tcc of another commit: both artifacts of a model run in the same rounds.

A model counts as slower if the lower bound of its ratio new / base is above `SLOWER`. The bound
holds with 95 % confidence. It is the bound of the median by order statistics (sign test), which
assumes nothing about the distribution of disturbed rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from bench_table import aligned
from environment import PYTHON, ROOT, environment
from tcc.cli.peers.peer import PeerKind
from tcc.runtime.gate import CONFIDENCE, lower_bound

SLOWER = 1.02
ROUNDS = 15  # with this many, the confidence bound is not simply the least ratio
BASE = "base"
_WORKER = ROOT / "scripts" / "peers" / "peer_base.py"


@dataclass(frozen=True, slots=True)
class Base:
    """The sources of a commit, unpacked in `folder`; this Python can run them."""

    commit: str
    folder: Path

    @property
    def peer(self) -> PeerKind:
        """Returns the peer that runs artifacts with the runtime of this commit."""
        return PeerKind(f"tcc of {self.commit}", str(_WORKER), arguments=(str(self.tree),))

    @property
    def tree(self) -> Path:
        return self.folder / "build" / "devtree"

    def compile(self, model: Path, artifact: Path, precision: str, name: str) -> None:
        """Compiles `model` to `artifact` with tcc of this commit.

        `name` is the model's name in the artifact. Raises CalledProcessError if the compile fails.
        """
        command = (PYTHON, "-P", "-m", "tcc", "compile", model, "-o", artifact, "--name", name)
        variables = environment() | {"PYTHONPATH": str(self.tree)}
        options = () if precision == "f32" else ("--precision", precision)
        subprocess.run((*command, *options), env=variables, check=True, stdout=subprocess.DEVNULL)


def checked_out(name: str, folder: Path) -> Base:
    """Returns the sources of commit `name` in a subfolder of `folder`.

    Ends the process with a message if there is no such commit.
    """
    revision = subprocess.run(
        ("git", "rev-parse", "--short=8", "--verify", f"{name}^{{commit}}"),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if revision.returncode:
        sys.exit(f"--base {name}: there is no such commit in this repository")
    base = Base(revision.stdout.strip(), folder / revision.stdout.strip())
    if not base.tree.is_dir():
        shutil.rmtree(base.folder, ignore_errors=True)
        archive = subprocess.run(
            ("git", "archive", base.commit), cwd=ROOT, capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(base.folder, filter="data")
        script = base.folder / "scripts" / "devtree"
        subprocess.run((PYTHON, script), env=dict(os.environ), check=True)
    return base


@dataclass(frozen=True, slots=True)
class Pair:
    """The seconds of a run in each round, with the base commit's artifact and with the new one.

    The lists are empty if the artifacts have equal bytes, so that nothing is timed.
    """

    model: str
    base: Sequence[float] = ()
    new: Sequence[float] = ()

    @property
    def ratios(self) -> list[float]:
        return [new / base for base, new in zip(self.base, self.new, strict=True)]

    @property
    def bound(self) -> float:
        """Returns a lower bound of the median of new / base, or 1 for equal artifacts."""
        return lower_bound(self.ratios) if self.base else 1.0

    @property
    def slower(self) -> bool:
        return self.bound > SLOWER


def pairs_table(pairs: Sequence[Pair], heading: str, base: str) -> str:
    """Returns the report as text, the largest ratio first."""
    head = ("model", "base ms", "new ms", "new / base", "lower bound", "")
    ordered = sorted(pairs, key=lambda pair: pair.bound, reverse=True)
    slower = [pair.model for pair in ordered if pair.slower]
    return "\n".join(
        (
            f"{heading}; base: {base}",
            "times: medians of rounds; new / base: the median over rounds; lower bound: of that",
            f"median, with {CONFIDENCE:.0%} confidence; slower: where it is above {SLOWER:.2f}",
            "",
            *aligned([head, *map(_cells, ordered)]),
            "",
            f"slower by {SLOWER - 1:.0%}: {', '.join(slower) or 'none'} of {len(pairs)} models",
            "",
        )
    )


def _cells(pair: Pair) -> tuple[str, ...]:
    if not pair.base:
        return (pair.model, "-", "-", "1.000", "1.000", "equal bytes")
    times = (f"{statistics.median(rounds) * 1e3:.3f}" for rounds in (pair.base, pair.new))
    ratio = statistics.median(pair.ratios)
    verdict = "slower" if pair.slower else ""
    return (pair.model, *times, f"{ratio:.3f}", f"{pair.bound:.3f}", verdict)
