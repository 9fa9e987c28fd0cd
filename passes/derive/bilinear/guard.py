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
from math import inf, prod

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, index_value, literal
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, Indices, ceildiv, const
from tcc.ir.types import F32, I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.shapes import replaced
from tcc.passes.derive.bilinear.tiled_conv import Axis, AxisForm, Conv, Form
from tcc.passes.graph.emit import express
from tcc.record import record
from tcc.schedule.nest import typical

# The square of how far an input may exceed the root mean square of others.
_LIMIT = 2.0**20
# Squares of which no sum in a tile, times the factors of a form, leaves the range of f32.
_FINITE = 2.0**100
# The share of a strip's inputs that the next strip reads too, at most where there are enough tiles.
_SHARED = 0.25


def fails(
    b: GraphBuilder, conv: Conv, form: Form, image: Value, masks: Sequence[Value | None]
) -> Value:
    """Adds what tells whether a tile of an image fails: one bool."""
    types = [None if mask is None else mask.type for mask in masks]
    (strips,) = express(b, _failing_strips(conv, form, image.type, types), image, *masks)
    return express(b, _any(strips.type), strips)[0]


def _failing_strips(
    conv: Conv, form: Form, image: TensorType, masks: Sequence[TensorType | None]
) -> Expr:
    """failed[n, group, strip], 1 where a tile of a strip fails.

    A strip is some tiles long along the first axis, and as wide as the image along the others.  Its
    sums stay in the caches of the core that reads its inputs.
    """
    b, strip = ExprBuilder(image, *masks), _Strip(conv, form, image.shape[3:])
    energy = _energy(b, strip)
    sums = _of_results(b, strip, energy, masks)
    return _failed(b, strip, sums, _of_tiles(b, strip, energy))


@record
class _Strip:
    """The tiles of a strip, of images with so many `places` along all axes but the first."""

    conv: Conv
    form: Form
    places: Indices

    @property
    def tiles(self) -> int:
        """How many tiles a strip has along the first axis."""
        f, axis = self.form[0], self.conv.axes[0]
        step = f.tile * axis.classes
        shared = f.reads(axis) - step
        return max(1, min(round(shared / (_SHARED * step)), typical(f.tiles(axis))))

    @property
    def count(self) -> Index:
        """How many strips an image has."""
        return ceildiv(self.form[0].tiles(self.conv.axes[0]), self.tiles)

    @property
    def reads(self) -> int:
        """The inputs of a strip along the first axis, from one start."""
        f, axis = self.form[0], self.conv.axes[0]
        return f.reads(axis) + (self.tiles - 1) * f.tile * axis.classes

    def start(self, b: ExprBuilder) -> Indices:
        """Iterators over images, groups and strips."""
        return b.iters(self.conv.images, self.conv.groups, self.count)


def _energy(b: ExprBuilder, strip: _Strip) -> StageRef:
    """energy[n, group, strip, start, input, places...], the sums of squares over the channels of a
    group."""
    conv, axis = strip.conv, strip.conv.axes[0]
    size = conv.channels // conv.groups
    n, group, t = strip.start(b)
    start, k, *places = b.iters(axis.starts, strip.reads, *strip.places)
    (c,) = b.iters(size)
    row = axis.place_from(start, t * (strip.tiles * strip.form[0].tile), k)
    value = b.read(0, n, group * size + c, row, *places, fill=0)
    return b.sum((n, group, t, start, k, *places), fn("mul", value, value), (c,))


