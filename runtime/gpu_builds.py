"""How the kernels of an artifact for GPUs were compiled, by architecture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tcc.runtime.terminal import Table

# The key of a number in the manifest, and the title of its column.
_COLUMNS = (
    ("symbol", "kernel"),
    ("warps", "warps"),
    ("stages", "stages"),
    ("registers", "registers"),
    ("private", "spilt bytes"),
    ("shared", "shared bytes"),
    ("blocks", "blocks"),
)


def build_lines(variant: dict[str, Any]) -> Iterator[str | Table]:
    """Yields a title and a table for each GPU architecture of a variant of a manifest.

    `registers` and `spilt bytes` count per thread, `shared bytes` per CTA. Raises the error of the
    first missing or malformed number.
    """
    if "gpu" not in variant:
        return
    counts = [{"blocks": kernel["blocks"]} for kernel in variant["kernels"]]
    for build in variant["builds"]:
        rows = [
            [str((kernel | count)[key]) for key, _ in _COLUMNS]
            for kernel, count in zip(build["kernels"], counts, strict=True)
        ]
        yield ""
        yield f"{build['arch']}:"
        yield Table([[head for _, head in _COLUMNS], *rows])
