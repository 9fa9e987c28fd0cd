"""Runs trials: checks each in a process of its own, and times them in one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tcc.runtime.allowance import Allowance, allowance, judged
from tcc.runtime.arrays import Array
from tcc.runtime.peaks import PeakProgram
from tcc.runtime.reports import InputError
from tcc.runtime.trials import CRASHED, HUNG, WRONG, Trial, TrialFailedError, Turn
from tcc.runtime.worker import read_arrays, write_arrays
from tcc.runtime.worker_process import JsonWorker, WorkerError

_WORKER = "tcc.runtime.trial_worker"
# Seconds that an answer may take: to start and to load, which runs no kernel; for the runs of the
# analytic artifact, whose time nobody knows; and for a run of a trial, to which a multiple of the
# expected time is added.
_LOADING, _UNKNOWN, _LEAST, _RUNS = 60.0, 600.0, 2.0, 20.0
# Bytes that a process may allocate: for Python and the model, and as a multiple of the file.
_MEMORY, _FILES = 4 << 30, 3
_REST = 0.005  # seconds until the threads of a run sleep
_NOISE = 1e-6  # relative changes of inputs, which say how far results of equal models differ


class TrialRunner:
    """Runs trials on the arrays that `inputs` returns for the analytic artifact.

    `threads` is the number of threads; 0 stands for all CPUs. `tolerance` is the error of results
    that is always allowed, relative to the largest value. `most_trials` is the number of trials
    that are loaded at once. `peaks` measures the machine. Files lie in `folder`. Leaving its `with`
    ends its processes.

    An answer may take 20 times as long as the first run of the analytic artifact took, or more if
    the trial is predicted to be slower, and two seconds beside.
    """

    def __init__(
        self,
        folder: Path,
        inputs: Callable[[Path], Mapping[str, Any]],
        threads: int,
        tolerance: float,
        most_trials: int,
        peaks: PeakProgram,
    ) -> None:
        self._folder, self._inputs, self._threads = folder, inputs, threads
        self._tolerance, self._most_trials, self._peaks = tolerance, most_trials, peaks
        self._feed = folder / "inputs.npz"
        self._expected: Mapping[str, Array] = {}
        self._allowed: dict[str, Allowance] = {}
        self._limit, self._price, self._bytes = _UNKNOWN, 0.0, 0
        self._process: JsonWorker | None = None
        self._loaded: set[str] = set()

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_process()

    def check(self, trial: Trial) -> None:
        if not self._expected:
            self._expect(trial)
            return
        outputs, _ = self._outputs(trial, 0.0)
        for name, expected in self._expected.items():
            result = outputs[name]
            _, why = judged([result], [expected], [0.0], self._allowed[name])
            if result.shape != expected.shape:
                why = f"the shape {result.shape} instead of {expected.shape}"
            if why:
                raise TrialFailedError(WRONG, f"the output {name} differs: {why}")

    def _expect(self, analytic: Trial) -> None:
        """Notes the results and the time of the analytic artifact, and how far the results of noisy
        inputs differ."""
        self._bytes, self._price = analytic.path.stat().st_size, analytic.price
        try:
            write_arrays(self._feed, self._inputs(analytic.path))
        except ValueError as error:
            raise InputError("the model's inputs cannot be measured", why=str(error)) from error
        expected, seconds = self._outputs(analytic, 0.0)
        noisy, _ = self._outputs(analytic, _NOISE)
        self._limit = _LEAST + _RUNS * seconds
        self._allowed = {
            name: allowance([array], [[noisy[name]]], [0.0], self._tolerance)
            for name, array in expected.items()
        }
        self._expected = expected

    def _outputs(self, trial: Trial, noise: float) -> tuple[dict[str, Array], float]:
        """Returns the results of a trial, and the seconds of its first run."""
        file = self._folder / "outputs.npz"
        with self._started(1) as process:
            _ask(process, {"load": str(trial.path)}, _LOADING)
            request = {"outputs": str(trial.path), "file": str(file), "noise": noise}
            start = time.monotonic()
            _ask(process, request, self._patience(trial, 0.0))
            seconds = time.monotonic() - start
        return read_arrays(file), seconds

    def turn(self, trial: Trial, seconds: float) -> Turn:
        path = str(trial.path)
        self._process = self._process or self._started(1 + self._most_trials)
        try:
            if path not in self._loaded:
                _ask(self._process, {"load": path}, _LOADING)
                self._loaded.add(path)
            request = {"turn": path, "seconds": seconds}
            answer = _ask(self._process, request, self._patience(trial, seconds))
        except TrialFailedError:
            self._end_process()
            raise
        return Turn(answer["seconds"], tuple(answer["steps"]))

    def drop(self, trials: Sequence[Trial]) -> None:
        paths = [path for trial in trials if (path := str(trial.path)) in self._loaded]
        self._loaded.difference_update(paths)
        if self._process is not None and paths:
            try:
                _ask(self._process, {"drop": paths}, _LOADING)
            except TrialFailedError:
                self._end_process()

    def peak(self) -> float:
        time.sleep(_REST)
        return self._peaks.flops()

    def _started(self, files: int) -> JsonWorker:
        """Returns a new process that may load `files` trials."""
        return trial_process(self._feed, self._threads, files * self._bytes, self._folder / "log")

    def _end_process(self) -> None:
        self._loaded.clear()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _patience(self, trial: Trial, seconds: float) -> float:
        """Returns the seconds that an answer of a trial may take, with a turn of `seconds`."""
        slower = trial.price / self._price if self._price else 1.0
        return seconds + self._limit * max(1.0, slower)


def trial_process(feed: Path, threads: int, file_bytes: int, log: Path) -> JsonWorker:
    """Returns a new process that runs artifacts of `file_bytes` bytes together on the inputs in
    `feed`."""
    arguments = [str(feed), str(threads), str(_MEMORY + _FILES * file_bytes)]
    return JsonWorker(_WORKER, arguments, log)


def _ask(process: JsonWorker, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    try:
        return process.ask(json.dumps(request), seconds)
    except WorkerError as error:
        raise TrialFailedError(HUNG if error.late else CRASHED, error.why) from error
