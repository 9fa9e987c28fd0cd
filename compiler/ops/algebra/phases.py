"""Convolutions whose outputs take turns: what a transposed convolution is without inserted zeros.

With stride s, outputs r, s + r, 2*s + r, ... of an axis are one convolution of the image, phase r;
it has weights of its own, and its windows begin one element later where r + skip reaches s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.index import Index, as_int
from tcc.ir.op import (
    Array,
    Arrays,
    OpSpec,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
    Types,
)
from tcc.ir.types import TensorType
from tcc.ops.algebra.window import biased, group_channel, with_bias
from tcc.ops.formula import wide
from tcc.ops.operands import maybe_array, require, sizes
from tcc.ops.reference import given
from tcc.ops.shapes import (
    FLOATS,
    Shape,
    agree,
    agree_shapes,
    optional,
    present,
    required,
    same_dtype,
)
from tcc.record import record


@record
class PhaseConvAttrs:
    """One entry per spatial axis: outputs of each phase, steps by which phase 0 is ahead of the
    windows' grid (less than the stride), elements of the first window before the image."""

    image: Shape
    skips: tuple[int, ...]
    before: tuple[int, ...]
    group: int


def _infer(types: Types, attrs: PhaseConvAttrs) -> OutTypes:
    dtype = same_dtype(types)
    x, w, bias = required(types, 0), required(types, 1), optional(types, 2)
    spatial = x.rank - 2
    lists = (attrs.image, attrs.skips, attrs.before)
    fits = spatial >= 1 and w.rank == 2 * spatial + 2 and all(len(v) == spatial for v in lists)
    require(fits, f"phase_conv of {x} with {w}")
    channels = w.shape[spatial]
    agree(x.shape[1], w.shape[spatial + 1] * attrs.group, "the channels of all groups")
    if bias is not None:
        agree_shapes(bias.shape, (channels,), "the channels of the bias")
    outputs = tuple(p * s for p, s in zip(attrs.image, w.shape[:spatial], strict=True))
    return (TensorType(dtype, (x.shape[0], channels, *outputs)),)


def _reference(arrays: Arrays, attrs: PhaseConvAttrs) -> OutArrays:
    x, w = given(arrays, 2)
    spatial, image = x.ndim - 2, sizes(attrs.image)
    phases, taps = w.shape[:spatial], w.shape[spatial + 2 :]
    channels, groups = w.shape[spatial], attrs.group
    y = np.zeros((x.shape[0], channels, *(p * s for p, s in zip(image, phases, strict=True))))
    for r in np.ndindex(*phases):
        part = np.zeros((x.shape[0], groups, channels // groups, *image))
        for t in np.ndindex(*taps):
            late = [(a + k) // s for a, k, s in zip(r, attrs.skips, phases, strict=True)]
            first = [a + b - c for a, b, c in zip(late, t, attrs.before, strict=True)]
            seen = _shifted(x, first, image).reshape(
                x.shape[0], groups, x.shape[1] // groups, *image
            )
            weights = w[(*r, ...)][(..., *t)].reshape(groups, channels // groups, -1)
            part += np.einsum("ngc...,gmc->ngm...", seen, weights)
        spots = tuple(slice(a, None, s) for a, s in zip(r, phases, strict=True))
        y[(slice(None), slice(None), *spots)] = part.reshape(x.shape[0], channels, *image)
    return (with_bias(y, maybe_array(arrays, 2)).astype(x.dtype),)


def _shifted(x: Array, first: Sequence[int], image: Sequence[int]) -> Array:
    """`image` elements of each spatial axis of `x` from `first` on, zero outside."""
    for axis, (start, count) in enumerate(zip(first, image, strict=True), 2):
        at = np.arange(start, start + count)
        shape = [1] * x.ndim
        shape[axis] = -1
        inside = ((at >= 0) & (at < x.shape[axis])).reshape(shape)
        x = np.where(inside, np.take(x, np.clip(at, 0, x.shape[axis] - 1), axis), 0)
    return x


def _expr(types: Types, attrs: PhaseConvAttrs) -> Expr:
    x, w = present(types, 2)
    (y,) = _infer(types, attrs)
    spatial = x.rank - 2
    phases = w.shape[:spatial]
    b = ExprBuilder(*types)
    n, m, *pr = i = b.iters(x.shape[0], y.shape[1], *attrs.image, *phases)
    c, *t = over = b.iters(*w.shape[spatial + 1 :])
    p, r = pr[:spatial], pr[spatial:]
    channel = group_channel(m, c, y.shape[1], w.shape[spatial + 1], attrs.group)
    at = [
        position + _late(phase, skip, size) + tap - before
        for position, phase, skip, size, tap, before in zip(
            p, r, attrs.skips, phases, t, attrs.before, strict=True
        )
    ]
    pixel = wide(b.read(0, n, channel, *at, fill=0))
    sums = b.stage(i, pixel * wide(b.read(1, *r, m, c, *t)), over=over, monoid="sum")
    n, m, *o = outer = b.iters(*y.shape)
    turns = [q // s for q, s in zip(o, phases, strict=True)]
    turns += [q % s for q, s in zip(o, phases, strict=True)]
    spread = b.stage(outer, b.read(sums, n, m, *turns))
    return b.done(biased(b, spread, y, 2))


def _late(phase: Index, skip: int, size: Index) -> Index:
    """1 where the windows of `phase` begin one element later, else 0."""
    if skip == 1 and as_int(size) == 2:
        return phase
    return (phase + skip) // size


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "phase_conv",
        PhaseConvAttrs,
        (2, 3),
        _infer,
        _reference,
        FLOATS,
        Tolerance.ACCUMULATE,
        "Convolutions whose outputs take turns: a transposed convolution without inserted zeros.",
        expr=_expr,
        traits=frozenset({Trait.CONTRACTION, Trait.WINDOW}),
    ),
)
