"""Notes the prices of an artifact's kernels, and the parts of each price; needs tcc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tcc.artifact import read_manifest
from tcc.backends.gpu import backend as gpu_code
from tcc.passes.tile.gpu.plan import block_schedule
from tcc.schedule.gpu.cost import BlockPricer, Usage

# The fields of a BlockPrice that `gpu.fit` fits; each is in seconds.
PARTS = ("launch", "compute", "latency", "dram", "l2")


@contextmanager
def price_parts() -> Iterator[list[dict[str, Any]]]:
    """Yields a list to which a compile in this context adds the parts of each kernel's price.

    The kernels come in the order of the manifest. "units" tells whether matrix units compute, so
    that "compute" depends on their rate.
    """
    parts: list[dict[str, Any]] = []
    price_of = gpu_code._price

    def watched(gpu: Any, bound: Any, kernel: Any, precision: str) -> dict[str, Any]:
        profile = gpu_code.block_profile((gpu,), precision)
        pricer, schedule = BlockPricer(bound.group, profile), block_schedule(bound)
        usage = Usage(kernel.registers, kernel.private, kernel.shared)
        price = pricer.price(replace(schedule, stages=kernel.stages), usage)
        types = {stage.matrix.dtype for stage in pricer.runs(schedule) if stage.matrix}
        units = any(dtype in dict(profile.matrix) for dtype in types)
        parts.append({**{name: getattr(price, name) for name in PARTS}, "units": units})
        return dict(price_of(gpu, bound, kernel, precision))

    gpu_code._price = watched
    try:
        yield parts
    finally:
        gpu_code._price = price_of


def priced_steps(artifact: Path, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each step of the artifact's program, its source and its price.

    A kernel has "seconds" and "limit", and on a GPU its `parts`, language, registers and spilled
    bytes. A step that is no kernel has no price.
    """
    (variant,) = read_manifest(artifact)["variants"]
    rows = []
    for step in variant["steps"]:
        if isinstance(step, str):
            rows.append({"source": step})
            continue
        kernel = variant["kernels"][step]
        row = {"source": kernel["source"].strip(), "kernel": step, "seconds": kernel["seconds"]}
        row["limit"] = kernel.get("limit")
        if parts:
            build = variant["builds"][0]["kernels"][step]
            row |= {name: build[name] for name in ("language", "registers", "private")}
            row["parts"] = parts[step]
        rows.append(row)
    return rows
