"""Counts of what a stage does, before any kernel is priced."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from tcc.ir import expr
from tcc.ir.expr.scalar import Apply, Scalars, walk
from tcc.ir.index import evaluate
from tcc.passes.derive.affine import Affine, Size, interval
from tcc.passes.derive.edit import depends
from tcc.passes.derive.record import Factor, Region, Stage, shape_of

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Work(NamedTuple):
    """Operations on elements, divisions counted as multiplications, and bytes of memory, every
    element of a source once for each access."""

    multiplications: int
    additions: int
    functions: int
    read: int
    written: int


def work(region: Region, stage: Stage, sizes: Mapping[str, int] = _NO_SIZES) -> Work:
    """The counts of a stage for these values of its symbols; of a leaf each source is read whole.

    Raises KeyError for a symbol without a value.
    """
    results, terms = (prod(_int(e, sizes) for e in part) for part in (stage.iters, stage.sums))
    body = stage.body.body if isinstance(stage.body, expr.Stage) else stage.body
    products, sums, others = (n * results * terms for n in _operations(body))
    combined = results * max(terms - 1, 0) * (stage.monoid is not None)
    adds = stage.monoid == "sum"
    read = sum(_elements(region, stage, f, sizes) * f.dtype.bytes for f in stage.factors)
    written = results * sum(dtype.bytes for dtype in stage.dtypes)
    return Work(products, sums + combined * adds, others + combined * (not adds), read, written)


@lru_cache(maxsize=4096)
def _operations(body: Scalars) -> tuple[int, int, int]:
    """Multiplications, additions and other functions of one element."""
    names = [node.function for node in walk(*body) if isinstance(node, Apply)]
    products = sum(name in ("mul", "div") for name in names)
    sums = sum(name in ("add", "sub", "neg") for name in names)
    return products, sums, len(names) - products - sums


def _elements(region: Region, stage: Stage, factor: Factor, sizes: Mapping[str, int]) -> int:
    """How many elements of its source an access reads at most."""
    if factor.source is None:
        return 0
    shape = [_int(s, sizes) for s in shape_of(region, factor.source)]
    if isinstance(stage.body, expr.Stage):
        return prod(shape)
    loops = tuple(_int(e, sizes) for e in stage.loops)
    box = 1
    for form, size in zip(factor.forms, shape, strict=True):
        low, high = interval(_known(form, sizes), loops)
        assert isinstance(low, int)
        assert isinstance(high, int)
        box *= max(min(high, size - 1) - max(low, 0) + 1, 0)
    return min(box, prod(loops[k] for k in depends(factor)))


def _known(form: Affine, sizes: Mapping[str, int]) -> Affine:
    """The form with the symbols' values."""
    steps = tuple(_int(s, sizes) for s in form.steps)
    digits = tuple(
        d._replace(step=_int(d.step, sizes), of=_known(d.of, sizes)) for d in form.digits
    )
    return Affine(steps, _int(form.offset, sizes), digits)


def _int(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else int(evaluate(size, sizes))
