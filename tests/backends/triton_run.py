"""Compiles and interprets generated Triton modules; a process of its own, for Triton may abort.

python triton_run.py compile MODULE.py FUNCTION PARAMETERS     for NVIDIA and AMD, without GPU
python triton_run.py interpret MODULE.py FUNCTION ARRAYS.npz GRID     arrays in place
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {"ptx": GPUTarget("cuda", 90, 32), "amdgcn": GPUTarget("hip", "gfx942", 64)}


def load(path: str, function: str) -> Any:
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def compile_all(path: str, function: str, parameters: str) -> None:
    """Prints the length of each target's assembly."""
    kernel = load(path, function)
    signature = dict.fromkeys(parameters.split(","), "*fp32")
    for kind, target in TARGETS.items():
        source = ASTSource(fn=kernel, signature=signature, constexprs={})
        made = triton.compile(source, target=target, options={"num_warps": 4})
        print(kind, len(made.asm[kind]))


def interpret(path: str, function: str, arrays: str, grid: str) -> None:
    """Runs the kernel on the arrays of a file and writes them back."""
    with np.load(arrays) as file:
        tensors = {name: torch.from_numpy(file[name].copy()) for name in file.files}
    load(path, function)[(int(grid),)](**tensors)
    np.savez(arrays, **{name: t.numpy() for name, t in tensors.items()})


if __name__ == "__main__":
    {"compile": compile_all, "interpret": interpret}[sys.argv[1]](*sys.argv[2:])
