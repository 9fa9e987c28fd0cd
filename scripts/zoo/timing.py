"""Times an exported architecture: tcc, its peers, and each kernel of tcc."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from environment import ROOT
from goals import BASELINES
from peaks import Calm, CalmTurns, Peaks
from tcc import runtime
from tcc.artifact import read_manifest
from tcc.cli.arrays import program_of
from tcc.cli.kernels.facts import kernel_facts
from tcc.cli.peers.peer import Peer
from tcc.driver import compile_model
from tcc.errors import TccError
from tcc.options import TOLERANCES, Options, read_options
from tcc.runtime.interleaved import interleaved
from tcc.runtime.kernel_table import KernelRow, contractions, kernel_rows
from tcc.runtime.step_times import measure_steps
from tcc.runtime.worker import Array, read_arrays
from tcc.target import targets_text
from tcc.variants import resolve_targets

REFERENCE = "ort"  # the peer with which results are compared: it computes in f32
# The largest error of a right result, as a share of the output's largest value, by precision.
BOUNDS = {"f32": 1e-3, "bf16": TOLERANCES["bf16"]}
# A larger error is right too, up to this multiple of the peers' own largest difference, because
# deep random networks amplify rounding errors.
SPREAD = 4.0
KERNELS, RUNS = 8, 5  # the numbers of kernels in the table and of runs in which they are timed


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """How an architecture is timed.

    `seconds` is a peer's share of a round, `cap` the longest time for an answer of a peer, and
    `patience` the longest wait for a calm machine, each in seconds. `precision` is the type in
    which tcc and its peers may store values.
    """

    threads: int
    rounds: int = 7
    seconds: float = 0.3
    patience: float = 60.0
    cap: float = 600.0
    precision: str = "f32"

    @property
    def timed_kinds(self) -> tuple[str, ...]:
        return ("tcc", *BASELINES[self.precision])


def measure(stem: Path, plan: TimingSettings) -> dict[str, Any]:
    """Compiles STEM.onnx, compares and times it on the inputs STEM.npz.

    Returns the figures for the table. Raises TccError if tcc fails, and ValueError if its results
    are wrong (see `agreement`).
    """
    source, artifact = stem.with_suffix(".onnx"), stem.with_suffix(".so")
    arrays = read_arrays(stem.with_suffix(".npz"))
    started = time.perf_counter()
    compile_model(source, read_options({"precision": plan.precision}), artifact)
    compiled = time.perf_counter() - started
    print(f"compiled in {compiled:.1f} s", flush=True)
    try:
        with ExitStack() as stack:
            running, absent = _start(source, artifact, arrays, plan, stack)
            outputs = {peer.kind: peer.outputs() for peer in running}
            error = agreement(outputs, BOUNDS[plan.precision])
            timed_peers = [peer for peer in running if peer.kind in plan.timed_kinds]
            times = _timed(timed_peers, plan, stem.parent, stack)
        return {
            "target": targets_text(resolve_targets(Options())),
            "date": date.today().isoformat(),
            "commit": commit(),
            "plan": asdict(plan),
            "compile_seconds": compiled,
            "error": error,
            "peers": times["peers"] | absent,
            "peaks": times["peaks"],
            **_kernels(artifact, arrays, plan.threads),
        }
    finally:
        for suffix in (".so", ".h"):
            stem.with_suffix(suffix).unlink(missing_ok=True)


def commit() -> str:
    """Returns the compiler's commit, with a + if files differ from it."""
    command = ("git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _start(
    source: Path,
    artifact: Path,
    arrays: Mapping[str, Array],
    plan: TimingSettings,
    stack: ExitStack,
) -> tuple[list[Peer], dict[str, dict[str, str]]]:
    """Returns (peers that run, reasons why other peers do not)."""
    running: list[Peer] = []
    absent: dict[str, dict[str, str]] = {}
    for kind in dict.fromkeys(("tcc", REFERENCE, *plan.timed_kinds)):
        try:
            peer = Peer(
                kind, artifact if kind == "tcc" else source, arrays, plan.threads, cap=plan.cap
            )
        except TccError as error:
            if kind == "tcc":
                raise
            absent[kind] = {"absent": " ".join(str(error).split())[:300]}
        else:
            running.append(stack.enter_context(peer))
    return running, absent


def _timed(
    running: Sequence[Peer], plan: TimingSettings, folder: Path, stack: ExitStack
) -> dict[str, Any]:
    """Returns {"peers": times of each peer, "peaks": the machine's peak rates}.

    The peers take turns in each round, and the peaks are measured between rounds.
    """
    peaks = stack.enter_context(Peaks(folder, plan.threads))
    calm = Calm(plan.patience)
    calm.begin(peaks)
    turns = CalmTurns(calm)

    def between(number: int) -> None:
        print(f"round {number + 1} of {plan.rounds}", flush=True)
        peaks.measure()

    times = interleaved(running, plan.rounds, plan.seconds, between=between, take=turns)
    peers = {
        kind: {**asdict(item), "disturbed": turns.disturbed[kind], "best": item.best}
        for kind, item in times.items()
    }
    return {"peers": peers, "peaks": peaks.typical()}


def agreement(outputs: Mapping[str, Mapping[str, Array]], bound: float) -> float | None:
    """Returns tcc's largest error against the first peer, as a share of an output's largest value.

    Returns None if no peer ran. Raises ValueError if the error exceeds both `bound` and `SPREAD`
    times the error of the other peers.
    """
    kinds = [kind for kind in outputs if kind != "tcc"]
    if not kinds:
        return None
    first, *other_kinds = kinds
    own_error = _error(outputs["tcc"], outputs[first])
    peer_error = max((_error(outputs[kind], outputs[first]) for kind in other_kinds), default=0.0)
    if not own_error <= max(bound, SPREAD * peer_error):
        raise ValueError(
            f"its results differ from {first}'s by {own_error:.1e}, the peers' by {peer_error:.1e}"
        )
    return own_error


def _error(outputs: Mapping[str, Array], references: Mapping[str, Array]) -> float:
    worst = 0.0
    for output, reference in zip(outputs.values(), references.values(), strict=True):
        if output.shape != reference.shape:
            raise ValueError(f"an output has shape {output.shape}, not {reference.shape}")
        have, exact = output.astype(np.float64), reference.astype(np.float64)
        size = max(float(np.abs(exact).max(initial=0.0)), 1e-30)
        worst = max(
            worst, float(np.nan_to_num(np.abs(have - exact).max(initial=0.0), nan=np.inf)) / size
        )
    return worst


def _kernels(artifact: Path, arrays: Mapping[str, Array], threads: int) -> dict[str, Any]:
    """Times the kernels of an artifact.

    Returns {"kernels": the KERNELS kernels with the largest `excess`, "kernel_seconds": the time of
    all kernels, "contraction_flops": the operations of all contractions}.
    """
    facts = kernel_facts(read_manifest(artifact), artifact)
    module = runtime.load(artifact, threads, timed=True)
    program = program_of(artifact, module.variant)
    steps = measure_steps(module, program, facts.steps, arrays, RUNS)
    rows = kernel_rows(facts, steps)
    flops, _ = contractions(facts, steps)
    return {
        "kernels": [asdict(row) for row in sorted(rows, key=excess, reverse=True)[:KERNELS]],
        "kernel_seconds": sum(row.measured or 0.0 for row in rows),
        "contraction_flops": flops,
    }


def excess(row: KernelRow) -> float:
    """Returns how many seconds a kernel's time exceeds the least time that the machine allows.

    Returns the kernel's time if that limit is unknown.
    """
    return (row.measured or 0.0) * (1 - (row.share or 0.0))
