"""Demands on sizes: what a model takes for granted of the sizes it is run with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tcc.errors import UserError
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.types import DTYPES, TensorType


@dataclass(frozen=True, slots=True)
class RequireAttrs:
    """Two sizes that must be equal, and why: a clause that goes on from "because"."""

    left: Index
    right: Index
    reason: str


def _require_types(
    types: Sequence[TensorType | None], attrs: RequireAttrs
) -> tuple[TensorType, ...]:
    if as_int(attrs.left - attrs.right) not in (0, None):
        raise ValueError(f"{attrs.left.key} is never {attrs.right.key}")
    return ()


def _require(arrays: Sequence[Array | None], attrs: RequireAttrs) -> tuple[Array, ...]:
    if attrs.left is not attrs.right:
        raise UserError(
            f"a size is {attrs.left.key} where the model needs {attrs.right.key}",
            why=attrs.reason,
            hint="give inputs of other sizes",
        )
    return ()


def _require_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((), RequireAttrs(const(3), const(3), "of this sample"), "equal")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "require",
        RequireAttrs,
        (0, 0),
        _require_types,
        _require,
        _require_samples,
        tuple(d for d in DTYPES.values() if d.is_integer),
        Tolerance.EXACT,
        "Stops the run unless two sizes are equal; a node without operands and outputs.",
        traits=frozenset({Trait.OPAQUE}),
    ),
)
