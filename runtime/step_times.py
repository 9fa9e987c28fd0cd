"""The time of each step of an artifact's program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from tcc.runtime.host_program import HostProgram
from tcc.runtime.kernel_table import StepTime
from tcc.runtime.module import Module
from tcc.runtime.program_sizes import step_sizes
from tcc.runtime.reports import InputError


def measure_steps(
    module: Module,
    program: HostProgram,
    steps: Sequence[int | str],
    arrays: Mapping[str, Any],
    runs: int,
) -> tuple[StepTime, ...]:
    """Measures each of the `steps` of a module on `arrays`; the module was loaded with `timed`.

    A time is the median of `runs` runs, after one run that is not measured. `program` is that of
    the module's variant. Raises InputError if `steps`, which the manifest has, are not those of the
    program.
    """
    module.run(arrays)
    sums = [module.times()]
    for _ in range(runs):
        module.run(arrays)
        sums.append(module.times())
    if len(steps) != len(sums[0]):
        raise InputError("the artifact's manifest does not name its program's steps")
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
