"""The worker that runs a model with OpenVINO: MODEL.onnx INPUTS.npz THREADS PRECISION.

It is set up for latency as OpenVINO's documentation says: one stream over all threads, inputs bound
once.
"""

from collections.abc import Mapping
from pathlib import Path

import openvino
from tcc.runtime.worker import Array, Run, read_arrays, serve


def prepare(model: Path, feed: Path, threads: int, precision: str) -> Run:
    """Returns a function that runs the model once on the arrays of `feed`, in `precision`."""
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    request = compiled.create_infer_request()
    for name, array in read_arrays(feed).items():
        request.set_tensor(name, openvino.Tensor(array))
    tensors = {port.any_name: request.get_tensor(port) for port in compiled.outputs}

    def run() -> Mapping[str, Array]:
        request.infer()
        return {name: tensor.data for name, tensor in tensors.items()}

    return run


if __name__ == "__main__":
    serve(prepare)
