"""Runs a sweep of `tcc tune`: compiles trials with the driver, and runs them in processes."""

from collections.abc import Sequence
from pathlib import Path

from tcc.backends.artifact.cache import cache_folder, make_own
from tcc.cli.show import progress, say
from tcc.cli.trial_runner import TrialRunner
from tcc.options import TOLERANCES, Options
from tcc.temporary import temporary_folder
from tcc.trials import TrialCompiler
from tcc.tune.alone import measuring_alone
from tcc.tune.measurement import Measurement
from tcc.tune.sweep import MOST_TRIALS, Effort, Sweep
from tcc.tune.verdicts import Verdicts, decide

_LOCK = "measuring.lock"
_MOST_BYTES = 2 << 30  # of the weights of all trials that are loaded at once


def swept(
    model: Path, options: Options, seconds: float, data: Sequence[str], threads: int
) -> tuple[Verdicts, bool]:
    """Returns (verdicts, interrupted) of a sweep of `seconds` over the kernels of a model.

    `data` are texts of inputs, and `threads` is the number of threads (0: all CPUs). Ctrl-C ends
    the sweep, and what was measured counts. Raises UserError if the model cannot be compiled.
    """
    with progress(f"planning {model.name}"):
        compiler = TrialCompiler(model, options)
    measurements: list[Measurement] = []
    cache = cache_folder()
    make_own(cache)
    limit = max(1, _MOST_BYTES // max(1, compiler.constants))
    effort = Effort(seconds, trials=min(MOST_TRIALS, limit))
    tolerance = TOLERANCES[options.weights or options.precision]
    with (
        progress(f"tuning {model.name}") as show_progress,
        measuring_alone(cache / _LOCK, lambda: say("waiting for another measurement", err=True)),
        temporary_folder("tcc-tune-") as folder,
        TrialRunner(folder, data, threads, tolerance, effort.trials) as runner,
    ):
        sweep = Sweep(
            compiler.kernels,
            compiler.home,
            compiler.compile_trial,
            runner,
            folder,
            effort,
            say=lambda line: say(line, err=True),
            progress=show_progress,
        )
        try:
            for measurement in sweep.measurements():
                measurements.append(measurement)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
    return decide(measurements, compiler.home), interrupted
