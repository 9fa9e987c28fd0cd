"""Runs generated Triton modules in Triton's interpreter, in a separate process.

python interpret.py: the standard input holds pickled (source, function, arrays, sizes, units).
`arrays` are (dtype name, NumPy array); `units` are numbers of programs, or their count. The
standard output gets the pickled arrays after the run of each.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import prod
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
    """Adds to the interpreter: rounding to bf16 and bf16 matmuls, and truth values with their
    dtype."""
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

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        tensor_of_arg = splat(self, ret_ty, arg)
        # Triton's interpreter makes bytes of truth values.
        return handle(tensor_of_arg.data.astype(arg.data.dtype), tensor_of_arg.dtype)

    handle, splat = interpreter.TensorHandle, builder.create_splat
    builder.create_splat = create_splat
    builder.cast_impl, builder.create_dot = cast_impl, create_dot
    for name in ("create_si_to_fp", "create_ui_to_fp", "create_fp_ext", "create_fp_trunc"):
        setattr(builder, name, cast_impl)
    builder.create_fp_to_fp = lambda self, source, to, mode: cast_impl(self, source, to)


def hasten() -> None:
    """Makes the interpreter faster: repeated work is cached, and reductions handle all lanes at
    once."""
    patch = cache(interpreter._patch_lang)

    def patch_lang(function: Any) -> Any:
        patch(function)  # The patch stays, because this process does nothing else.
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_lang
    interpreter.ReduceOps.generic_reduce = reduced
    for kind in (tl.pointer_type, tl.block_type):
        kind.__hash__ = tl.dtype.__hash__
    interpreter._get_np_dtype = cache(interpreter._get_np_dtype)
    options = interpreter.interpreter_builder.options
    assert not options.debug  # The interpreter would check overflows without a report.
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    remember_types()


def remember_types() -> None:
    """Caches the facts of block types and shapes for all tensors that have them."""
    make_type = tl.block_type.__init__

    @cache
    def type_facts(element: Any, shape: tuple[Any, ...]) -> dict[str, Any]:
        block = object.__new__(tl.block_type)
        make_type(block, element, list(shape))
        return vars(block)

    def init_type(self: Any, element: Any, shape: Sequence[Any]) -> None:
        vars(self).update(type_facts(element, tuple(shape)))

    @cache
    def shape_facts(shape: tuple[int, ...]) -> dict[str, Any]:
        sizes = [tl.constexpr(n) for n in shape]
        return {"numel": tl.constexpr(prod(shape)), "shape": tl.tuple(sizes)}

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        facts = shape_facts(type.shape if type.is_block() else ())
        vars(self).update(facts, handle=handle, type=type, dtype=type.scalar)

    tl.block_type.__init__ = init_type
    tl.tensor.__init__ = init_tensor


def reduced(self: Any, given: Any) -> list[Any]:
    """Reduces step by step along the axis, all other elements together."""
    assert self.keep_dims
    dtypes = [operand.dtype for operand in given]
    arrays = [operand.handle.data for operand in given]
    shape = np.delete(arrays[0].shape, self.axis)
    rows = [a.take(0, self.axis) for a in arrays]
    for n in range(1, arrays[0].shape[self.axis]):
        operands = (*rows, *(a.take(n, self.axis) for a in arrays))
        result = self.combine_fn.fn(*map(self.to_tensor, operands, dtypes * 2))
        results = result if isinstance(result, tuple) else (result,)
        values = (r.handle.data if isinstance(r, tl.core.tensor) else r for r in results)
        rows = [
            np.broadcast_to(np.reshape(v, shape if np.size(v) > 1 else ()), shape).astype(a.dtype)
            for v, a in zip(values, arrays, strict=True)
        ]
    kept = (np.expand_dims(a, self.axis) for a in rows)
    return [self.to_tensor(a, dtype) for a, dtype in zip(kept, dtypes, strict=True)]


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


def number_programs(units: Sequence[int]) -> None:
    """Gives the nth program of the next launch the number of the nth unit."""

    def create_get_program_id(self: Any, axis: int) -> Any:
        number = np.array([units[self.grid_idx[axis]]], np.int32)
        return interpreter.TensorHandle(number, tl.int32)

    interpreter.InterpreterBuilder.create_get_program_id = create_get_program_id


def run(function: Any, arrays: Tensors, sizes: list[int], units: int | Sequence[int]) -> Tensors:
    """Returns the arrays after a run of the given units, or of the first `units` units."""
    tensors = [tensor(*a) for a in arrays]
    units = range(units) if isinstance(units, int) else units
    number_programs(units)
    with np.errstate(all="ignore"):
        function[(len(units),)](*tensors, *sizes)
    return [back(name, t) for (name, _), t in zip(arrays, tensors, strict=True)]


class Modules:
    """Functions of Triton modules; each is loaded once from a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._loaded = folder, dict[tuple[str, str], Any]()

    def function(self, source: str, name: str) -> Any:
        key = source, name
        if key not in self._loaded:
            path = self._folder / f"module{len(self._loaded)}.py"
            path.write_text(source)
            self._loaded[key] = load(path, name)
        return self._loaded[key]


@contextmanager
def modules() -> Iterator[Modules]:
    with tempfile.TemporaryDirectory() as folder:
        yield Modules(Path(folder))


def serve() -> None:
    """Answers jobs until the standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Printed text must not get between the answers.
    with modules() as loaded:
        while sys.stdin.buffer.peek(1):
            source, name, *job = pickle.load(sys.stdin.buffer)
            pickle.dump(run(loaded.function(source, name), *job), answers)
            answers.flush()


if __name__ == "__main__":
    assert triton.__version__
    repair()
    hasten()
    serve()
