"""Profiles of runs: where the time goes, step by step and thread by thread.

    profile = tcc.profile(module, {"x": x})
    print(profile.steps[0].name, profile.steps[0].seconds)
    profile.save_page("page.html")      # needs the extra `profile`
    profile.save_trace("trace.json")    # for https://ui.perfetto.dev

Every second run is stamped (tcc.runtime.stamps); the runs between show what the stamps cost.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import networkx
import numpy as np
from tcc.runtime.graph import NoGraphError, graph
from tcc.runtime.module import Module
from tcc.runtime.notebook import profile_html
from tcc.runtime.profile_facts import ProfileFacts, StepFact, profile_facts
from tcc.runtime.profile_page import page_text
from tcc.runtime.profile_trace import trace_text
from tcc.runtime.reports import InputError, Statistics
from tcc.runtime.stamps import StampedRun, seconds_of, stamped_runs
from tcc.runtime.whole_files import write_whole

# Runs take this many seconds together, unless the caller gives their number.
_SECONDS = 1.0
_FEWEST, _MOST = 5, 50


@dataclass(frozen=True, slots=True)
class Startup:
    """The seconds before the second run.

    `load` links the file's code. `weights` maps the weights, decodes the program and makes the
    memory of an instance. `first_run` is the first run on an instance.
    """

    load: float
    weights: float
    first_run: float


@dataclass(frozen=True, slots=True)
class Execution:
    """A step in a run, from the first thread's begin to the last thread's end.

    `begin` and `end` are seconds from the begin of the run. `busy` is the sum over threads of the
    seconds in which they worked at it, and `threads` counts them.
    """

    step: int
    begin: float
    end: float
    busy: float
    threads: int


@dataclass(frozen=True, slots=True)
class StepProfile:
    """A step of the program with its time in a run.

    `launches` counts its executions in a run. `seconds` is the sum of their durations, `share` its
    part of the run. `predicted` is the predicted time of all launches, or None. `idle` is the part
    of the threads' time in the step in which they waited for the slowest thread.
    """

    number: int
    fact: StepFact
    launches: int
    seconds: float
    share: float
    predicted: float | None
    idle: float


class ModuleProfile:
    """The times of a module's runs on one set of inputs.

    `runs` are the stamped runs, `plain_seconds` the durations of the runs between them, without
    stamps. `facts` are what the artifact says of its steps, and `statistics` the memory of the
    runs. `threads` is the number of threads that a kernel may use. `variant` is the number of the
    variant that ran, and `shapes` has the shapes of its inputs by name. `graph` is the graph of
    `tcc.graph` with these times, or None for an artifact that is older than graphs.
    """

    graph: networkx.DiGraph | None = None

    def __init__(
        self,
        name: str,
        facts: ProfileFacts,
        runs: Sequence[StampedRun],
        plain_seconds: Sequence[float],
        startup: Startup,
        statistics: Statistics,
        variant: int = 0,
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.name, self.facts, self.startup, self.statistics = name, facts, startup, statistics
        self.runs, self.plain_seconds = tuple(runs), tuple(plain_seconds)
        self.variant, self.shapes = variant, shapes

    @property
    def threads(self) -> int:
        """Returns the most threads that a kernel may use."""
        return self.statistics.threads

    @cached_property
    def busy_threads(self) -> float:
        """Returns how many threads worked in the mean, from the begin of the runs to their end.

        It is less than `threads` if other programs kept processors busy, if threads waited for one
        another, or if kernels have too little work to share.
        """
        executions = (e for stamped_run in self.quiet for e in _executions(stamped_run))
        seconds = self.seconds * len(self.quiet)
        return sum(execution.busy for execution in executions) / seconds if seconds else 0.0

    @property
    def threads_text(self) -> str:
        """Returns the threads as text, as in "1.8 of 2 threads busy"."""
        if self.threads == 1:
            return "1 thread"
        return f"{self.busy_threads:.1f} of {self.threads} threads busy"

    @property
    def lost(self) -> int:
        """Returns the number of stamps that did not fit into the ring, of all runs."""
        return sum(stamped_run.lost for stamped_run in self.runs)

    @cached_property
    def quiet(self) -> tuple[StampedRun, ...]:
        """Returns the fastest quarter of the stamped runs, which other programs disturbed least.

        All times of a profile are means over these runs, so that those of the steps and between
        the steps sum to that of a run.
        """
        return tuple(
            sorted(self.runs, key=lambda stamped_run: stamped_run.seconds)[
                : _quarter(len(self.runs))
            ]
        )

    @property
    def quiet_text(self) -> str:
        """Returns how many runs the times are means of, as text."""
        return f"the {len(self.quiet)} fastest of {len(self.runs)} runs"

    @property
    def seconds(self) -> float:
        """Returns the duration of a stamped run."""
        return fmean(stamped_run.seconds for stamped_run in self.quiet)

    @property
    def overhead(self) -> float:
        """Returns the part by which stamps made runs longer; noise may make it negative."""
        return self.seconds / fmean(self._plain_quarter) - 1

    @property
    def noise(self) -> float:
        """Returns the part by which equal runs differ: the larger spread of the fastest runs with
        stamps and without."""
        stamped = [stamped_run.seconds for stamped_run in self.quiet]
        kinds = (stamped, self._plain_quarter)
        return max((max(times) - min(times)) / fmean(times) for times in kinds)

    @property
    def overhead_text(self) -> str:
        """Returns the overhead as text: a part of the run, or that it is within the noise."""
        if self.overhead <= max(self.noise, 0):
            return "within noise"
        return f"{self.overhead:+.1%}"

    @property
    def _plain_quarter(self) -> list[float]:
        return sorted(self.plain_seconds)[: _quarter(len(self.plain_seconds))]

    @cached_property
    def typical(self) -> StampedRun:
        """Returns the run whose duration is nearest to the mean."""
        return min(self.quiet, key=lambda stamped_run: abs(stamped_run.seconds - self.seconds))

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        """Returns the executions of the typical run, in the order in which they began."""
        return _executions(self.typical)

    @cached_property
    def steps(self) -> tuple[StepProfile, ...]:
        """Returns the times of all steps, the longest first."""
        count = len(self.facts.steps)
        tables = [_sums(_executions(stamped_run), count) for stamped_run in self.quiet]
        launches, seconds, busy, occupied = np.mean(np.stack(tables), axis=0)
        times = (
            StepProfile(
                number,
                fact,
                round(launches[number]),
                float(seconds[number]),
                float(seconds[number]) / self.seconds if self.seconds else 0.0,
                None if fact.seconds is None else fact.seconds * round(launches[number]),
                1 - float(busy[number] / occupied[number]) if occupied[number] else 0.0,
            )
            for number, fact in enumerate(self.facts.steps)
        )
        return tuple(sorted(times, key=lambda step: -step.seconds))

    @property
    def between(self) -> float:
        """Returns the seconds of a run in which no step was under way."""
        return self.seconds - sum(step.seconds for step in self.steps)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the stamped runs as a trace of Chrome's format, which Perfetto reads.

        Raises OSError if the file cannot be written; then a file that was there is as before.
        """
        write_whole(Path(path), trace_text(self).encode())

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile as a page of HTML in one file, which needs no network.

        Raises MissingLibraryError without bokeh and jinja2 (extra `profile`), and OSError if the
        file cannot be written; then a file that was there is as before.
        """
        write_whole(Path(path), page_text(self).encode())

    def __repr__(self) -> str:
        slowest = self.steps[0].fact.name if self.steps else "no step"
        return f"ModuleProfile({self.name}: {self.seconds * 1e3:.3f} ms, slowest: {slowest})"

    def _repr_html_(self) -> str:
        return profile_html(self)


def profile(
    module: Module,
    inputs: Mapping[str, Any],
    *,
    runs: int | None = None,
    room: int | None = None,
) -> ModuleProfile:
    """Runs `module` on arrays by input name, and returns where the time went.

    A copy of the module runs, once and then `runs` times each with and without stamps; None stands
    for as many as take a second, from 5 to 50. A module with state of its own runs itself, which
    changes its state; no other thread may run it meanwhile. `room` is the most stamps that a run
    may leave (32 bytes each); None is enough for any run of up to 4 million.

    Raises the module's error if the artifact is older than profiles or its manifest is damaged, and
    whatever `Module.run` raises.
    """
    shapes = {name: np.shape(array) for name, array in inputs.items()}
    facts = profile_facts(module, shapes)
    stateful = module._stateful
    measured = module if stateful else copy.copy(module)
    first = seconds_of(lambda: measured.run(inputs))
    if runs is None:
        runs = round(_SECONDS / max(seconds_of(lambda: measured.run(inputs)), 1e-9) / 2)
        runs = max(_FEWEST, min(_MOST, runs))
    stamped, plain_seconds = stamped_runs(measured, inputs, runs, room)
    steps = max(int(stamped_run.stamps["step"].max()) for stamped_run in stamped)
    if steps >= len(facts.steps):
        raise module._error(
            "the artifact's manifest does not name its program's steps",
            where=str(module._path),
            hint="compile the model again",
        )
    name = str(module.manifest.get("name", module._path.stem))
    startup = Startup(module._image.seconds, module._open_seconds, first)
    statistics = measured.statistics()
    result = ModuleProfile(
        name, facts, stamped, plain_seconds, startup, statistics, module.variant, shapes
    )
    try:
        result.graph = graph(module, result)
    except NoGraphError:
        pass  # the page says so
    except InputError as error:
        raise module._error(
            error.what, where=error.where, why=error.why, hint=error.hint
        ) from error
    return result


def _quarter(count: int) -> int:
    return (count + 3) // 4


def _executions(stamped_run: StampedRun) -> tuple[Execution, ...]:
    parts = stamped_run.parts
    if not len(parts):
        return ()
    parts = parts[np.argsort(parts["execution"], kind="stable")]
    starts = np.flatnonzero(np.diff(parts["execution"], prepend=parts["execution"][0] - 1))
    begins = np.minimum.reduceat(parts["begin"], starts)
    ends = np.maximum.reduceat(parts["end"], starts)
    busy = np.add.reduceat(parts["end"] - parts["begin"], starts)
    origin = stamped_run.stamps["begin"][-1]
    bounds = np.append(starts, len(parts))
    rows = zip(
        parts["step"][starts].tolist(),
        ((begins - origin) * 1e-9).tolist(),
        ((ends - origin) * 1e-9).tolist(),
        (busy * 1e-9).tolist(),
        (len(np.unique(parts["thread"][a:b])) for a, b in pairwise(bounds.tolist())),
        strict=True,
    )
    return tuple(Execution(*row) for row in rows)


def _sums(executions: Sequence[Execution], steps: int) -> np.ndarray[Any, Any]:
    """Returns an array [4, steps]: launches, seconds, busy seconds and held seconds of each step.

    A step holds each of its threads from its begin to its end.
    """
    sums = np.zeros((4, steps))
    for execution in executions:
        seconds = execution.end - execution.begin
        row = (1, seconds, execution.busy, seconds * execution.threads)
        sums[:, execution.step] += row
    return sums
