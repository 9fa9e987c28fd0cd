"""The time of each step of an artifact's program."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from tcc import runtime
from tcc.cli.arrays import program_of
from tcc.cli.sizes import step_sizes
from tcc.errors import UserError
from tcc.ir.op import NamedArrays
from tcc.runtime import Module
from tcc.runtime.kernel_table import StepTime


def running_variant(path: Path) -> int:
    """Returns the index of the variant of the artifact at `path` that runs on this machine.

    Raises UserError if the artifact cannot be loaded.
    """
    return runtime.load(path, error=UserError).variant


def measure_steps(
    path: Path,
    steps: Sequence[int | str],
    inputs: Callable[[Module], NamedArrays],
    runs: int,
    threads: int | None,
) -> tuple[StepTime, ...]:
    """Measures each of the `steps` of the artifact at `path`.

    A time is the median of `runs` runs, after one run that is not measured. `inputs` returns the
    arrays to run on. Raises UserError if the artifact cannot be loaded, or if its manifest does not
    name all steps.
    """
    module = runtime.load(path, threads, timed=True, error=UserError)
    arrays = inputs(module)
    module.run(arrays)
    sums = [module.times()]
    for _ in range(runs):
        module.run(arrays)
        sums.append(module.times())
    if len(steps) != len(sums[0]):
        raise UserError("the artifact's manifest does not name its program's steps", where=path)
    program = program_of(path, module.variant)
    shapes = {
        number: np.shape(arrays[port.name])
        for number, port in enumerate(module.inputs)
        if port.kind == "tensor"
    }
    step_times = []
    step_arguments = step_sizes(program, shapes)
    for step, sizes, readings in zip(steps, step_arguments, zip(*sums, strict=True), strict=True):
        seconds = [new.seconds - old.seconds for old, new in pairwise(readings)]
        count = (readings[-1].count - readings[0].count) // runs
        step_times.append(
            StepTime(step, count, median(seconds), sizes, module.statistics().threads)
        )
    return tuple(step_times)
