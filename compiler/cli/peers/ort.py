"""Runs models with ONNX Runtime: MODEL.onnx INPUTS.npz THREADS [unoptimised [BEGIN:END:MODEL ...]].

`BEGIN:END:MODEL` runs another model on several sets of inputs, as `worker.run_ranges` explains.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnxruntime
from tcc.runtime.worker import Arrays, Run, read_arrays, run_ranges, serve
from tcc.zipped import zip_equal


def open_model(model: str | bytes, threads: int, optimised: bool) -> Callable[[Arrays], Arrays]:
    """Returns a function that runs a model, the path or the bytes of an ONNX file."""
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip_equal(names, session.run(names, arrays)))


def prepare(model: Path, feed: Path, threads: int, mode: str = "", *ranges: str) -> Run:
    """Returns a function that runs `model` and returns its outputs.

    It runs on the arrays of `feed`, or, with `ranges`, as `worker.run_ranges` does.
    """
    opened = partial(open_model, threads=threads, optimised=mode != "unoptimised")
    if ranges:
        outputs = run_ranges(feed, ranges, opened)
        return lambda: outputs
    return partial(opened(str(model)), read_arrays(feed))


if __name__ == "__main__":
    serve(prepare)
