"""Counts of work against those by hand."""

from __future__ import annotations

import pytest
from tcc.ir.index import symbol
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.derive.affine import unit
from tcc.passes.derive.convert import from_expr
from tcc.passes.derive.record import Factor, Region, Stage, product
from tcc.passes.derive.work import Work, work

from .regions import convolution, matmul
from .test_convert import expressions


def test_contractions() -> None:
    region = matmul(3, 4, 5)
    assert work(region, region.stages[0]) == Work(60, 48, 0, 4 * (15 + 20), 48)
    region = convolution(6)
    # of the image, rows and columns -1 and 6 are not read
    assert work(region, region.stages[0]) == Work(324, 288, 0, 4 * (36 + 9), 144)


def test_strided_reads_count_what_they_touch() -> None:
    at = (unit(0, 1)._replace(steps=(4,)),)
    stage = Stage((5,), (), None, (Factor(0, 0, at, F32),), product((F32,), F32, 3))
    region = Region((tensor(F32, 100),), (stage,), ((0, 0),))
    assert work(region, stage) == Work(5, 0, 0, 20, 20)


def test_symbols_need_values() -> None:
    region = matmul(symbol("n"), 4, 5)
    assert work(region, region.stages[0], {"n": 3}) == Work(60, 48, 0, 140, 48)
    with pytest.raises(KeyError, match="n"):
        work(region, region.stages[0])


def test_leaves_read_everything() -> None:
    region = from_expr(expressions(OPS["gather"])[0])
    (leaf,) = region.stages
    assert work(region, leaf).multiplications == 0
    assert work(region, leaf).read > 0
