"""Outputs of an artifact for stored samples, run in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tcc.runtime.arrays import Array
from tcc.runtime.samples import StoredSamples
from tcc.runtime.worker import read_arrays
from tcc.runtime.worker_process import JsonWorker

_SECONDS = 600.0  # until an answer must be there
# Bytes that the process may allocate: for Python and the model, and as a multiple of the file.
_MEMORY, _FILES = 4 << 30, 3


def sample_outputs(artifact: Path, samples: StoredSamples) -> Iterator[list[Array]]:
    """Yields the outputs of an artifact, in order, for each of `samples`.

    Its files lie beside the artifact. Raises WorkerError for a process that gives no answer.
    """
    results = artifact.with_suffix(".npz")
    memory = _MEMORY + _FILES * artifact.stat().st_size
    arguments = [str(samples.path(0)), "0", str(memory)]
    log = artifact.with_suffix(".log")
    with JsonWorker("tcc.runtime.trial_worker", arguments, log) as worker:
        worker.ask(json.dumps({"load": str(artifact)}), _SECONDS)
        for number in range(samples.count):
            request = {"outputs": str(artifact), "file": str(results), "noise": 0}
            feed = {"feed": str(samples.path(number))}
            worker.ask(json.dumps(request | feed), _SECONDS)
            yield [*read_arrays(results).values()]
