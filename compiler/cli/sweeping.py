"""Runs a sweep of `tcc tune`: compiles trials with the driver, and runs them in processes."""

from collections.abc import Sequence
from pathlib import Path
from platform import node

from tcc import __version__
from tcc.backends.artifact.cache import cache_folder, make_own
from tcc.cli.show import progress, say
from tcc.cli.trial_runner import TrialRunner
from tcc.options import TOLERANCES, Options
from tcc.temporary import temporary_folder
from tcc.trials import TrialCompiler
from tcc.tune.alone import measuring_alone
from tcc.tune.from_records import best_peak_of, decided, earlier, of_version
from tcc.tune.records import Record, append, in_shard, read_records
from tcc.tune.sweep import MOST_TRIALS, Effort, Sweep
from tcc.tune.verdicts import Verdicts

_LOCK = "measuring.lock"
_MOST_BYTES = 2 << 30  # of the weights of all trials that are loaded at once


def swept(
    model: Path,
    options: Options,
    seconds: float,
    data: Sequence[str],
    threads: int,
    log: Path | None,
    shard: tuple[int, int],
) -> tuple[Verdicts, bool]:
    """Returns (verdicts, interrupted) of a sweep of `seconds` over the kernels of a model.

    `data` are texts of inputs, and `threads` is the number of threads (0: all CPUs). `log` is the
    file of records: it gets each measurement, and what it has is not measured again. Only kernels
    of `shard` are measured. Ctrl-C ends the sweep, and what was measured counts. Raises UserError
    if the model cannot be compiled, or if a line of `log` is no record.
    """
    paths = [] if log is None or not log.exists() else [log]
    records = of_version(read_records(paths, "--records"), __version__)
    with progress(f"planning {model.name}"):
        compiler = TrialCompiler(model, options)
    kernels = [kernel for kernel in compiler.kernels if in_shard(kernel.site, shard)]
    home, sites = compiler.home, {kernel.site for kernel in kernels}
    machine = f"{node()}: {home[0]}, {home[1]} cores"
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
        peak = best_peak_of(records, machine)
        sweep = Sweep(
            kernels,
            home,
            compiler.compile_trial,
            runner,
            folder,
            effort,
            earlier(records, home, sites, max(peak, runner.peak()) if records else peak),
            peak,
            say=lambda line: say(line, err=True),
            progress=show_progress,
        )
        try:
            for measurement in sweep.measurements():
                records.append(Record(__version__, machine, measurement))
                if log is not None:
                    append(log, records[-1:])
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
    return decided(records, home, sites), interrupted
