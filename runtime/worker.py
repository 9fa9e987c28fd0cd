"""The worker's side of a peer: a process that runs one model on request.

A worker is started as `python -m tcc.cli.peers.X MODEL INPUTS.npz THREADS [ARGUMENT ...]`.  It
answers one JSON line when it is ready, then one JSON line for each line it reads:

    time COUNT      -> {"seconds": [...]}   wall seconds of COUNT runs
    outputs FILE    -> {}                   writes the outputs of one run to FILE (npz)
    again           -> {}                   prepares anew, because INPUTS.npz has changed

A failure is answered with {"error": text} and ends the worker.  The runtime's own prints go to
stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from tcc.runtime.children import end_with_parent

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Run = Callable[[], Arrays]  # runs a model once


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays as an npz file: array 0 holds their names, which may be any text.

    Each string gets a full stop at its end, because NumPy drops zeros at the end of a text.  Raises
    ValueError for sequences and optionals.
    """
    values = map(np.asarray, arrays.values())
    encoded = [_with_stops(a) if a.dtype.kind in "OU" else a for a in values]
    np.savez(path, np.array(list(arrays), dtype=np.str_), *encoded)


def _with_stops(texts: Array) -> Array:
    if not all(isinstance(text, str) for text in texts.flat):
        raise ValueError("sequences and optionals cannot be handed to another process")
    return np.array([f"{text}." for text in texts.flat], np.str_).reshape(texts.shape)


def _without_stops(texts: Array) -> Array:
    return np.array([str(text)[:-1] for text in texts.flat], object).reshape(texts.shape)


def read_arrays(path: Path) -> dict[str, Array]:
    """Reads the arrays that `write_arrays` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = [archive[f"arr_{number + 1}"] for number in range(len(archive["arr_0"]))]
        decoded = (_without_stops(a) if a.dtype.kind == "U" else a for a in arrays)
        return dict(zip(map(str, archive["arr_0"]), decoded, strict=True))


def serve(prepare: Callable[..., Run]) -> None:
    """Answers requests from stdin until it ends.

    `prepare(MODEL, INPUTS.npz, THREADS, *ARGUMENTS)` takes two paths, a number and texts, and
    returns the function that runs the model once.
    """
    model, feed, threads, *arguments = sys.argv[1:]
    prepared: list[Run] = []

    def answer(line: str) -> Mapping[str, Any]:
        verb, _, operand = line.partition(" ")
        if verb == "again":
            prepared[:] = [prepare(Path(model), Path(feed), int(threads), *arguments)]
            prepared[0]()
            return {}
        if verb == "time":
            return _timed(prepared[0], int(operand))
        write_arrays(Path(operand), prepared[0]())
        return {}

    answer_lines("again", answer)


def answer_lines(first: str, answer: Callable[[str], Mapping[str, Any]]) -> None:
    """Answers the request `first`, and then each line of stdin until it ends, with a line of JSON.

    `answer(line)` returns the answer to a line, which has no white space at its ends.  The first
    exception is answered with its text, and ends the requests.
    """
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout carries the protocol, so the runtime's own prints go to stderr
    try:
        for line in chain([first], sys.stdin):
            _reply(answers, answer(line.strip()))
    except Exception as error:
        _reply(answers, {"error": f"{type(error).__name__}: {error}"})


def run_ranges(
    feed: Path, ranges: Sequence[str], open_model: Callable[[str], Callable[[Arrays], Arrays]]
) -> Arrays:
    """Runs models on several sets of inputs each, and returns all outputs.

    A set of inputs is a draw.  An item `BEGIN:END:MODEL` of `ranges` runs MODEL on the draws BEGIN
    to END - 1.  The arrays in `feed` are named `DRAW NAME`.  The outputs are named
    `ITEM DRAW NAME`, where ITEM is the index in `ranges`.  `open_model(MODEL)` returns a function
    that runs the model.
    """
    draws: dict[str, dict[str, Array]] = {}
    for text, array in read_arrays(feed).items():
        draw, _, name = text.partition(" ")
        draws.setdefault(draw, {})[name] = array
    outputs: dict[str, Array] = {}
    for number, text in enumerate(ranges):
        begin, end, path = text.split(":", 2)
        run_model = open_model(path)
        for draw_number in range(int(begin), int(end)):
            arrays = run_model(draws.get(str(draw_number), {}))
            outputs |= {f"{number} {draw_number} {name}": array for name, array in arrays.items()}
    return outputs


def _reply(answers: TextIO, answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def _timed(run_once: Run, count: int) -> dict[str, Sequence[float]]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        run_once()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}
