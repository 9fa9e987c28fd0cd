"""Checks comms over MPI and plugins between two hosts.

The link between the hosts delays and loses packets (`link.py`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts.launchers import ByHand, Launcher
from hosts.link import ADDRESSES

LINK = Path(__file__).with_name("link.py")
FAILURES = ("kill", "stop", "cut")
SECONDS = 300  # limit of one run, in seconds
PEER_DEAD = "9"  # the status TCC_PEER_DEAD of tcc.h, as `apart` prints it
# The program `matrix` sends more packets than this between two hosts. If it sends fewer, the ranks
# shared memory across the hosts, and the link was not tested.
LEAST_PACKETS = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the check `what`: True if it is `good`, and a line of evidence."""

    what: str
    good: bool
    text: str


def _run(launcher: Launcher | ByHand, ranks: int, command: str, after: str = "") -> tuple[str, str]:
    """Runs ranks on two hosts, then the shell command `after` on the first host.

    Returns (output, error output). Each rank runs in a shell that always exits with 0, so the
    launcher does not notice a death. The shell ignores SIGUSR1, with which MPICH's launcher Hydra
    tells ranks of a death.
    """
    rank = ("sh", "-c", f"trap '' USR1; {command}; true")
    agent = "$LINK_AGENT"  # link.py sets this variable, and its shell expands it
    started = shlex.join((*launcher.on_hosts(ranks, ADDRESSES, agent), *rank))
    started = started.replace(shlex.quote(agent), agent)
    try:
        process = subprocess.run(
            (sys.executable, str(LINK), "sh", "-c", f"{started}; {after or 'true'}"),
            capture_output=True, text=True, check=False, timeout=SECONDS,
            env=os.environ | launcher.variables,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"not ended after {SECONDS} s"
    return process.stdout, process.stderr


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "nothing printed")


def _matrix(launcher: Launcher | ByHand, program: Path, ranks: int) -> Outcome:
    printed, errors = _run(launcher, ranks, f"{program} 0 short {launcher.backends}")
    match = re.search(r"link: (\d+) packets carried, (\d+) lost", errors)
    carried, lost = (int(match[1]), int(match[2])) if match else (0, 0)
    good = printed.count("ok") == ranks and carried >= LEAST_PACKETS and lost > 0
    text = f"{carried} packets carried, {lost} lost" if good else _last_line(errors)
    return Outcome(f"matrix, {ranks} ranks on two hosts, {launcher.name}", good, text)


def _failure(launcher: Launcher | ByHand, program: Path, ranks: int, how: str) -> Outcome:
    """Checks that all remaining ranks get an error in time after a failure `how` (of FAILURES).

    `program` is `apart`: it causes the failure, and reports the ranks that get an error in time.
    Over Open MPI, the error of a killed rank must be PEER_DEAD. MPICH uses libfabric here: over
    UCX, a rank that sends to an ended rank crashes in MPICH 5.0.2.
    """
    started = f"{program} {how} {launcher.backends} $TMPDIR/report"
    command = f"MPIR_CVAR_CH4_NETMOD=ofi {started}"
    printed, errors = _run(launcher, ranks, command, "cat $TMPDIR/report")
    reports = re.findall(r"^rank (\d+): status (\d+) after (\d+) ms", printed, re.M)
    expected = {str(rank) for rank in range(ranks if how == "cut" else ranks - 1)}
    good = expected <= {rank for rank, _, _ in reports}
    if how == "kill" and launcher.is_open_mpi:
        good &= {status for _, status, _ in reports} == {PEER_DEAD}
    times = "errors after " + ", ".join(f"{took} ms" for _, _, took in reports)
    what = f"{how}, {ranks} ranks on two hosts, {launcher.name}"
    return Outcome(what, good, times if good else f"{len(reports)} reports; {_last_line(errors)}")


def outcomes(
    launcher: Launcher | ByHand, programs: Mapping[str, Path], ranks: int
) -> Iterator[Outcome]:
    """Yields the outcome of all collectives, and then of each kind of failure.

    `programs` maps "matrix" (checks all collectives) and "apart" (causes failures) to programs.
    """
    yield _matrix(launcher, programs["matrix"], ranks)
    for how in FAILURES:
        yield _failure(launcher, programs["apart"], ranks, how)
