"""The worker that runs models at several sizes: MODELS.json INPUTS.npz THREADS tcc|ort.

MODELS.json lists a file for each size; a file may occur several times. The arrays in INPUTS.npz and
the outputs are named `NUMBER NAME`. The worker answers as `tcc.runtime.worker` says, except for

    time MICROSECONDS  -> {"seconds": [...]}  the median of the runs in that time at each size

The first run wakes the threads; it counts only if there is no time for another.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import onnxruntime
import tcc
from tcc.runtime.worker import Array, Arrays, Run, read_arrays, write_arrays

Model = Callable[[Arrays], Arrays]


def prepare(models: Path, feed: Path, threads: int, kind: str) -> Sequence[Run]:
    """Returns a function for each size, which runs the model of this size once.

    `models` is a JSON list with a file for each size. `feed` has the inputs as arrays "n NAME",
    where n is the index of the size. `kind` is "ort" or "tcc".
    """
    files: list[str] = json.loads(models.read_text())
    feeds: list[dict[str, Array]] = [{} for _ in files]
    for text, array in read_arrays(feed).items():
        number, _, name = text.partition(" ")
        feeds[int(number)][name] = array
    opened = _session if kind == "ort" else _artifact
    runs = {file: opened(file, threads) for file in dict.fromkeys(files)}
    return [
        lambda file=file, arrays=arrays: runs[file](arrays)
        for file, arrays in zip(files, feeds, strict=True)
    ]


def _artifact(file: str, threads: int) -> Model:
    return tcc.load(file, threads).run


def _session(file: str, threads: int) -> Model:
    """Returns a function that runs a model in ONNX Runtime.

    The session has the settings of `tcc.cli.peers.ort`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(names, arrays), strict=True))


def timed(run_model: Run, seconds: float) -> float:
    """Runs a model for `seconds`; returns the median time of a run, without the first one."""
    end, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < end:
        started = time.perf_counter()
        run_model()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


def main() -> None:
    """Answers the requests on stdin until its end: "time MICROSECONDS" and "outputs FILE"."""
    models, feed, threads, kind = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of runtimes goes to stderr, so that stdout has only answers
    try:
        runs = prepare(Path(models), Path(feed), int(threads), kind)
        for line in chain([""], sys.stdin):
            verb, _, operand = line.strip().partition(" ")
            answer = {}
            if verb == "time":
                answer = {"seconds": [timed(run_model, int(operand) * 1e-6) for run_model in runs]}
            elif verb == "outputs":
                named = (
                    (n, name, a)
                    for n, run_model in enumerate(runs)
                    for name, a in run_model().items()
                )
                write_arrays(Path(operand), {f"{n} {name}": array for n, name, array in named})
            print(json.dumps(answer), file=answers, flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


if __name__ == "__main__":
    main()
