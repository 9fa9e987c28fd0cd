"""Samples of the ops of `tcc.ops.data.lists`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import Array
from tcc.ir.types import F32
from tcc.ops.data.lists import ListMakeAttrs, ListSplitAttrs

from tests.ops.samples.sampling import Sample, Samples


def _tensors() -> tuple[Array, Array, Array]:
    return (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(3, dtype=np.float32).reshape(1, 3),
        np.zeros((0, 3), np.float32),
    )


def _make_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample(_tensors(), ListMakeAttrs(F32, False), "three")
    yield Sample(_tensors()[:1], ListMakeAttrs(F32, True), "optional")


def _split_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = _tensors()[0]
    yield Sample((x, np.array(2)), ListSplitAttrs(1, True, F32), "equal")
    yield Sample((x, np.array([1, 2])), ListSplitAttrs(1, True, F32), "sizes")
    yield Sample((x, np.array(1)), ListSplitAttrs(0, False, F32), "drop")


def _no_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    """Yields no samples: an operand is a list, which tests build by `list_make`."""
    yield from ()


SAMPLES: Mapping[str, Samples] = {
    "list_make": _make_samples,
    "list_insert": _no_samples,
    "list_erase": _no_samples,
    "list_length": _no_samples,
    "list_at": _no_samples,
    "list_expect": _no_samples,
    "list_concat": _no_samples,
    "list_split": _split_samples,
}
