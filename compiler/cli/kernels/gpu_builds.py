"""How the kernels of an artifact for GPUs were compiled, by architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tcc.errors import UserError

# Of the manifest's row, and as a head.
_COLUMNS = (
    ("symbol", "kernel"),
    ("warps", "warps"),
    ("stages", "stages"),
    ("registers", "registers"),
    ("private", "spilt bytes"),
    ("shared", "shared bytes"),
    ("blocks", "blocks"),
)


def build_lines(variant: dict[str, Any], path: Path) -> Iterator[str]:
    """A table for each architecture of a variant in the manifest of the artifact at `path`; nothing
    for one without GPUs.

    `registers` and `spilt bytes` are a lane's, `shared bytes` those of a unit.  Raises UserError
    where the manifest lacks any of it.
    """
    if "gpu" not in variant:
        return
    try:
        blocks = [kernel["blocks"] for kernel in variant["kernels"]]
        tables = [
            (
                str(build["arch"]),
                [
                    [str((kernel | {"blocks": cut})[key]) for key, _ in _COLUMNS]
                    for kernel, cut in zip(build["kernels"], blocks, strict=True)
                ],
            )
            for build in variant["builds"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            "the artifact's manifest does not say how its kernels were compiled",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            hint="compile the model again",
        ) from error
    for arch, rows in tables:
        yield ""
        yield f"{arch}:"
        yield from _aligned([[head for _, head in _COLUMNS], *rows])


def _aligned(cells: list[list[str]]) -> Iterator[str]:
    """The first and last columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *numbers, last in cells:
        middle = (n.rjust(width) for n, width in zip(numbers, widths[1:-1], strict=True))
        yield "  ".join((first.ljust(widths[0]), *middle, last)).rstrip()
