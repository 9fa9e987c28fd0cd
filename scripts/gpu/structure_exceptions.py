"""The kernels whose structure breaks a rule of `gpu_structure` for now, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StructureException:
    """A rule that kernels break for now, and the reason.

    It holds for the kernels of items whose names begin with `item`, if their source contains
    `source`.
    """

    item: str
    source: str
    rule: str
    why: str


EXCEPTIONS: tuple[StructureException, ...] = (
    StructureException(
        "gemm_tf32", "", "wide copies",
        "the units read contiguous terms, and a row of B has contiguous columns",
    ),
)  # fmt: skip
