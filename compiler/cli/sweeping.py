"""Runs a sweep of `tcc tune`: compiles trials with the driver, and runs them in processes."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from platform import node

from tcc import __version__
from tcc.artifact import input_errors, load
from tcc.backends.artifact.cache import cache_folder, make_own
from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.cli.arrays import inputs_of
from tcc.cli.progress import progress
from tcc.cli.show import say
from tcc.errors import ToolError, file_errors
from tcc.ir.op import NamedArrays
from tcc.options import TOLERANCES, Options
from tcc.runtime.alone import measuring_alone
from tcc.runtime.gpu_devices import missing_device
from tcc.runtime.peaks import PeakProgram, build_arguments
from tcc.runtime.trial_runner import TrialRunner
from tcc.runtime.trials import TrialFailedError
from tcc.temporary import temporary_folder
from tcc.trials import TrialCompiler
from tcc.tune.from_records import best_peak_of, decided, earlier, of_version
from tcc.tune.records import Record, append, in_shard, read_records
from tcc.tune.sweep import MOST_TRIALS, Effort, Sweep
from tcc.tune.verdicts import Verdicts
from tcc.variants import resolve_targets

_LOCK = "measuring.lock"
_MOST_BYTES = 2 << 30  # of the weights of all trials that are loaded at once


@input_errors()
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
    and decisions of `shard` are measured. Ctrl-C ends the sweep, and what was measured counts.
    Raises UserError if the model cannot be compiled, or if a line of `log` is no record, and
    ToolError if the machine has no GPU that the target needs.
    """
    for target in resolve_targets(options):
        if why := missing_device(target.kind):
            hint = "tune where the GPU is; --pin needs none"
            where = f"--target {target.text}"
            raise ToolError("nothing can be measured here", where=where, why=why, hint=hint)
    paths = [] if log is None or not log.exists() else [log]
    records = of_version(read_records(paths, "--records"), __version__)
    resources = ExitStack()
    with resources, progress(f"planning {model.name}"):
        compiler = TrialCompiler(model, options, resources)
        resources = resources.pop_all()
    kernels = [kernel for kernel in compiler.kernels if in_shard(kernel.site, shard)]
    decisions = [decision for decision in compiler.decisions if in_shard(decision.site, shard)]
    home, sites = compiler.home, {*(k.site for k in kernels), *(d.site for d in decisions)}
    machine = f"{node()}: {home[0]}, {home[1]} cores"
    cache = cache_folder()
    make_own(cache)
    limit = max(1, _MOST_BYTES // max(1, compiler.constants))
    effort = Effort(seconds, trials=min(MOST_TRIALS, limit))

    def waits() -> None:
        say("waiting for another measurement", err=True)

    def inputs(path: Path) -> NamedArrays:
        return inputs_of(path, load(path).inputs, data, 0)

    tolerance = TOLERANCES[options.weights or options.precision]
    with (
        progress(f"tuning {model.name}") as show_progress,
        resources,
        temporary_folder("tcc-tune-") as folder,
        peak_program(folder, threads) as peaks,
        TrialRunner(folder, inputs, threads, tolerance, effort.trials, peaks) as runner,
    ):
        with file_errors("the lock of measurements cannot be used", cache / _LOCK):
            resources.enter_context(measuring_alone(cache / _LOCK, waits))
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
            decisions=decisions,
        )
        try:
            for measurement in sweep.measurements():
                records.append(Record(__version__, machine, measurement))
                if log is not None:
                    append(log, records[-1:])
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        except TrialFailedError as error:
            why = f"the model without other choices is {error.outcome}: {error.why}"
            raise ToolError("the model cannot be measured", where=model, why=why) from error
    return decided(records, home, sites), interrupted


def peak_program(folder: Path, threads: int) -> PeakProgram:
    """Compiles and starts the program that measures the machine."""
    program = folder / "peaks"
    run_tool((*find_toolchain().command, *build_arguments(program)), folder)
    return PeakProgram(program, threads or len(os.sched_getaffinity(0)))
