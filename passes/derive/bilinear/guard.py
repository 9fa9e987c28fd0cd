"""Guards bilinear forms against values so large that other results of the tile lose their digits.

A bilinear form adds and subtracts all inputs of a tile.  So the error of every result is relative
to the largest input, and a NaN or an infinity reaches all results.  A tile passes if, for each
result,

    N * peak <= 2**20 * energy      energy: the sum of the squares of the inputs that it reads
                                    peak: the largest sum of squares over the channels of a pixel
                                    N: the number of inputs of the tile

and the peak is far from the limit of f32.  A tile with a value above 1,024 times the root mean
square of its other inputs fails, because some result reads only other inputs.  A tile at the border
of a region of large values fails too.  Some results read only zeros, as beside the black border of
a photo.  Their `energy` is the sum over all pixels of the tile except the pixel of the peak.  If
one tile fails, direct sums replace the form for all tiles.

The tiles are checked in strips.  A strip is a box of neighbouring tiles: some of the tiles along
the first spatial axis and along axes of symbolic size, and all tiles along the other axes.  Each
strip sums the squares of its inputs once, and its tiles share these sums.  With dilations and in
transposed convolutions, a strip has its tiles of every phase; a phase is the results whose
positions are equal modulo the number of phases (`tiled_conv`).
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
from tcc.zipped import zip_equal

# The largest allowed (|input| / rms)**2, where rms is the root mean square of the other inputs of
# the tile.
_LIMIT = 2.0**20
# A tile with a larger peak fails: its sums, times the factors of a form, could leave the range of
# f32.
_FINITE = 2.0**100
# The number of tiles of a strip follows from the share of its inputs that the next strip reads
# again. This share is about _SHARED[0] along the first axis, and about _SHARED[1] along other axes.
# An axis with too few tiles has a single strip.
_SHARED = (0.25, 0.125)


def fails(
    b: GraphBuilder, conv: Conv, form: Form, image: Value, masks: Sequence[Value | None]
) -> Value:
    """Adds nodes that check all tiles of the images; returns a bool that is true if any tile fails.

    `masks` has for each axis the values mask[phase, tap], 0 if the phase lacks the tap; None if
    every phase has all taps.
    """
    types = [None if mask is None else mask.type for mask in masks]
    (strips,) = express(b, _failing_strips(conv, form, image.type, types), image, *masks)
    return express(b, _any(strips.type), strips)[0]


def _failing_strips(
    conv: Conv, form: Form, image: TensorType, masks: Sequence[TensorType | None]
) -> Expr:
    """Returns the expression failed[n, group, strips...]: 1 if a tile of the strip fails, otherwise
    0.

    A strip's sums have static sizes, and they stay in the caches of the core that reads its inputs.
    """
    b = ExprBuilder(image, *masks)
    spans = tuple(map(_Span, form, conv.axes, image.shape[2:], range(len(form))))
    strip = _Strip(conv, spans)
    energy = _energy(b, strip)
    sums = _of_results(b, strip, energy, masks)
    return _failed(b, strip, sums, _of_tiles(b, strip, energy))


@frozen
class _Span:
    """The range of a strip along spatial axis `number` of the convolution.

    Images have `size` pixels along that axis.  If `is_cut`, several strips follow each other along
    the axis; otherwise one strip covers it.

    Inputs and results have index tuples with one or two elements for this axis.  Phases begin at
    `axis.starts` different inputs.  On a cut axis, (s, n) is the n-th input that the strip reads
    from first input number s on, and (phase, n) is the n-th result of that phase in the strip.  On
    an axis that is not cut, an input or a result has a single index: its position in the image.
    """

    form: AxisForm
    axis: ConvAxis
    size: Index
    number: int

    @property
    def is_cut(self) -> bool:
        """Returns True if there are several strips along the axis."""
        return self.number == 0 or as_int(self.size) is None

    @property
    def step(self) -> int:
        """The distance between the first inputs of neighbouring tiles."""
        return self.form.tile * self.axis.classes

    @property
    def tiles(self) -> Index:
        """The number of tiles of a strip along the axis."""
        every = self.form.tiles(self.axis)
        if not self.is_cut:
            return every
        shared, share = self.form.reads(self.axis) - self.step, _SHARED[min(self.number, 1)]
        return const(max(1, min(round(shared / (share * self.step)), typical(every))))

    @property
    def count(self) -> Index:
        """The number of strips into which this axis of an image is divided."""
        return ceildiv(self.form.tiles(self.axis), self.tiles)

    @property
    def inputs(self) -> Index:
        """The number of inputs that a strip reads for phases that begin at the same input."""
        return (self.tiles - 1) * self.step + self.form.reads(self.axis)

    @property
    def input_extents(self) -> Indices:
        """The extents of the index tuple of a strip's inputs along this axis.

        On a cut axis they are (number of different first inputs of phases, number of inputs that
        the strip reads from a first input on).  Otherwise they are (inputs of the image,).
        """
        return (const(self.axis.starts), self.inputs) if self.is_cut else (self.size,)

    @property
    def result_extents(self) -> Indices:
        """The extents of the index tuple of a strip's results along this axis.

        On a cut axis they are (phases, results of a phase in the strip).  Otherwise they are
        (results of the image,).
        """
        axis = self.axis
        rows = self.tiles * self.form.tile
        return (const(axis.phases), rows) if self.is_cut else (axis.results,)

    def place(self, strip: Index, at: Indices) -> Index:
        """Returns where an input of a strip lies along this axis of the image.

        `strip` is the number of the strip, and `at` the input's index within `input_extents`.  In
        an image of symbolic size n, a position above n is clamped to n.  The image's halo (the
        zeros that are stored around it) then needs no more room: a read at n gives zero too.
        """
        if not self.is_cut:
            return at[0]
        place = self.axis.place_from(at[0], strip * (self.tiles * self.form.tile), at[1])
        return place if as_int(self.size) is not None else self.size + minimum(place - self.size, 0)

    def tap(self, at: Indices, tap: Index) -> Indices:
        """Returns the index, within `input_extents`, of the input that a result multiplies by tap
        `tap`.

        `at` is the result's index within `result_extents`.
        """
        axis = self.axis
        if self.is_cut:
            return axis.start(at[0]), at[1] * axis.classes + tap
        return (axis.place(at[0] % axis.phases, at[0] // axis.phases, tap),)

    def phase(self, at: Indices) -> Index:
        """Returns the index of the phase of a result; `at` is the result's index within
        `result_extents`."""
        return at[0] if self.is_cut else at[0] % self.axis.phases

    def of_start(self, start: Index, place: Index) -> Indices:
        """Returns the index, within `input_extents`, of the input that is `place` inputs after
        `start`."""
        return (start, place) if self.is_cut else (self.axis.place_from(start, const(0), place),)

    def result(self, phase: Index, tile: Index, place: Index) -> Indices:
        """Returns the index, within `result_extents`, of result `place` of tile `tile` of a
        phase."""
        row = tile * self.form.tile + place
        return (phase, row) if self.is_cut else (row * self.axis.phases + phase,)

    def within(self, strip: Index, phase: Index, tile: Index, place: Index) -> Scalar | None:
        """Returns the condition that result `place` of tile `tile` of a phase is in the image.

        Returns None if all results of a strip are: tiles divide the axis, or the axis is not cut.
        """
        axis, rows = self.axis, self.tiles * self.form.tile
        if not self.is_cut or self.count * (rows * axis.phases) is axis.results:
            return None
        result = (strip * rows + (tile * self.form.tile + place)) * axis.phases + phase
        return index_value(result, I64) < axis.results


@frozen
class _Strip:
    """A box of tiles: its extent along each spatial axis of the convolution."""

    conv: Conv
    spans: tuple[_Span, ...]

    def start(self, b: ExprBuilder) -> Indices:
        """Returns iterators over images, groups, and the strips along each axis that is cut."""
        strips = (span.count for span in self.spans if span.is_cut)
        return b.iters(self.conv.images, self.conv.groups, *strips)

    def numbers(self, start: Indices) -> Indices:
        """Returns the index of the strip along each spatial axis; 0 along an axis that is not cut.

        The parameter `start` has the iterators that the method `start` returned.
        """
        numbers = iter(start[2:])
        return tuple(next(numbers) if span.is_cut else const(0) for span in self.spans)


def _iters(b: ExprBuilder, sizes: Sequence[Indices]) -> list[Indices]:
    """Returns new iterators for each axis; `sizes` has their extents."""
    every = iter(b.iters(*(n for part in sizes for n in part)))
    return [tuple(next(every) for _ in part) for part in sizes]


def _indices(start: Indices, parts: Sequence[Indices]) -> Indices:
    return (*start, *(i for part in parts for i in part))


def _energy(b: ExprBuilder, strip: _Strip) -> StageRef:
    """Adds energy[n, group, strips..., inputs...]: the squares of inputs, summed over a group's
    channels."""
    conv = strip.conv
    size = conv.channels // conv.groups
    start = strip.start(b)
    parts = _iters(b, [span.input_extents for span in strip.spans])
    (c,) = b.iters(size)
    places = map(_Span.place, strip.spans, strip.numbers(start), parts)
    value = b.read(0, start[0], start[1] * size + c, *places, fill=0)
    return b.sum(_indices(start, parts), value * value, (c,))


def _of_results(
    b: ExprBuilder, strip: _Strip, energy: StageRef, masks: Sequence[TensorType | None]
) -> StageRef:
    """Adds sums[n, group, strips..., results...]: the energy of the inputs that a result reads.

    The energy is summed along one axis after the other.  `masks` has for each axis the type of
    mask[phase, tap], which is 0 if the phase lacks the tap.
    """
    spans, source = strip.spans, energy
    for number, (span, mask) in enumerate(zip_equal(spans, masks)):
        start = strip.start(b)
        sizes = (
            *(s.result_extents for s in spans[: number + 1]),
            *(s.input_extents for s in spans[number + 1 :]),
        )
        parts = _iters(b, sizes)
        (k,) = b.iters(span.axis.taps)
        spot = _indices(start, replaced(parts, number, span.tap(parts[number], k)))
        value: Scalar = b.read(source, *spot, fill=None if span.is_cut else 0)
        # A selection, not a product, because zero times infinity is NaN.
        if mask is not None:
            phase = span.phase(parts[number])
            value = choose(b.read(number + 1, phase, k) > 0.0, value, 0.0)
        source = b.sum(_indices(start, parts), value, (k,))
    return source


def _of_tiles(b: ExprBuilder, strip: _Strip, energy: StageRef) -> StageRef:
    """Adds peaks[n, group, strips..., (start, tile)...], a stage of two components.

    Component 0 is the largest energy of a pixel that the tile reads.  Component 1 is the sum of the
    energies of all pixels that the tile reads.  Each axis adds a stage that combines along it.
    """
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
            places = [s.of_start(*spot) for s, spot in zip_equal(spans, spots)]
            value = b.read(energy, *_indices(start, places), fill=0)
            values = [value, value]
        else:
            spot = _indices(start, spots)
            values = [b.read(source, *spot) for source in (peaks, StageRef(peaks.stage, 1))]
        peaks = b.stage(_indices(start, parts), *values, over=(k,), monoid="max_sum")
    assert peaks is not None
    return peaks


def _failed(b: ExprBuilder, strip: _Strip, sums: StageRef, peaks: StageRef) -> Expr:
    """Returns the expression failed[n, group, strips...] of `_failing_strips`.

    A tile fails if N * peak <= 2**20 * energy (module text) is false for one of its results.  A
    comparison with NaN is false.
    """
    conv, spans = strip.conv, strip.spans
    sizes = [(const(span.axis.phases), span.tiles) for span in spans]
    totals = StageRef(peaks.stage, 1)

    start, parts = strip.start(b), _iters(b, sizes)
    over = b.iters(*(span.form.tile for span in spans))
    tile = _tile(strip, start, parts)
    results = [
        span.result(phase, row, place)
        for span, (phase, row), place in zip_equal(spans, parts, over)
    ]
    energy = b.read(sums, *_indices(start, results), fill=inf)
    besides_peak = b.read(totals, *tile) - b.read(peaks, *tile)
    reference = choose(fn("eq", energy, 0.0), besides_peak, energy)
    numbers = strip.numbers(start)
    for span, number, (phase, row), place in zip_equal(spans, numbers, parts, over):
        inside = span.within(number, phase, row, place)
        if inside is not None:
            reference = choose(inside, reference, inf)
    smallest = b.stage(_indices(start, parts), reference, over=over, monoid="min")

    start, parts = strip.start(b), _iters(b, sizes)
    peak = b.read(peaks, *_tile(strip, start, parts))
    inputs = prod(s.form.reads(s.axis) for s in spans) * (conv.channels // conv.groups)
    limit = b.read(smallest, *_indices(start, parts)) * (_LIMIT / inputs)
    holds = peak <= fn("min", limit, _FINITE)
    over = tuple(i for part in parts for i in part)
    return b.finish(start, choose(holds, literal(0.0, F32), 1.0), over=over, monoid="max")


def _tile(strip: _Strip, start: Indices, parts: Sequence[Indices]) -> Indices:
    """Returns the index of a tile's values in the stage that `_of_tiles` adds.

    `start` has the iterators of the strip.  `parts` has a pair for each spatial axis: the index of
    the tile's phase, and the index of the tile in the strip.
    """
    spans = zip_equal(strip.spans, parts)
    return _indices(start, [(span.axis.start(phase), tile) for span, (phase, tile) in spans])


def _any(strips: TensorType) -> Expr:
    """Returns the expression of a bool: true if an element of `strips` is 1, which says that a tile
    of that strip fails."""
    b = ExprBuilder(strips)
    over = b.iters(*strips.shape)
    worst = b.stage((), b.read(0, *over), over=over, monoid="max")
    return b.finish((), b.read(worst) > 0.0)
