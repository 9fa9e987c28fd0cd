"""Times a graph in JAX.

This is a module of its own, because not every machine has JAX.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Otherwise JAX would take most of the device's memory, and torch needs memory too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from gpu.jax_graph import build, to_device

_DTYPES = {"bf16": "bfloat16", "f16": "float16"}


def seconds_of(request: Mapping[str, Any], inputs: list[Any], limit: float) -> dict[str, Any]:
    """Times the graph of the request's item through jax.jit.

    Returns {"jax_seconds": median of a call, "jax_after": seconds of the compile, "outputs": NumPy
    arrays}. The calls take `limit` seconds in total. `inputs` are NumPy arrays; floats are
    converted to the item's precision. Each call of a model is awaited. Calls of a kernel are
    awaited in groups of ten, so that their launches overlap.
    """
    item = request["item"]
    path = Path(request["folder"]) / "graphs" / f"{item['graph']}.json"
    function, weights = build(json.loads(path.read_text()), _DTYPES.get(item["precision"]))
    operands = [to_device(x, _DTYPES.get(item["precision"])) for x in inputs]
    matmul_precision = "default" if item["precision"] in _DTYPES else "highest"
    times: list[float] = []
    calls = 1 if item["kind"] == "model" else 10
    with jax.default_matmul_precision(matmul_precision):
        fast = jax.jit(function)
        start_time = time.perf_counter()
        results = jax.block_until_ready(fast(weights, *operands))
        compile_seconds = time.perf_counter() - start_time
        start_time = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - start_time < limit:
            before = time.perf_counter()
            jax.block_until_ready([fast(weights, *operands) for _ in range(calls)])
            times.append((time.perf_counter() - before) / calls)
    outputs = [jnp.asarray(x, jnp.float32).__array__() for x in results]
    return {
        "jax_seconds": statistics.median(times),
        "jax_after": compile_seconds,
        "outputs": outputs,
    }
