"""Runs a model with ONNX Runtime: MODEL.onnx INPUTS.npz THREADS [unoptimised [WEIGHTS.npz]]."""

from pathlib import Path

import onnxruntime
from tcc.cli.peers.worker import Run, read_arrays, serve


def prepare(model: Path, feed: Path, threads: int, mode: str = "", weights: str = "") -> Run:
    """A function that runs the model once on the arrays of `feed`; those of the file `weights` take
    the place of initialisers of their names."""
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if mode == "unoptimised":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stored = read_arrays(Path(weights)) if weights else {}
    kept = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in stored.items()}
    for name, value in kept.items():
        options.add_initializer(name, value)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    inputs = read_arrays(feed)
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, session.run(names, inputs), strict=True))


if __name__ == "__main__":
    serve(prepare)
