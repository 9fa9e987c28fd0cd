"""Measures a graph: compiles it, compares its results, times it in turns with ONNX Runtime."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
from beside import Arrays, PairSettings, beside
from environment import ROOT
from peaks import Calm, CalmTurns, Peaks
from subgraph.families import SubgraphCase
from subgraph.results import FAULTS, LONGER, SubgraphResult
from subgraph.writer import drawn, model_of
from tcc.cli.peers.peer import Peer
from tcc.errors import ToolError
from tcc.options import TOLERANCES
from tcc.runtime.compare import compare
from tcc.runtime.interleaved import best_ratio, paired_ratio

_KERNELS = 5
_RUNS = 20  # the number of runs in which `tcc inspect` times kernels


class _Unfit(Exception):
    """Ends the measurement of a graph; `result` has the outcome and no times."""

    def __init__(self, outcome: str, why: str, command: str = "") -> None:
        super().__init__(why)
        self.result = SubgraphResult(outcome, why.strip(), command, date=date.today().isoformat())


@dataclass(frozen=True, slots=True)
class Bench:
    """How graphs are measured; each step of a measurement may take `cap` seconds."""

    plan: PairSettings
    calm: Calm
    peaks: Peaks
    cap: float


def measure(
    case: SubgraphCase,
    folder: Path,
    bench: Bench,
    keep: bool,
    earlier: SubgraphResult | None = None,
) -> SubgraphResult:
    """Compiles, checks and times the graph of a case in `folder`; returns the result.

    The folder is removed unless `keep` is set or the outcome is a fault. If `earlier` has times of
    an artifact with the same bytes, nothing is timed, and `earlier` is returned.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        result = _Steps(case, folder, bench).all(earlier)
    except _Unfit as unfit:
        result = unfit.result
    if not keep and result.outcome not in FAULTS:
        shutil.rmtree(folder)
    return result


