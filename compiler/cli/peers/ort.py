"""Runs models with ONNX Runtime: MODEL.onnx INPUTS.npz THREADS [unoptimised [BEGIN:END:MODEL ...]].

With ranges, each MODEL runs once on the draws BEGIN to END of the inputs, whose arrays are named
`DRAW NAME`; the outputs are named `MODEL DRAW NAME`, the models being numbered.
"""

from pathlib import Path

import onnxruntime
from tcc.cli.peers.worker import Array, Run, read_arrays, serve


def prepare(model: Path, feed: Path, threads: int, mode: str = "", *ranges: str) -> Run:
    """A function that gives the outputs of `model` on the arrays of `feed`, or those of all
    `ranges`."""
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if mode == "unoptimised":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    inputs = read_arrays(feed)

    def opened(path: str) -> tuple[onnxruntime.InferenceSession, list[str]]:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return session, [output.name for output in session.get_outputs()]

    if not ranges:
        session, names = opened(str(model))
        return lambda: dict(zip(names, session.run(names, inputs), strict=True))
    draws: dict[int, dict[str, Array]] = {}
    for text, array in inputs.items():
        draw, _, name = text.partition(" ")
        draws.setdefault(int(draw), {})[name] = array
    found: dict[str, Array] = {}
    for number, text in enumerate(ranges):
        begin, end, path = text.split(":", 2)
        session, names = opened(path)
        for at in range(int(begin), int(end)):
            arrays = session.run(names, draws.get(at, {}))
            found |= {f"{number} {at} {n}": a for n, a in zip(names, arrays, strict=True)}
    return lambda: found


if __name__ == "__main__":
    serve(prepare)
