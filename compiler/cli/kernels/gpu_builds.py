"""How the kernels of an artifact for GPUs were compiled, by architecture."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tcc.cli.kernels.facts import reading_manifest
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


def build_lines(variant: dict[str, Any], path: Path) -> Iterator[str | Table]:
    """Yields a title and a table for each GPU architecture of a variant.

    `registers` and `spilt bytes` count per thread, `shared bytes` per CTA.  Raises UserError where
    the manifest of the artifact at `path` lacks a number.
    """
    if "gpu" not in variant:
        return
    with reading_manifest(path, "say how its kernels were compiled"):
        blocks = [kernel["blocks"] for kernel in variant["kernels"]]
        tables = [
            (
                str(build["arch"]),
                [
                    [str((kernel | {"blocks": count})[key]) for key, _ in _COLUMNS]
                    for kernel, count in zip(build["kernels"], blocks, strict=True)
                ],
            )
            for build in variant["builds"]
        ]
    for arch, rows in tables:
        yield ""
        yield f"{arch}:"
        yield Table([[head for _, head in _COLUMNS], *rows])
