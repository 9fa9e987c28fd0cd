"""The worker that runs a model with TVM: MODEL.onnx INPUTS.npz THREADS.

It uses Relax's ONNX importer and default pipeline for CPUs, for this machine's CPU, without tuning.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import tvm
from tcc.backends.cpu.detect import detect
from tcc.runtime.worker import Array, read_arrays, serve
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def prepare(model: Path, feed: Path, threads: int) -> Callable[[], Mapping[str, Array]]:
    """Compiles the ONNX file `model` with TVM; returns a function that runs it once.

    The function takes its inputs from the file `feed` and returns the outputs by number ("0", ...).
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    module = from_onnx(onnx.load(model), keep_params_in_input=False)
    target = tvm.target.Target({"kind": "llvm", "mcpu": detect().cpu, "num-cores": threads})
    with target:
        built = tvm.compile(module, target=target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    arrays = [tvm.runtime.tensor(array) for array in read_arrays(feed).values()]

    def run() -> Mapping[str, Array]:
        results = machine["main"](*arrays)
        listed = [results] if hasattr(results, "numpy") else list(results)
        return {str(number): item.numpy() for number, item in enumerate(listed)}

    return run


if __name__ == "__main__":
    serve(prepare)
