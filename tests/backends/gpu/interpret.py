"""Runs generated Triton modules in Triton's interpreter; a process of its own.

python interpret.py JOBS: a pickled list of (source, function, arrays, sizes, units), where the
arrays are (dtype name, NumPy array); the arrays as they are after all units replace the file.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

Tensors = list[tuple[str, np.ndarray]]


def repair() -> None:
    """Gives the interpreter what it lacks of bf16: rounding to nearest even, and products."""
    builder = interpreter.InterpreterBuilder
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar == tl.bfloat16:
            wide = source.data.astype(np.uint32) << 16
            return cast(self, handle(wide.view(np.float32), tl.float32), to)
        if to.scalar == tl.bfloat16:
            exact = torch.from_numpy(np.ascontiguousarray(source.data, np.float32))
            narrow = exact.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
            return handle(narrow.reshape(source.data.shape), tl.bfloat16)
        return cast(self, source, to)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        parts = [self.cast_impl(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b)]
        return dot(self, *parts, d, *rest)

    handle = interpreter.TensorHandle
    builder.cast_impl, builder.create_dot = cast_impl, create_dot
    for name in ("create_si_to_fp", "create_ui_to_fp", "create_fp_ext", "create_fp_trunc"):
        setattr(builder, name, cast_impl)
    builder.create_fp_to_fp = lambda self, source, to, mode: cast_impl(self, source, to)


def load(path: Path, function: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def tensor(name: str, array: np.ndarray) -> torch.Tensor:
    if name == "bf16":
        return torch.from_numpy(array.copy()).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


def back(name: str, value: torch.Tensor) -> tuple[str, np.ndarray]:
    return name, (value.float() if name == "bf16" else value).numpy()


def run(path: Path, function: str, arrays: Tensors, sizes: list[int], units: int) -> Tensors:
    tensors = [tensor(*a) for a in arrays]
    with np.errstate(all="ignore"):
        load(path, function)[(units,)](*tensors, *sizes)
    return [back(name, t) for (name, _), t in zip(arrays, tensors, strict=True)]


def main(file: Path) -> None:
    repair()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (source, *job) in enumerate(pickle.loads(file.read_bytes())):
            path = Path(folder) / f"module{number}.py"
            path.write_text(source)
            results.append(run(path, *job))
    file.write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    assert triton.__version__
    main(Path(sys.argv[1]))
