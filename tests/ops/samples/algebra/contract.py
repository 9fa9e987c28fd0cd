"""Samples of the ops of `tcc.ops.algebra.contract`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.op import NoAttrs
from tcc.ops.algebra.contract import EinsumAttrs

from tests.ops.samples.sampling import Sample, Samples


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lhs, right in (
        ((7, 13), (13, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4,)),
        ((4,), (3, 4, 2)),
        ((2, 3, 4), (4,)),
        ((3, 0), (0, 2)),
        ((0, 3), (3, 2)),
        ((1, 1), (1, 1)),
    ):
        x, y = (rng.standard_normal(s).astype(np.float32) for s in (lhs, right))
        yield Sample((x, y), NoAttrs())
    halves = tuple(rng.standard_normal(s).astype(np.float16) for s in ((3, 17), (17, 5)))
    yield Sample(halves, NoAttrs(), "f16")
    yield Sample((rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 2))), NoAttrs(), "i64")


def _gemm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lhs, right, bias in (
        ((7, 13), (13, 5), (5,)),
        ((3, 4), (4, 2), (3, 1)),
        ((2, 3, 4), (4, 2), (2, 1, 1)),
        ((3, 0), (0, 2), ()),
    ):
        arrays = tuple(rng.standard_normal(s).astype(np.float32) for s in (lhs, right, bias))
        yield Sample(arrays, NoAttrs())
    halves = tuple(rng.standard_normal(s).astype(np.float16) for s in ((3, 4), (4, 2), (2,)))
    yield Sample(halves, NoAttrs(), "f16")


def _einsum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for equation, shapes in (
        ("bij,bjk->bik", ((2, 3, 7), (2, 7, 5))),
        ("ij->ji", ((3, 4),)),
        ("ii->i", ((5, 5),)),
        ("ij->", ((3, 13),)),
        ("i,j->ij", ((3,), (1,))),
        ("bhid,bhjd->bhij", ((1, 2, 3, 4), (1, 2, 5, 4))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
    ):
        arrays = tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
        yield Sample(arrays, EinsumAttrs(equation), equation)


SAMPLES: Mapping[str, Samples] = {
    "matmul": _matmul_samples,
    "gemm": _gemm_samples,
    "einsum": _einsum_samples,
}
