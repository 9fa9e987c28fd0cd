"""Computes the constant stages of a region, in f64 and rounded once.

m[k, j] = w[k, j] + sum(r) a[k, r] * b[r, j]          with constant w, a, b: m is an array

A stage computes a tensor of a region.  It is constant if it depends on constant parameters only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from string import ascii_letters
from typing import Any

import numpy as np
from tcc.ir.expr import Expr
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import Arg, Cast, Const, Scalar, argument, cast, literal, rebuild
from tcc.ir.op import Array
from tcc.ir.region import Factor, Region, RegionStage, constant_of, is_leaf
from tcc.ir.region.affine import Affine
from tcc.ir.region.convert import to_expr
from tcc.ir.types import F64, DType, tensor
from tcc.passes.derive.algebra.cost import constant_stages, count
from tcc.zipped import zip_equal

# A constant stage is computed if its loops have at most _MOST_POINTS iterations in total. A sum of
# products that matmuls compute may have _MOST. At these limits a stage takes seconds.
_MOST, _MOST_POINTS = 1 << 36, 1 << 27


def foldable(region: Region, constants: Sequence[bool]) -> bool:
    """Returns True if all constant stages can be computed at compile time.

    They must have numeric sizes and be small enough.  `constants` says for each parameter if it is
    constant.
    """
    fixed = constant_stages(region, constants)
    for stage, is_constant in zip_equal(region.stages, fixed):
        if not is_constant:
            continue
        if is_leaf(stage) or not all(isinstance(size, int) for size in stage.loops):
            return False
        if count(stage.loops) > (_MOST if _is_plain(stage) else _MOST_POINTS):
            return False
    return True


def fold(
    region: Region, constants: Sequence[bool], operands: Sequence[Array | None]
) -> dict[int, tuple[Array, ...]]:
    """Returns the arrays of each constant stage, by the stage's number; floats are f64.

    A stage has an array for each of its components.  `constants` says for each parameter if it is
    constant, and `operands` has the arrays of constant parameters.
    """
    fixed = constant_stages(region, constants)
    components: dict[int, tuple[Array, ...]] = {}

    def array(factor: Factor) -> Array:
        assert factor.source is not None
        if factor.source < 0:
            return components[~factor.source][factor.component]
        operand = operands[factor.source]
        assert operand is not None
        return np.asarray(operand, np.float64) if factor.dtype.is_float else operand

    for number, stage in enumerate(region.stages):
        if fixed[number]:
            plain = _is_plain(stage)
            components[number] = _contracted(stage, array) if plain else evaluated(stage, array)
    return components


def _is_plain(stage: RegionStage) -> bool:
    """Returns True if a stage is a sum of products, and each index of a factor is a loop or a
    number."""
    reads = all(f.source is not None and all(map(is_axis, f.forms)) for f in stage.factors)
    return bool(stage.factors) and constant_of(stage) is not None and reads


def is_axis(form: Affine) -> bool:
    """Returns True if an index is a loop or a number."""
    steps = [step for step in form.steps if step != 0]
    return not form.digits and (not steps or (steps == [1] and form.offset == 0))


def _contracted(stage: RegionStage, array: Callable[[Factor], Array]) -> tuple[Array, ...]:
    """Returns the array of a sum of products, computed by matmuls where possible."""
    parts: list[Array] = []
    names: list[str] = []
    for factor in stage.factors:
        loops = [next((k for k, s in enumerate(f.steps) if s), None) for f in factor.forms]
        at: tuple[Any, ...] = tuple(
            f.offset if k is None else slice(count(stage.loops[k : k + 1]))
            for f, k in zip_equal(factor.forms, loops)
        )
        parts.append(array(factor)[at])
        names.append("".join(ascii_letters[k] for k in loops if k is not None))
    for k, size in enumerate(stage.loops):
        if not any(ascii_letters[k] in name for name in names):
            parts.append(np.ones(size))
            names.append(ascii_letters[k])
    result = ascii_letters[: len(stage.iters)]
    value = np.einsum(f"{','.join(names)}->{result}", *parts, optimize=True)
    return (value * float(constant_of(stage) or 0),)


def evaluated(stage: RegionStage, array: Callable[[Factor], Array]) -> tuple[Array, ...]:
    """Returns the arrays of a stage's components, computed element by element; floats are f64.

    The stage must be no leaf.
    """
    arrays = [array(f) for f in stage.factors if f.source is not None]
    return tuple(evaluate_expr(_in_f64(stage, tuple(a.shape for a in arrays)), arrays))


@lru_cache(1024)
def _in_f64(stage: RegionStage, shapes: tuple[tuple[int, ...], ...]) -> Expr:
    """Returns an expression that computes a stage in f64.

    `shapes` are the shapes of the tensors that it reads.
    """
    assert isinstance(stage.body, tuple)
    places = iter(range(len(shapes)))
    factors = tuple(
        f
        if f.source is None
        else f._replace(
            source=next(places),
            component=0,
            dtype=_wide(f.dtype),
            fill=f.fill and literal(f.fill.value, _wide(f.dtype)),
        )
        for f in stage.factors
    )
    wide = stage._replace(factors=factors, body=tuple(map(_retyped, stage.body)))
    source_types = (f.dtype for f in factors if f.source is not None)
    params = tuple(tensor(dtype, *shape) for dtype, shape in zip_equal(source_types, shapes))
    return to_expr(Region(params, (wide,), tuple((0, c) for c in range(len(stage.body)))))


def _wide(dtype: DType) -> DType:
    return F64 if dtype.is_float else dtype


def _retyped(scalar: Scalar) -> Scalar:
    """Returns a scalar whose floats are f64."""
    match scalar:
        case Arg():
            return argument(scalar.number, _wide(scalar.dtype))
        case Const():
            return literal(scalar.value, _wide(scalar.dtype))
        case Cast():
            return cast(_retyped(scalar.arg), _wide(scalar.dtype))
        case _:
            return rebuild(scalar, _retyped)
