"""Runs a model with ONNX Runtime: MODEL.onnx INPUTS.npz THREADS [unoptimised [WEIGHTS.npz]]."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
from tcc.cli.peers.worker import Array, Run, read_arrays, serve


def prepare(
    model: Path, feed: Path, threads: int, optimised: bool, weights: Mapping[str, Array]
) -> Run:
    """A function that runs the model once on the arrays of `feed`; `weights` take the place of
    initialisers of these names."""
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    kept = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in weights.items()}
    for name, value in kept.items():
        options.add_initializer(name, value)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    inputs = read_arrays(feed)
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, session.run(names, inputs), strict=True))


if __name__ == "__main__":
    model, feed, threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    optimised = "unoptimised" not in sys.argv[4:]
    weights = read_arrays(Path(sys.argv[5])) if sys.argv[5:] else {}
    serve(lambda: prepare(model, feed, threads, optimised, weights))
