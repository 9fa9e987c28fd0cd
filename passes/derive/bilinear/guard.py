"""Guards of bilinear forms: whether a value of a tile is so large that others lose their digits.

A bilinear form adds and subtracts all inputs of a tile, so one result's error is of the size of the
largest of them, and a NaN or an infinity reaches all results.  A tile fails unless, for each result

    N * peak <= 2**20 * energy      energy: the sum of the squares of the inputs that it reads
                                    peak: the largest such sum over the channels of one place
                                    N: how many inputs the tile has

and the peak is far from the limit of f32.  A value above 1,024 times the root mean square of the
tile's other inputs fails: what a result reads that does not read the value is some of the others.
So does the border of a region of large values.  For results that read zeros alone, as beside the
black border of a photo, `energy` is the sum over all places of the tile but that of the peak.
Direct sums take the place of the form, for all tiles, where one fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, Source, StageRef, literal
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.types import F32, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.shapes import replaced
from tcc.passes.derive.bilinear.tiled_conv import Conv, Form
from tcc.passes.graph.emit import express

# The square of how far an input may exceed the root mean square of others.
_LIMIT = 2.0**20
# Squares of which no sum in a tile, times the factors of a form, leaves the range of f32.
_FINITE = 2.0**100


def fails(
    b: GraphBuilder, conv: Conv, form: Form, image: Value, masks: Sequence[Value | None]
) -> Value:
    """Adds what tells whether a tile of an image fails: one bool."""
    (energy,) = express(b, _energy(conv, image.type), image)
    windows = zip(form, conv.axes, strict=True)
    inputs = prod(f.reads(axis) for f, axis in windows) * (conv.channels // conv.groups)
    types = [None if mask is None else mask.type for mask in masks]
    (sums,) = express(b, _of_results(conv, energy.type, types), energy, *masks)
    peaks, totals = express(b, _of_tiles(conv, form, energy.type), energy)
    failed = _failed(conv, form, inputs, sums.type, peaks.type, totals.type)
    return express(b, failed, sums, peaks, totals)[0]


def _energy(conv: Conv, image: TensorType) -> Expr:
    """energy[n, group, places...], the sums of squares over the channels of a group."""
    b, size = ExprBuilder(image), conv.channels // conv.groups
    n, group, *at = b.iters(conv.images, conv.groups, *image.shape[2:])
    (c,) = b.iters(size)
    value = b.read(0, n, group * size + c, *at)
    return b.finish((n, group, *at), fn("mul", value, value), over=(c,), monoid="sum")


def _of_results(conv: Conv, energy: TensorType, masks: Sequence[TensorType | None]) -> Expr:
    """The sums over what each result reads, sums[n, group, results...], along one axis after the
    other; a mask of an axis is 0 for taps that a turn lacks."""
    b = ExprBuilder(energy, *masks)
    source: Source = 0
    for number, (axis, mask) in enumerate(zip(conv.axes, masks, strict=True)):
        before, after = conv.axes[:number], energy.shape[number + 3 :]
        at = b.iters(conv.images, conv.groups, *(a.results for a in before), axis.results, *after)
        (k,) = b.iters(axis.taps)
        y = at[number + 2]
        place = axis.place(y % axis.turns, y // axis.turns, k)
        value: Scalar = b.read(source, *replaced(at, number + 2, place), fill=0)
        if mask is not None:  # a selection: zero times an infinity is NaN
            present = fn("gt", b.read(number + 1, y % axis.turns, k), 0.0)
            value = choose(present, value, 0.0)
        source = b.stage(at, value, over=(k,), monoid="sum")
    return b.done()


def _of_tiles(conv: Conv, form: Form, energy: TensorType) -> Expr:
    """peaks[n, group, turns and tiles...], the largest energy of a place that each tile reads, and
    totals[n, group, turns and tiles...], the sum over all places that it reads; along one axis
    after the other."""
    b = ExprBuilder(energy)
    sources: tuple[Source, Source] = 0, 0
    for number, (f, axis) in enumerate(zip(form, conv.axes, strict=True)):
        until = zip(form[: number + 1], conv.axes[: number + 1], strict=True)
        tiles = (size for g, a in until for size in (a.turns, g.tiles(a)))
        at = b.iters(conv.images, conv.groups, *tiles, *energy.shape[number + 3 :])
        (k,) = b.iters(f.reads(axis))
        first = 2 * number + 2
        place = axis.place(at[first], at[first + 1] * f.tile, k)
        spot = (*at[:first], place, *at[first + 2 :])
        values = (b.read(source, *spot, fill=0) for source in sources)
        both = b.stage(at, *values, over=(k,), monoid="max_sum")
        sources = both, StageRef(both.stage, 1)
    return b.done(both, StageRef(both.stage, 1))


def _failed(
    conv: Conv, form: Form, inputs: int, sums: TensorType, peaks: TensorType, totals: TensorType
) -> Expr:
    """Whether there is a result whose tile fails for it; comparisons with NaN do not hold."""
    b = ExprBuilder(sums, peaks, totals)
    over = b.iters(*sums.shape)
    n, group, *y = over
    own = zip(y, conv.axes, form, strict=True)
    tile = [at for i, a, f in own for at in (i % a.turns, i // a.turns // f.tile)]
    energy = b.read(0, *over)
    peak, total = (b.read(k, n, group, *tile) for k in (1, 2))
    others = choose(fn("eq", energy, 0.0), fn("sub", total, peak), energy)
    holds = fn("le", peak, fn("min", fn("mul", others, _LIMIT / inputs), _FINITE))
    worst = b.stage((), choose(holds, literal(0.0, F32), 1.0), over=over, monoid="max")
    return b.finish((), fn("gt", b.read(worst), 0.0))
