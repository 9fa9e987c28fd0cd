"""Joins runs of a model along a symbolic batch dimension, with the bytes of the single runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from tcc.runtime import abi
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import RuntimeFailure

Arrays = Mapping[str, Any]
_SEED = 0
_FLOATS = ("f16", "bf16", "f32", "f64")


class Runnable(Protocol):
    """The part of `Module` that a batch needs."""

    inputs: tuple[ModulePort, ...]
    outputs: tuple[ModulePort, ...]

    def run(self, inputs: Arrays, *, seed: int | None = None) -> dict[str, Any]: ...


def batch_symbol(ports: Sequence[ModulePort]) -> str:
    """Returns the symbol that is the first dimension of every port and no other, or "".

    A model with a second symbol has none: its requests would differ in more than their rows.
    """
    sizes = [port.text.strip("[]").split(",") for port in ports]
    symbols = {size for shape in sizes for size in shape[:1]}
    inner_sizes = [size for shape in sizes for size in shape[1:]]
    symbol = min(symbols, default="")
    is_only = len(symbols) == 1 and symbol.isidentifier()
    return symbol if is_only and all(size.isdigit() for size in inner_sizes) else ""


def sample_inputs(ports: Sequence[ModulePort], rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns seeded inputs: floats around 0, integers and booleans of 0 and 1, strings of digits.

    Each unknown size is `rows`.
    """
    generator = np.random.default_rng(_SEED)
    arrays = {}
    for port in ports:
        shape = [rows if size is None else size for size in port.shape]
        if port.dtype in _FLOATS:
            values = generator.standard_normal(shape).astype(np.float32)
            arrays[port.name] = _converted(values, port.dtype)
        elif port.dtype == "string":
            arrays[port.name] = generator.integers(0, 10, shape).astype(str).astype(object)
        else:
            numbers = generator.integers(0, 2, shape)
            arrays[port.name] = numbers.astype(abi.numpy_dtype(port.dtype))
    return arrays


def _converted(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    element = abi.numpy_dtype(dtype)
    if not abi.holds_bits(element, dtype):
        return values.astype(element)
    return (values.view(np.uint32) >> 16).astype(element)  # the upper half of f32 is bf16


def run_together(
    model: Runnable, requests: Sequence[Arrays], most_rows: int
) -> list[dict[str, Any] | RuntimeFailure]:
    """Returns the outputs of each request, in order, from runs of at most `most_rows` rows.

    A request of more rows runs alone, and so does each request of a joined run that fails: then the
    answer of a request is its own failure, and the others get their outputs.
    """
    answers: list[dict[str, Any] | RuntimeFailure] = []
    for chunk in _chunks(model, requests, most_rows):
        answers += _joined(model, chunk)
    return answers


def _rows(model: Runnable, request: Arrays) -> int:
    return len(request[model.inputs[0].name])


def _chunks(
    model: Runnable, requests: Sequence[Arrays], most_rows: int
) -> list[list[tuple[Arrays, int]]]:
    chunks: list[list[tuple[Arrays, int]]] = []
    room = 0
    for request in requests:
        rows = _rows(model, request)
        if not chunks or rows == 0 or rows > room:
            chunks.append([])
            room = most_rows
        chunks[-1].append((request, rows))
        room = room - rows if rows else 0  # an empty request stays alone
    return chunks


def _joined(
    model: Runnable, chunk: Sequence[tuple[Arrays, int]]
) -> list[dict[str, Any] | RuntimeFailure]:
    if len(chunk) == 1:
        return [_outcome(model, chunk[0][0])]
    inputs = {
        port.name: np.concatenate([request[port.name] for request, _ in chunk])
        for port in model.inputs
    }
    outputs = _outcome(model, inputs)
    if isinstance(outputs, RuntimeFailure):
        return [_outcome(model, request) for request, _ in chunk]
    ends = np.cumsum([rows for _, rows in chunk])
    return [
        {name: array[end - rows : end] for name, array in outputs.items()}
        for (_, rows), end in zip(chunk, ends, strict=True)
    ]


def _outcome(model: Runnable, inputs: Arrays) -> dict[str, Any] | RuntimeFailure:
    try:
        return model.run(inputs)
    except RuntimeFailure as failure:
        return failure


def same_bytes(left: Arrays, right: Arrays) -> bool:
    """Returns True if both have arrays of equal shapes and bytes."""
    pairs = [(np.asarray(left[name]), np.asarray(right[name])) for name in left]
    return left.keys() == right.keys() and all(
        a.shape == b.shape and (a.tolist() == b.tolist() if a.dtype == object else _equal(a, b))
        for a, b in pairs
    )


def _equal(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    return left.tobytes() == right.tobytes()


def rows_within(model: Runnable, most_rows: int, latency: float, where: str) -> int:
    """Returns the rows of the largest joined run, at most `most_rows`, that keeps a latency.

    A request that arrives when a run begins waits for that run and for its own, so two runs must
    fit into `latency` seconds. Every size up to the result is run on seeded inputs, and must give
    the bytes of single rows. Raises RuntimeFailure if a size does not, or if the model has no batch
    symbol.
    """
    if not batch_symbol((*model.inputs, *model.outputs)):
        raise RuntimeFailure(
            "requests of this model cannot be joined",
            where=where,
            why="its inputs and outputs do not begin with one symbolic dimension, alone symbolic",
            hint="compile a model with a symbolic batch, or serve it without `latency`",
        )
    inputs = sample_inputs(model.inputs, most_rows)
    singles = [model.run({n: a[i : i + 1] for n, a in inputs.items()}) for i in range(most_rows)]
    fitting = 1
    for rows in range(2, most_rows + 1):
        begin = perf_counter()
        outputs = model.run({name: array[:rows] for name, array in inputs.items()})
        if 2 * (perf_counter() - begin) > latency:
            break
        parts = ({name: a[i : i + 1] for name, a in outputs.items()} for i in range(rows))
        if not all(same_bytes(part, one) for part, one in zip(parts, singles, strict=False)):
            raise RuntimeFailure(
                "requests of this model cannot be joined",
                where=where,
                why=f"a run of {rows} rows gives other bytes than runs of single rows",
                hint="serve it without `latency`",
            )
        fitting = rows
    return fitting
