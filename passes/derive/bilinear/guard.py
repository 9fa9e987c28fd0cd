"""Guards of bilinear forms: a value so large that other results of its tile lose their digits.

A bilinear form adds and subtracts all inputs of a tile, so the error of every result is relative to
the largest input, and a NaN or an infinity reaches all results.  A tile passes where, for each
result,

    N * peak <= 2**20 * energy      energy: the sum of the squares of the inputs that it reads
                                    peak: the largest such sum over the channels of one place
                                    N: how many inputs the tile has

and the peak is far from the limit of f32.  A value above 1,024 times the root mean square of the
tile's other inputs fails: some result does not read it, and reads only other inputs. The border of
a region of large values fails too.  For results that read only zeros, as beside the black border of
a photo, `energy` is the sum over all places of the tile except the peak's. Where one tile fails,
direct sums replace the form for all tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from tcc.frozen import frozen
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, index_value, literal
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, Indices, as_int, ceildiv, const, minimum
from tcc.ir.types import F32, I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.shapes import replaced
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Conv, ConvAxis, Form
from tcc.passes.graph.emit import express
from tcc.schedule.nest import typical

# The square of the largest ratio of an input to the root mean square of the other inputs.
_LIMIT = 2.0**20
# The largest square whose sums in a tile, times the factors of a form, stay in the range of f32.
_FINITE = 2.0**100
# The largest shares of a strip's inputs that the next strip reads too, along the first axis and
# along other axes, where there are enough tiles.
_SHARED = (0.25, 0.125)


def fails(
    b: GraphBuilder, conv: Conv, form: Form, image: Value, masks: Sequence[Value | None]
) -> Value:
    """Adds the nodes that compute whether a tile of an image fails, and returns one bool."""
    types = [None if mask is None else mask.type for mask in masks]
    (strips,) = express(b, _failing_strips(conv, form, image.type, types), image, *masks)
    return express(b, _any(strips.type), strips)[0]


def _failing_strips(
    conv: Conv, form: Form, image: TensorType, masks: Sequence[TensorType | None]
) -> Expr:
    """Returns failed[n, group, strips...], 1 where a tile of a strip fails.

    A strip has several tiles along the first axis and along axes of symbolic size, and all tiles
    along the other axes.  Its sums have static sizes, and stay in the caches of the core that reads
    its inputs.
    """
    b = ExprBuilder(image, *masks)
    spans = tuple(map(_Span, form, conv.axes, image.shape[2:], range(len(form))))
    strip = _Strip(conv, spans)
    energy = _energy(b, strip)
    sums = _of_results(b, strip, energy, masks)
    return _failed(b, strip, sums, _of_tiles(b, strip, energy))


@frozen
class _Span:
    """The extent of a strip along axis `number`, for images of `size` places along it."""

    form: AxisForm
    axis: ConvAxis
    size: Index
    number: int

    @property
    def is_cut(self) -> bool:
        """True where several strips lie along the axis."""
        return self.number == 0 or as_int(self.size) is None

    @property
    def step(self) -> int:
        """The inputs from one tile to the next."""
        return self.form.tile * self.axis.classes

    @property
    def tiles(self) -> Index:
        """The number of tiles of a strip."""
        every = self.form.tiles(self.axis)
        if not self.is_cut:
            return every
        shared, share = self.form.reads(self.axis) - self.step, _SHARED[min(self.number, 1)]
        return const(max(1, min(round(shared / (share * self.step)), typical(every))))

    @property
    def count(self) -> Index:
        """The number of strips of an image."""
        return ceildiv(self.form.tiles(self.axis), self.tiles)

    @property
    def inputs(self) -> Index:
        """The number of inputs of a strip from one start."""
        return (self.tiles - 1) * self.step + self.form.reads(self.axis)

    @property
    def input_extents(self) -> Indices:
        """The extents of the inputs of a strip: starts and places, or all places of the image."""
        return (const(self.axis.starts), self.inputs) if self.is_cut else (self.size,)

    @property
    def result_extents(self) -> Indices:
        """The extents of the results of a strip: turns and their results, or all results."""
        axis = self.axis
        rows = self.tiles * self.form.tile
        return (const(axis.turns), rows) if self.is_cut else (axis.results,)

    def place(self, strip: Index, at: Indices) -> Index:
        """Returns the input of an image at `at`, an index into `input_extents`, of a strip.

        Places behind an image of symbolic size map to the first place behind it, which reads as
        zero, so no wider halo is needed.
        """
        if not self.is_cut:
            return at[0]
        place = self.axis.place_from(at[0], strip * (self.tiles * self.form.tile), at[1])
        return place if as_int(self.size) is not None else self.size + minimum(place - self.size, 0)

    def tap(self, at: Indices, tap: Index) -> Indices:
        """Returns the index into `input_extents` from which a result at `at`, an index into
        `result_extents`, reads a tap."""
        axis = self.axis
        if self.is_cut:
            return axis.start(at[0]), at[1] * axis.classes + tap
        return (axis.place(at[0] % axis.turns, at[0] // axis.turns, tap),)

    def turn(self, at: Indices) -> Index:
        """Returns the turn of a result at `at`, an index into `result_extents`."""
        return at[0] if self.is_cut else at[0] % self.axis.turns

    def of_start(self, start: Index, place: Index) -> Indices:
        """Returns the index into `input_extents` that lies `place` inputs behind a start of the
        strip."""
        return (start, place) if self.is_cut else (self.axis.place_from(start, const(0), place),)

    def result(self, turn: Index, tile: Index, place: Index) -> Indices:
        """Returns the index into `result_extents` at `place` in a tile of a turn."""
        row = tile * self.form.tile + place
        return (turn, row) if self.is_cut else (row * self.axis.turns + turn,)

    def within(self, strip: Index, turn: Index, tile: Index, place: Index) -> Scalar | None:
        """Returns whether an image has a result; None where it has all of them, or `result_extents`
        excludes the missing ones."""
        axis, rows = self.axis, self.tiles * self.form.tile
        if not self.is_cut or self.count * (rows * axis.turns) is axis.results:
            return None
        result = (strip * rows + (tile * self.form.tile + place)) * axis.turns + turn
        return fn("lt", index_value(result, I64), index_value(axis.results, I64))


@frozen
class _Strip:
    """The tiles of a strip: its spans along the axes of a convolution."""

    conv: Conv
    spans: tuple[_Span, ...]

    def start(self, b: ExprBuilder) -> Indices:
        """Returns iterators over images, groups and strips."""
        strips = (span.count for span in self.spans if span.is_cut)
        return b.iters(self.conv.images, self.conv.groups, *strips)

    def numbers(self, start: Indices) -> Indices:
        """Returns the number of a strip along each axis, from iterators of `start`."""
        numbers = iter(start[2:])
        return tuple(next(numbers) if span.is_cut else const(0) for span in self.spans)


def _iters(b: ExprBuilder, sizes: Sequence[Indices]) -> list[Indices]:
    """Returns iterators over `sizes`, the extents along each axis."""
    every = iter(b.iters(*(n for part in sizes for n in part)))
    return [tuple(next(every) for _ in part) for part in sizes]


def _indices(start: Indices, parts: Sequence[Indices]) -> Indices:
    return (*start, *(i for part in parts for i in part))


def _energy(b: ExprBuilder, strip: _Strip) -> StageRef:
    """Returns energy[n, group, strips..., inputs...], the sums of squares over the channels of a
    group."""
    conv = strip.conv
    size = conv.channels // conv.groups
    start = strip.start(b)
    parts = _iters(b, [span.input_extents for span in strip.spans])
    (c,) = b.iters(size)
    places = map(_Span.place, strip.spans, strip.numbers(start), parts)
    value = b.read(0, start[0], start[1] * size + c, *places, fill=0)
    return b.sum(_indices(start, parts), fn("mul", value, value), (c,))


def _of_results(
    b: ExprBuilder, strip: _Strip, energy: StageRef, masks: Sequence[TensorType | None]
) -> StageRef:
    """Returns sums[n, group, strips..., results...], over the inputs of each result, computed along
    one axis after the other.

    A mask of an axis is 0 for taps that a turn lacks.
    """
    spans, source = strip.spans, energy
    for number, (span, mask) in enumerate(zip(spans, masks, strict=True)):
        start = strip.start(b)
        sizes = (
            *(s.result_extents for s in spans[: number + 1]),
            *(s.input_extents for s in spans[number + 1 :]),
        )
        parts = _iters(b, sizes)
        (k,) = b.iters(span.axis.taps)
        spot = _indices(start, replaced(parts, number, span.tap(parts[number], k)))
        value: Scalar = b.read(source, *spot, fill=None if span.is_cut else 0)
        if mask is not None:  # a selection: zero times an infinity is NaN
            turn = span.turn(parts[number])
            value = choose(fn("gt", b.read(number + 1, turn, k), 0.0), value, 0.0)
        source = b.sum(_indices(start, parts), value, (k,))
    return source


def _of_tiles(b: ExprBuilder, strip: _Strip, energy: StageRef) -> StageRef:
    """Returns peaks[n, group, strips..., starts and tiles...], the largest energy of a place that
    each tile reads, and as second component the sum over all places, computed along one axis after
    the other."""
    spans, peaks = strip.spans, None
    for number, span in enumerate(spans):
        start = strip.start(b)
        tiles = ((const(s.axis.starts), s.tiles) for s in spans[: number + 1])
        inputs = ((const(s.axis.starts), s.inputs) for s in spans[number + 1 :])
        parts = _iters(b, (*tiles, *inputs))
        (k,) = b.iters(span.form.reads(span.axis))
        first, tile = parts[number]
        spots = replaced(parts, number, (first, tile * span.step + k))
        if peaks is None:
            places = [s.of_start(*spot) for s, spot in zip(spans, spots, strict=True)]
            value = b.read(energy, *_indices(start, places), fill=0)
            values = [value, value]
        else:
            spot = _indices(start, spots)
            values = [b.read(source, *spot) for source in (peaks, StageRef(peaks.stage, 1))]
        peaks = b.stage(_indices(start, parts), *values, over=(k,), monoid="max_sum")
    assert peaks is not None
    return peaks


def _failed(b: ExprBuilder, strip: _Strip, sums: StageRef, peaks: StageRef) -> Expr:
    """Returns the expression that tells whether a tile fails for a result; comparisons with NaN
    count as failed."""
    conv, spans = strip.conv, strip.spans
    sizes = [(const(span.axis.turns), span.tiles) for span in spans]
    totals = StageRef(peaks.stage, 1)

    start, parts = strip.start(b), _iters(b, sizes)
    over = b.iters(*(span.form.tile for span in spans))
    tile = _tile(strip, start, parts)
    results = [
        span.result(turn, row, place)
        for span, (turn, row), place in zip(spans, parts, over, strict=True)
    ]
    energy = b.read(sums, *_indices(start, results), fill=inf)
    besides_peak = fn("sub", b.read(totals, *tile), b.read(peaks, *tile))
    reference = choose(fn("eq", energy, 0.0), besides_peak, energy)
    numbers = strip.numbers(start)
    for span, number, (turn, row), place in zip(spans, numbers, parts, over, strict=True):
        inside = span.within(number, turn, row, place)
        if inside is not None:
            reference = choose(inside, reference, inf)
    smallest = b.stage(_indices(start, parts), reference, over=over, monoid="min")

    start, parts = strip.start(b), _iters(b, sizes)
    peak = b.read(peaks, *_tile(strip, start, parts))
    inputs = prod(s.form.reads(s.axis) for s in spans) * (conv.channels // conv.groups)
    limit = fn("mul", b.read(smallest, *_indices(start, parts)), _LIMIT / inputs)
    holds = fn("le", peak, fn("min", limit, _FINITE))
    over = tuple(i for part in parts for i in part)
    return b.finish(start, choose(holds, literal(0.0, F32), 1.0), over=over, monoid="max")


def _tile(strip: _Strip, start: Indices, parts: Sequence[Indices]) -> Indices:
    """Returns the index of a tile's sums, for turns and tiles `parts`."""
    spans = zip(strip.spans, parts, strict=True)
    return _indices(start, [(span.axis.start(turn), tile) for span, (turn, tile) in spans])


def _any(strips: TensorType) -> Expr:
    """Returns one bool: whether any strip fails."""
    b = ExprBuilder(strips)
    over = b.iters(*strips.shape)
    worst = b.stage((), b.read(0, *over), over=over, monoid="max")
    return b.finish((), fn("gt", b.read(worst), 0.0))
