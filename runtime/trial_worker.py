"""The process that runs trials: `python -m tcc.runtime.trial_worker INPUTS.npz THREADS BYTES`.

It answers a JSON line for each line that it reads:

    {"load": PATH}                                loads the artifact
    {"outputs": PATH, "file": FILE, "noise": 0}   runs the artifact, writes its outputs to FILE
    {"turn": PATH, "seconds": 0.06}               runs it, answers {"seconds": S, "steps": [...]}
    {"drop": [PATH, ...]}                         unloads artifacts

FILE is an npz file. With {"feed": FILE} in a request for outputs, the inputs come from that file.
`noise` is the relative size of random changes of the inputs. BYTES is the
memory that the process may allocate; a trial that needs more fails.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tcc.runtime.arrays import Array
from tcc.runtime.children import end_with_parent
from tcc.runtime.module import Module, load
from tcc.runtime.worker import read_arrays, write_arrays

_SEED = 0  # of the random numbers that a model draws


def serve(feed: Path, threads: int) -> None:
    """Answers requests from stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout carries the protocol
    arrays = read_arrays(feed)
    modules: dict[str, Module] = {}
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), arrays, modules, threads or None)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(
    request: dict[str, Any],
    arrays: Mapping[str, Array],
    modules: dict[str, Module],
    threads: int | None,
) -> dict[str, Any]:
    if "drop" in request:
        for path in request["drop"]:
            modules.pop(path, None)
        return {}
    if "load" in request:
        modules[request["load"]] = load(request["load"], threads, timed=True)
        return {}
    if "outputs" in request:
        arrays = read_arrays(Path(request["feed"])) if "feed" in request else arrays
        inputs = {name: _noisy(array, request["noise"]) for name, array in arrays.items()}
        module = modules[request["outputs"]]
        write_arrays(Path(request["file"]), module.run(inputs, seed=_SEED))
        return {}
    return _turn(modules[request["turn"]], arrays, request["seconds"])


def _turn(module: Module, arrays: Mapping[str, Array], seconds: float) -> dict[str, Any]:
    """Returns the mean seconds of a run, and of each step in a run."""
    before, start, runs = module.times(), time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - start < seconds:
        module.run(arrays, seed=_SEED)
        runs += 1
    elapsed, after = time.perf_counter() - start, module.times()
    steps = [(b.seconds - a.seconds) / runs for a, b in zip(before, after, strict=True)]
    return {"seconds": elapsed / runs, "steps": steps}


def _noisy(array: Any, size: float) -> Any:
    """Returns an array of floats with each element changed by a part of up to `size`."""
    if not size or array.dtype.kind != "f":
        return array
    change = np.random.default_rng(_SEED).uniform(-size, size, array.shape)
    return (array * (1 + change)).astype(array.dtype)


if __name__ == "__main__":
    end_with_parent()
    inputs_file, thread_count, most_bytes = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (int(most_bytes), int(most_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Path(inputs_file), int(thread_count))
