"""Outputs of an artifact for stored samples, run in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tcc.runtime.arrays import Array
from tcc.runtime.samples import StoredSamples
from tcc.runtime.trial_runner import trial_process
from tcc.runtime.worker import read_arrays

_SECONDS = 600.0  # until an answer must be there


def sample_outputs(artifact: Path, samples: StoredSamples) -> Iterator[list[Array]]:
    """Yields the outputs of an artifact, in order, for each of `samples`.

    Its files lie beside the artifact. Raises WorkerError for a process that gives no answer.
    """
    results = artifact.with_suffix(".npz")
    size, log = artifact.stat().st_size, artifact.with_suffix(".log")
    with trial_process(samples.path(0), 0, size, log) as worker:
        worker.ask(json.dumps({"load": str(artifact)}), _SECONDS)
        for number in range(samples.count):
            request = {"outputs": str(artifact), "file": str(results), "noise": 0}
            feed = {"feed": str(samples.path(number))}
            worker.ask(json.dumps(request | feed), _SECONDS)
            yield [*read_arrays(results).values()]