def _of_results(
    b: ExprBuilder, strip: _Strip, energy: StageRef, masks: Sequence[TensorType | None]
) -> StageRef:
    """sums[n, group, strip, turn, result, results...], over what each result reads; along one axis
    after the other.  A mask of an axis is 0 for taps that a turn lacks."""
    axes, source = strip.conv.axes, energy
    rows = strip.tiles * strip.form[0].tile
    for number, (axis, mask) in enumerate(zip(axes, masks, strict=True)):
        others = (*(a.results for a in axes[1 : number + 1]), *strip.places[number:])
        at = (*strip.start(b), *b.iters(axes[0].turns, rows, *others))
        (k,) = b.iters(axis.taps)
        if number == 0:
            turn = at[3]
            spot = (*at[:3], axis.start(turn), at[4] * axis.classes + k, *at[5:])
        else:
            y = at[number + 4]
            turn, place = y % axis.turns, axis.place(y % axis.turns, y // axis.turns, k)
            spot = replaced(at, number + 4, place)
        value: Scalar = b.read(source, *spot, fill=0 if number else None)
        if mask is not None:  # a selection: zero times an infinity is NaN
            value = choose(fn("gt", b.read(number + 1, turn, k), 0.0), value, 0.0)
        source = b.sum(at, value, (k,))
    return source


def _of_tiles(b: ExprBuilder, strip: _Strip, energy: StageRef) -> StageRef:
    """peaks[n, group, strip, start, tile, starts and tiles...], the largest energy of a place that
    each tile reads, and beside it the sum over all places that it reads; along one axis after the
    other."""
    (axis, *axes), (f, *forms) = strip.conv.axes, strip.form
    windows = list(zip(forms, axes, strict=True))
    sides = [n for g, a in windows for n in (a.starts, _inputs(g, a))]
    at = (*strip.start(b), *b.iters(axis.starts, strip.tiles, *sides))
    (k,) = b.iters(f.reads(axis))
    places = [
        a.place_from(start, const(0), r)
        for a, start, r in zip(axes, at[5::2], at[6::2], strict=True)
    ]
    value = b.read(energy, *at[:4], at[4] * (f.tile * axis.classes) + k, *places, fill=0)
    both = b.stage(at, value, value, over=(k,), monoid="max_sum")
    for number, (f, axis) in enumerate(windows):
        here = 2 * number + 6
        sides[2 * number + 1] = f.tiles(axis)
        at = (*strip.start(b), *b.iters(strip.conv.axes[0].starts, strip.tiles, *sides))
        (k,) = b.iters(f.reads(axis))
        spot = replaced(at, here, at[here] * (f.tile * axis.classes) + k)
        values = (b.read(source, *spot) for source in (both, StageRef(both.stage, 1)))
        both = b.stage(at, *values, over=(k,), monoid="max_sum")
    return both


def _inputs(f: AxisForm, axis: Axis) -> Index:
    """The inputs that all tiles read along an axis, from one start."""
    return (f.tiles(axis) - 1) * (f.tile * axis.classes) + f.reads(axis)


def _failed(b: ExprBuilder, strip: _Strip, sums: StageRef, peaks: StageRef) -> Expr:
    """Whether there is a result whose tile fails for it; comparisons with NaN do not hold."""
    conv, (axis, *axes), (f, *forms) = strip.conv, strip.conv.axes, strip.form
    windows = list(zip(forms, axes, strict=True))
    sides = [axis.turns, strip.tiles, *(n for g, a in windows for n in (a.turns, g.tiles(a)))]
    totals = StageRef(peaks.stage, 1)

    at = (*strip.start(b), *b.iters(*sides))
    over = b.iters(*(g.tile for g in strip.form))
    tile = _tile(strip, at)
    row = at[4] * f.tile + over[0]
    results = [
        (at[2 * n + 6] * g.tile + over[n + 1]) * a.turns + at[2 * n + 5]
        for n, (g, a) in enumerate(windows)
    ]
    energy = b.read(sums, *at[:4], row, *results, fill=inf)
    alone = fn("sub", b.read(totals, *tile), b.read(peaks, *tile))
    others = choose(fn("eq", energy, 0.0), alone, energy)
    rows = strip.tiles * f.tile
    if strip.count * (rows * axis.turns) is not axis.results:
        result = (at[2] * rows + row) * axis.turns + at[3]
        inside = fn("lt", index_value(result, I64), index_value(axis.results, I64))
        others = choose(inside, others, inf)
    least = b.stage(at, others, over=over, monoid="min")

    at, over = strip.start(b), b.iters(*sides)
    peak = b.read(peaks, *_tile(strip, (*at, *over)))
    inputs = prod(map(AxisForm.reads, strip.form, conv.axes)) * (conv.channels // conv.groups)
    limit = fn("mul", b.read(least, *at, *over), _LIMIT / inputs)
    holds = fn("le", peak, fn("min", limit, _FINITE))
    return b.finish(at, choose(holds, literal(0.0, F32), 1.0), over=over, monoid="max")


def _tile(strip: _Strip, at: Indices) -> Indices:
    """Where the sums of a tile stand that is `at` turns and tiles."""
    sides = (
        n
        for axis, turn, tile in zip(strip.conv.axes, at[3::2], at[4::2], strict=True)
        for n in (axis.start(turn), tile)
    )
    return (*at[:3], *sides)


def _any(strips: TensorType) -> Expr:
    """Returns one bool: a strip fails."""
    b = ExprBuilder(strips)
    over = b.iters(*strips.shape)
    worst = b.stage((), b.read(0, *over), over=over, monoid="max")
    return b.finish((), fn("gt", b.read(worst), 0.0))
