"""Runs the trials of `tcc tune`: checks each in a process of its own, and times them in one."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tcc.allowance import Allowance, allowance, judged
from tcc.artifact import load
from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.cli.arrays import inputs_of
from tcc.cli.peers.worker import read_arrays, write_arrays
from tcc.errors import UserError
from tcc.ir.op import NamedArrays
from tcc.tune.measurement import WRONG
from tcc.tune.peaks import PeakProgram, build_arguments
from tcc.tune.process import TrialProcess
from tcc.tune.trial import Trial, TrialFailedError, Turn

_WORKER = "tcc.cli.trial_worker"
# Seconds that an answer may take: to start and to load, and as a multiple of the analytic run.
_PATIENCE, _RUNS = 20.0, 50.0
# Bytes that a process may allocate: for Python and the model, and as a multiple of the file.
_MEMORY, _FILES = 4 << 30, 3
_REST = 0.005  # seconds until the threads of a run sleep
_NOISE = 1e-6  # relative changes of inputs, which say how far results of equal models differ


class TrialRunner:
    """Runs trials on the inputs that `texts` name (see `tcc run --input`), else on random ones.

    `threads` is the number of threads; 0 stands for all CPUs. `tolerance` is the error of results
    that is always allowed, relative to the largest value. `trials` is the number of trials that are
    loaded at once. Files lie in `folder`.
    """

    def __init__(
        self, folder: Path, texts: Sequence[str], threads: int, tolerance: float, trials: int
    ) -> None:
        self._folder, self._texts, self._threads = folder, texts, threads
        self._tolerance, self._trials = tolerance, trials
        self._feed = folder / "inputs.npz"
        self._expected: NamedArrays = {}
        self._allowed: dict[str, Allowance] = {}
        self._run_seconds, self._bytes = 0.0, 0
        self._process: TrialProcess | None = None
        self._ending = ExitStack()
        run_tool((*find_toolchain().command, *build_arguments(folder / "peaks")), folder)
        count = threads or len(os.sched_getaffinity(0))
        self._peaks = self._ending.enter_context(PeakProgram(folder / "peaks", count))

    def __enter__(self) -> "TrialRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_process()
        self._ending.close()

    def check(self, trial: Trial) -> None:
        if not self._expected:
            self._expect(trial)
            return
        outputs = self._outputs(trial, 0.0)
        for name, expected in self._expected.items():
            result = outputs[name]
            _, why = judged([result], [expected], [0.0], self._allowed[name])
            if result.shape != expected.shape:
                why = f"the shape {result.shape} instead of {expected.shape}"
            if why:
                raise TrialFailedError(WRONG, f"the output {name} differs: {why}")

    def _expect(self, analytic: Trial) -> None:
        """Notes the results of the analytic artifact, and how far those of noisy inputs differ."""
        self._bytes = analytic.path.stat().st_size
        module = load(analytic.path)
        inputs = inputs_of(analytic.path, module.inputs, self._texts, 0)
        try:
            write_arrays(self._feed, inputs)
        except ValueError as error:
            raise UserError("the model's inputs cannot be measured", why=error) from error
        expected = self._outputs(analytic, 0.0)
        noisy = self._outputs(analytic, _NOISE)
        self._allowed = {
            name: allowance([array], [[noisy[name]]], [0.0], self._tolerance)
            for name, array in expected.items()
        }
        self._expected = expected
        self._run_seconds = self.turn(analytic, 0.0).seconds

    def _outputs(self, trial: Trial, noise: float) -> NamedArrays:
        file = self._folder / "outputs.npz"
        request = {"outputs": str(trial.path), "file": str(file), "noise": noise}
        with self._started(1) as process:
            process.ask(request, self._patience(0.0))
        return read_arrays(file)

    def turn(self, trial: Trial, seconds: float) -> Turn:
        self._process = self._process or self._started(1 + self._trials)
        try:
            request = {"turn": str(trial.path), "seconds": seconds}
            answer = self._process.ask(request, self._patience(seconds))
        except TrialFailedError:
            self._end_process()
            raise
        return Turn(answer["seconds"], tuple(answer["steps"]))

    def drop(self, trials: Sequence[Trial]) -> None:
        if self._process is None:
            return
        paths = [str(trial.path) for trial in trials]
        try:
            self._process.ask({"drop": paths}, self._patience(0.0))
        except TrialFailedError:
            self._end_process()

    def peak(self) -> float:
        time.sleep(_REST)
        return self._peaks.flops()

    def _started(self, files: int) -> TrialProcess:
        """Returns a new process that may load `files` trials."""
        memory = _MEMORY + files * _FILES * self._bytes
        arguments = [str(self._feed), str(self._threads), str(memory)]
        return TrialProcess(_WORKER, arguments, self._folder / "log")

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _patience(self, seconds: float) -> float:
        return _PATIENCE + seconds + _RUNS * self._run_seconds
