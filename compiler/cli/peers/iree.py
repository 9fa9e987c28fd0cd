"""The worker that runs a model with IREE: MODEL.onnx INPUTS.npz THREADS.

The model goes through IREE's ONNX importer and is compiled for this machine's CPU.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import iree.runtime
import numpy as np
from iree.compiler import compile_file
from tcc.runtime.worker import Array, Run, read_arrays, serve

OPSET = 17  # IREE's importer supports this version best and refuses models of older versions.


def prepare(model: Path, feed: Path, threads: int) -> Run:
    """Compiles the ONNX file `model`; returns a function that runs it once on the arrays of `feed`.

    The function returns the outputs by number ("0", ...).
    """
    imported = feed.with_name("model.mlir")
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(model)]
    subprocess.run([*importer, "-o", str(imported), f"--opset-version={OPSET}"], check=True)
    binary = compile_file(
        str(imported),
        input_type="onnx",
        target_backends=["llvm-cpu"],
        extra_args=[
            "--iree-llvmcpu-target-cpu=host",
            "--iree-opt-level=O3",
            "--iree-opt-data-tiling=true",
        ],
    )
    iree.runtime.flags.parse_flags(
        f"--task_topology_group_count={threads}" if threads > 1 else "--task_topology_group_count=1"
    )
    config = iree.runtime.Config("local-task" if threads > 1 else "local-sync")
    module = iree.runtime.VmModule.copy_buffer(config.vm_instance, binary)
    context = iree.runtime.SystemContext(vm_modules=[module], config=config)
    (name,) = (n for n in module.function_names if not n.startswith("__") and "async" not in n)
    function = context.modules[module.name][name]
    arrays = [iree.runtime.asdevicearray(config.device, a) for a in read_arrays(feed).values()]

    def run() -> Mapping[str, Array]:
        results = function(*arrays)
        listed = results if isinstance(results, tuple | list) else (results,)
        return {str(number): np.asarray(item.to_host()) for number, item in enumerate(listed)}

    return run


if __name__ == "__main__":
    serve(prepare)
