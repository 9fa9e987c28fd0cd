"""The time of a graph in JAX.  It is a module of its own: JAX is not everywhere."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# the device's memory is torch's too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

from gpu.jax_graph import build, to_device

_DTYPES = {"bf16": "bfloat16", "f16": "float16"}


def seconds_of(request: Mapping[str, Any], inputs: list[Any], limit: float) -> dict[str, Any]:
    """The median seconds of calls of the item's graph through jax.jit, over `limit` seconds, on
    inputs (NumPy arrays; floats are taken in the item's precision); and how long compiling took.

    A model's calls are awaited one by one, a kernel's in tens, so that launching is hidden.
    """
    item = request["item"]
    path = Path(request["folder"]) / "graphs" / f"{item['graph']}.json"
    run, weights = build(json.loads(path.read_text()), _DTYPES.get(item["precision"]))
    given = [to_device(x, _DTYPES.get(item["precision"])) for x in inputs]
    exact = "default" if item["precision"] in _DTYPES else "highest"
    times: list[float] = []
    calls = 1 if item["kind"] == "model" else 10
    with jax.default_matmul_precision(exact):
        fast = jax.jit(run)
        begun = time.perf_counter()
        found = jax.block_until_ready(fast(weights, *given))
        spent = time.perf_counter() - begun
        begun = time.perf_counter()
        while len(times) < 5 or time.perf_counter() - begun < limit:
            before = time.perf_counter()
            jax.block_until_ready([fast(weights, *given) for _ in range(calls)])
            times.append((time.perf_counter() - before) / calls)
    outputs = [jnp.asarray(x, jnp.float32).__array__() for x in found]
    return {"jax_seconds": statistics.median(times), "jax_after": spent, "outputs": outputs}