class _Steps:
    def __init__(self, case: SubgraphCase, folder: Path, bench: Bench) -> None:
        self._case, self._folder, self._bench = case, folder, bench
        self._plan, self._cap = bench.plan, bench.cap
        self._model, self._artifact = folder / "model.onnx", folder / "model.so"
        self._input_flags: list[str] = []
        self._note = ""

    def all(self, earlier: SubgraphResult | None = None) -> SubgraphResult:
        """Takes all steps and returns the result; raises _Unfit if a step fails."""
        self._check_memory()
        feed = self._write()
        self._tcc("compile", self._model, "-o", self._artifact, fault="compile")
        artifact = sha256(self._artifact.read_bytes()).hexdigest()[:16]
        if earlier is not None and earlier.artifact == artifact:
            return earlier
        reference = self._reference(feed)
        self._check_memory(3 * sum(array.nbytes for array in reference.values()))
        self._bench.calm.begin(self._bench.peaks, looks=3)
        result = self._timed(feed, reference, self._plan)
        if result.below:
            result = self._timed(
                feed, reference, replace(self._plan, rounds=LONGER * self._plan.rounds)
            )
        kernels = self._kernels() if result.below else []
        return replace(result, kernels=kernels, artifact=artifact)

    def _timed(self, feed: Arrays, reference: Arrays, plan: PairSettings) -> SubgraphResult:
        """Times tcc and ONNX Runtime as `plan` says; returns times, ratios and largest error."""
        error = [0.0]
        turns = CalmTurns(self._bench.calm)

        def see(outputs: Sequence[Arrays]) -> None:
            error.append(self._agree(outputs[0], reference))

        try:
            times = beside(
                self._artifact, self._model, feed, plan, see=see, take=turns, cap=self._cap
            )
        except ToolError as error_of_peer:
            is_tcc = error_of_peer.what.startswith("tcc")
            raise _Unfit(
                "run" if is_tcc else "reference", str(error_of_peer), self._run_line()
            ) from None
        tcc, ort = times["tcc"], times["ort"]
        ratios = [of(tcc.rounds, [ort.rounds]) for of in (paired_ratio, best_ratio)]
        return SubgraphResult(
            "timed", self._note, "", tcc.median, ort.median, *ratios, max(error),
            sum(turns.disturbed.values()), date.today().isoformat(),
        )  # fmt: skip

    def _check_memory(self, extra_bytes: int = 0) -> None:
        """Raises _Unfit if memory is too small for both runtimes and `extra_bytes`.

        Both runtimes are loaded at the same time. In the worst case, each holds as many bytes as if
        nodes ran one by one. `extra_bytes` are for the results to compare, and for the copy in
        which a runtime's results come to this process.
        """
        free, needed = available_memory(), 2 * self._case.bytes + extra_bytes
        if free < needed:
            text = f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
            raise _Unfit("memory", text)

    def _write(self) -> dict[str, np.ndarray]:
        """Writes the model and its inputs as files; returns the inputs as arrays."""
        name = self._case.name
        onnx.save(model_of(name, self._case.graph), self._model)
        feed = drawn(name, self._case.graph.inputs)
        for tensor, array in feed.items():
            path = self._folder / f"{tensor}.npy"
            np.save(path, array)
            self._input_flags += ["--input", f"{tensor}=@{path}"]
        return feed

    def _reference(self, feed: Arrays) -> Arrays:
        try:
            with Peer("ort-plain", self._model, feed, self._plan.threads, cap=self._cap) as peer:
                return peer.outputs()
        except ToolError as error:
            raise _Unfit("reference", str(error)) from None

    def _agree(self, results: Arrays, references: Arrays) -> float:
        """Returns the largest error of `results`.

        If it is above the tolerance of f32, `tcc verify` decides, because that also bounds the
        rounding error of the reference. Raises _Unfit if `tcc verify` finds a mismatch.
        """
        comparisons = [
            compare(name, results[name], references[name], TOLERANCES["f32"]) for name in references
        ]
        if not all(item.ok for item in comparisons):
            verdict = self._tcc(
                "verify", self._model, self._artifact, *self._input_flags, fault="differs"
            )
            self._note = verdict.strip()
        return max(item.error for item in comparisons)

    def _kernels(self) -> list[dict[str, object]]:
        """Returns the slowest kernels with their figures from `tcc inspect`.

        Returns [] if that command fails, because the times of the graph count even then.
        """
        threads = ("--threads", self._plan.threads, "--runs", _RUNS)
        try:
            output = self._tcc(
                "inspect", self._artifact, "--measure", "--json", *threads, *self._input_flags
            )
        except _Unfit:
            return []
        rows = json.loads(output)
        keys = ("name", "source", "launches", "measured", "bound", "share")
        return [{key: row[key] for key in keys} for row in rows[:_KERNELS]]

    def _tcc(self, command: str, *words: object, fault: str = "run") -> str:
        """Returns the output of `tcc COMMAND`; raises _Unfit with the outcome `fault` if it
        fails."""
        line = [sys.executable, "-m", "tcc", command, *map(str, words)]
        command_text = shlex.join(["tcc", *line[3:]]).replace(f"{ROOT}{os.sep}", "")
        status, out, err = run_group(line, self._cap)
        if status:
            text = err.strip() or out.strip() or f"tcc {command} ended with {status}"
            raise _Unfit(fault, text[-1500:], command_text)
        return out

    def _run_line(self) -> str:
        words = ["tcc", "run", str(self._artifact), *self._input_flags]
        return shlex.join(words).replace(f"{ROOT}{os.sep}", "")


def run_group(line: Sequence[str], cap: float) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr) of a command.

    After `cap` seconds the command and its children are killed, and the code is 124.
    """
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=cap)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            return 124, "", f"it took more than {cap:g} seconds"
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Kills a command and its children if it is still running."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def available_memory() -> int:
    """Returns the bytes that programs can allocate without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
