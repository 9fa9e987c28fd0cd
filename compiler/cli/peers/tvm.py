"""The worker that runs a model with TVM: MODEL.onnx INPUTS.npz THREADS.

It uses Relax's ONNX importer and default pipeline for CPUs, for this machine's CPU, without tuning.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import onnx
import tvm
from tcc.backends.cpu.detect import detect
from tcc.runtime.worker import Array, Run, read_arrays, serve
from tcc.zipped import zip_equal
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def prepare(model: Path, feed: Path, threads: int) -> Run:
    """Compiles the ONNX file `model`; returns a function that runs it once on the arrays of `feed`.

    The function returns the outputs by name.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    proto = onnx.load(model)
    target = tvm.target.Target({"kind": "llvm", "mcpu": detect().cpu, "num-cores": threads})
    inputs = read_arrays(feed)
    shapes = {name: [*array.shape] for name, array in inputs.items()}
    with target:
        module = from_onnx(proto, shape_dict=shapes, keep_params_in_input=False)
        main = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())["main"]
    arrays = [tvm.runtime.tensor(inputs[x.name]) for x in proto.graph.input if x.name in inputs]
    names = [port.name for port in proto.graph.output]

    def run() -> Mapping[str, Array]:
        results = main(*arrays)
        listed = [results] if hasattr(results, "numpy") else results
        return {name: item.numpy() for name, item in zip_equal(names, listed)}

    return run


if __name__ == "__main__":
    serve(prepare)
