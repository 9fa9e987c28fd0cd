"""Builds the tensor expressions of convolutions by bilinear algorithms.

Along each spatial axis, the results are divided into tiles and the taps into pieces.  F(tile, taps)
computes a tile's results for a piece (algorithms.py).  The algorithms of all axes are nested, and
`point` numbers their products:

    V[point, tile, piece, c] = A x                                x: the inputs of a tile and piece
    M[point, tile, o] = sum(piece, c) V[point, tile, piece, c] * U[point, piece, c, o]
    y[o, tile, ...] = C M                                         U = B w, known when w is

The inputs of tile t and piece p begin at place tile * t + taps * p.  Several pairs of a tile and a
piece may begin at the same place, and V stores the inputs of a place once.  The places are the
multiples of the greatest common divisor of `tile` and `taps`.  If there are more places than pairs,
V stores the inputs of each pair instead.  Long filters have many pairs: 128 taps and 500 results in
F(2, 4) have 8,000 pairs, at 312 places.

Stride: a stride s divides taps k = s*k' + j, and the inputs that they read, into s classes j.  The
pieces of each class have stride 1.

Dilation: with dilation d, results whose positions are equal modulo d form a phase.  Each phase is
computed like an image of its own.  The inputs of phase r begin r inputs after those of phase 0.

Transposed convolutions: results whose positions are equal modulo the stride s form a phase.  Phase
r has the results at positions s * q + r.  They read the taps k with k % s == (r + `skip`) % s, so
each phase has weights of its own.  If r + `skip` is s or more, the phase begins one input later.

Groups: the filters of a group sum over the channels of that group only.  An axis with the form
F(1, 1), one result a tile and one tap a piece, is computed directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import gcd, prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tcc.frozen import frozen
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.graph import Node
from tcc.ir.index import Index, Indices, as_index, as_int, ceildiv, const, floordiv
from tcc.ir.op import Array
from tcc.ir.types import F32, TensorType, tensor
from tcc.ops.formula import choose, chosen, fn
from tcc.passes.derive.bilinear.algorithms import Bilinear, toom_cook
from tcc.passes.derive.bilinear.shared_sums import Arithmetic, SharedSums, shared_sums
from tcc.passes.graph.decompose import split_kernels
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal

_Grid: TypeAlias = NDArray[Any]


@frozen
class ConvAxis:
    """A spatial axis of a convolution.

    A phase is the results whose positions are equal modulo `phases`: result q of phase r is at
    position `phases` * q + r.  For tap `classes` * k + j, it reads the input `step` * (q + k) + j -
    `before`, counted from the input at which phase r begins.  If `skip` is None, phase r begins at
    input r.  Otherwise it begins at input (r + skip) // phases, and each phase has weights of its
    own.
    """

    taps: int
    results: Index
    before: Index
    step: int
    classes: int
    phases: int
    skip: int | None

    @property
    def starts(self) -> int:
        """The number of distinct inputs at which phases begin; several phases may begin at one
        input."""
        return (
            self.phases if self.skip is None else (self.phases - 1 + self.skip) // self.phases + 1
        )

    @property
    def filters(self) -> int:
        """The number of phases with weights of their own."""
        return 1 if self.skip is None else self.phases

    def filter(self, phase: Index) -> Index:
        """Returns the index of the weights of a phase."""
        return phase if self.filters > 1 else const(0)

    def start(self, phase: Index) -> Index:
        """Returns the input at which a phase begins."""
        if self.skip is None or self.starts == self.phases:
            return phase
        return (phase + self.skip) // self.phases

    def place(self, phase: Index, result: Index, tap: Index) -> Index:
        """Returns the input that result number `result` of a phase multiplies by tap `tap`."""
        return self.place_from(self.start(phase), result, tap)

    def place_from(self, start: Index, result: Index, tap: Index) -> Index:
        """Returns the input that result number `result` multiplies by tap `tap`, in a phase.

        `start` is the input at which the phase begins.
        """
        inside = self.step * (result + tap // self.classes) + tap % self.classes
        return inside + start - self.before


@frozen
class AxisForm:
    """The form F(tile, taps) of an axis: it computes `tile` neighbouring results together.

    The filter is cut along the axis into pieces of `taps` taps.
    """

    tile: int
    taps: int

    @property
    def algorithm(self) -> Bilinear:
        return toom_cook(self.tile, self.taps)

    @property
    def points(self) -> int:
        return self.tile + self.taps - 1

    @property
    def sums(self) -> tuple[SharedSums, SharedSums]:
        """The transform of a tile's inputs, and the transform of its products."""
        return shared_sums(self.algorithm.inputs), shared_sums(self.algorithm.results)

    def tiles(self, axis: ConvAxis) -> Index:
        """Returns the number of tiles of one phase."""
        return ceildiv(ceildiv(axis.results, axis.phases), self.tile)

    def pieces(self, axis: ConvAxis) -> int:
        """Returns the number of pieces that have a tap.

        Piece n has taps of class n % `classes`, the tap's number modulo the stride.  Trailing
        pieces without any tap do not count.
        """
        span = axis.classes * self.taps
        full_rounds = (axis.taps - 1) // span
        return full_rounds * axis.classes + min(axis.classes, axis.taps - full_rounds * span)

    def reads(self, axis: ConvAxis) -> int:
        """Returns the number of inputs that a tile reads, counted over all pieces."""
        rows = -(-self.pieces(axis) // axis.classes)
        return (self.tile + rows * self.taps - 1) * axis.classes

    def places(self, axis: ConvAxis) -> tuple[int, Index, int]:
        """Returns how V, the transformed inputs, is stored: (distance, places, pieces).

        A place is a position at which the inputs of a tile and a piece begin.  `distance` is the
        number of results from a place to the next, `places` is the number of places of a phase, and
        `pieces` is the number of pieces whose inputs V stores for each place.

        Pairs of a tile and a piece that read the same inputs share a place under two conditions: V
        gets smaller, and the number of results is known.  Otherwise a place is a tile, and V stores
        the inputs of all pieces for it.  Axes in pieces of one tap share no places.  Axes of
        transposed convolutions share none either, because their prices would be wrong: in F(2 x 4,
        2 x 5) of FSRCNN's 9 x 9 convolution, the matmuls would take three times as long as their
        price, and longer than the direct sums.
        """
        rows, partial = divmod(self.pieces(axis), axis.classes)
        distance, tiles = gcd(self.tile, self.taps), as_int(self.tiles(axis))
        separate = self.tile, self.tiles(axis), self.pieces(axis)
        if tiles is None or partial or self.taps == 1 or axis.skip is not None:
            return separate
        shared = (tiles - 1) * (self.tile // distance) + (rows - 1) * (self.taps // distance) + 1
        if shared >= tiles * rows:
            return separate
        return distance, const(shared), axis.classes


# The forms of all spatial axes, in order.
Form: TypeAlias = tuple[AxisForm, ...]
DIRECT = AxisForm(1, 1)


@frozen
class AxisFacts:
    """The work and the rounding errors of a form along an axis.

    `pieces`: the number of pieces.
    `tiles`: the number of tiles of a phase.
    `lines`: the number of transformed sets of inputs that V stores along the axis.
    `inward`: the number of additions and multiplications that transform the inputs of a tile.
    `outward`: the number of additions and multiplications that transform the products of a tile.
    `roundings`, `amplification`: see algorithms.py.
    """

    pieces: int
    tiles: int
    lines: int
    inward: int
    outward: int
    roundings: int
    amplification: float


@lru_cache(4096)
def _facts(form: AxisForm, axis: ConvAxis) -> AxisFacts:
    pieces, (inward, outward) = form.pieces(axis), form.sums
    _, places, place_pieces = form.places(axis)
    return AxisFacts(
        pieces,
        typical(form.tiles(axis)),
        typical(places) * place_pieces * axis.starts,
        sum(inward.operations.values()),
        sum(outward.operations.values()),
        inward.roundings + outward.roundings,
        float(form.algorithm.amplification(axis.taps) * pieces),
    )


@frozen
class Conv:
    """A convolution of `images` images with `channels` channels.

    The `filters` are divided evenly among `groups` groups.
    """

    images: Index
    channels: int
    filters: int
    groups: int
    axes: tuple[ConvAxis, ...]

    def results(self, b: ExprBuilder) -> Indices:
        """Returns iterators over images, filters and results."""
        return b.iters(self.images, self.filters, *(axis.results for axis in self.axes))

    def weights_type(self, form: Form) -> TensorType:
        """Returns the type of U[point, phases..., pieces..., channel of a group, filter]."""
        phases = (axis.filters for axis in self.axes)
        pieces = map(AxisForm.pieces, form, self.axes)
        return tensor(
            F32, points(form), *phases, *pieces, self.channels // self.groups, self.filters
        )


def conv_of(node: Node) -> Conv | None:
    """Returns the convolution that a node computes; None if the node is no convolution.

    Returns None also for three kinds of convolutions:
    - a convolution with a stride and a dilation along the same axis,
    - a transposed convolution with a dilation or symbolic padding,
    - a convolution with a symbolic number of channels or taps.
    """
    name, attrs = node.op.name, node.attrs
    if name not in ("conv", "conv_transpose"):
        return None
    image, weights = node.inputs[0], node.inputs[1]
    assert image is not None
    assert weights is not None
    shape, results = image.shape, node.result.shape
    channels, filters = as_int(shape[1]), as_int(results[1])
    taps = [as_int(n) or 0 for n in weights.shape[2:]]
    strided_and_dilated = any(s > 1 and d > 1 for s, d in zip_equal(attrs.strides, attrs.dilations))
    if channels is None or filters is None or 0 in taps or strided_and_dilated:
        return None
    is_transposed = name == "conv_transpose"
    if is_transposed and (set(attrs.dilations) != {1} or None in map(as_int, attrs.before)):
        return None
    make = _transposed_axis if is_transposed else _axis
    before = map(as_index, attrs.before)
    axes = map(make, taps, results[2:], before, attrs.strides, attrs.dilations)
    return Conv(shape[0], channels, filters, attrs.group, tuple(axes))


def _axis(taps: int, results: Index, before: Index, stride: int, dilation: int) -> ConvAxis:
    return ConvAxis(taps, results, before, stride * dilation, stride, dilation, None)


def _transposed_axis(taps: int, results: Index, before: Index, stride: int, _: int) -> ConvAxis:
    """Returns the axis of a transposed convolution.

    A tap k belongs to the results at positions p with (p + before - k) % stride = 0.  A phase with
    fewer taps than other phases is padded with zeros.
    """
    taps_per_phase = -(-taps // stride)
    first, skip = divmod(as_int(before) or 0, stride)
    return ConvAxis(
        taps_per_phase, results, as_index(taps_per_phase - 1 - first), 1, 1, stride, skip
    )


def facts_of(conv: Conv, form: Form) -> list[AxisFacts]:
    """Returns the work and errors along each axis, with typical values in place of symbolic
    sizes."""
    return list(map(_facts, form, conv.axes))


def points(form: Form) -> int:
    """Returns the number of products that one tile, piece, channel and filter need together."""
    return prod(f.points for f in form)


# ---- expressions --------------------------------------------------------------------------------


def transformed_weights(conv: Conv, form: Form, weights: Array) -> Array:
    """Returns the transformed weights U in f64, computed from a node's `weights`.

    `Conv.weights_type` describes their axes.
    """
    rank = len(form)
    filters_differ = any(axis.skip is not None for axis in conv.axes)
    array = _filters_by_phase(conv, weights) if filters_differ else weights
    array = array.astype(np.float64).reshape(
        *(a.filters for a in conv.axes), *array.shape[-rank - 2 :]
    )
    for axis_form, axis in zip_equal(form, conv.axes):
        array = np.moveaxis(array, rank + 2, -1)
        missing = -axis.taps % (axis.classes * axis_form.taps)
        array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
        array = array.reshape(*array.shape[:-1], -1, axis_form.taps, axis.classes)
        factors = np.array([[float(x) for x in row] for row in axis_form.algorithm.weights])
        array = np.moveaxis(array, -2, -1) @ factors.T
        array = array.reshape(*array.shape[:-3], -1, axis_form.points)[
            ..., : axis_form.pieces(axis), :
        ]
    at = range(rank + 2, array.ndim)
    order = (*at[1::2], *range(rank), *at[::2], rank + 1, rank)
    shape = [as_int(n) or 0 for n in conv.weights_type(form).shape]
    return array.transpose(order).reshape(shape)


def masks(conv: Conv, kernel: Sequence[int]) -> list[NDArray[np.bool_] | None]:
    """Returns for each axis an array mask[phase, tap], true if the phase has the tap.

    An axis on which every phase has all taps gets None instead.  `kernel` has the sizes of the
    filters along the spatial axes.
    """
    axis_masks = (_mask(axis, size) for axis, size in zip_equal(conv.axes, kernel))
    return [None if mask.all() else mask for mask in axis_masks]


def _mask(axis: ConvAxis, size: int) -> NDArray[np.bool_]:
    if axis.skip is None:
        return np.ones((1, axis.taps), np.bool_)
    phase, tap = np.indices((axis.phases, axis.taps))
    residue = (phase + axis.skip) % axis.phases
    mask: NDArray[np.bool_] = (axis.taps - 1 - tap) * axis.phases + residue < size
    return mask


def _filters_by_phase(conv: Conv, weights: Array) -> Array:
    """Returns the filters of a transposed convolution, divided into the taps of each phase.

    Their shape is [phases..., filters, channels of a group, taps...].
    """
    rank, axes = len(conv.axes), conv.axes
    split = split_kernels(weights, [a.taps for a in axes], [a.phases for a in axes], conv.groups)
    # Entry j of `split` has the taps k with k % phases == j. Phase r reads those of entry
    # (r + skip) % phases, so this entry moves to r.
    for at, axis in enumerate(axes, 1):
        split = np.roll(split, -(axis.skip or 0), at)
    filters_last = np.moveaxis(split, 0, rank)
    return filters_last.reshape(
        *filters_last.shape[:rank], conv.filters, *filters_last.shape[rank + 2 :]
    )


def input_transform(conv: Conv, form: Form, image: TensorType) -> Expr:
    """Returns the expression of the transformed inputs V.

    Its axes are [point, image, starts..., places..., pieces..., channel].
    """
    b = ExprBuilder(image)
    distances, *place_counts = zip_equal(*map(AxisForm.places, form, conv.axes))
    starts = (axis.starts for axis in conv.axes)
    point, n, *at, c = b.iters(
        points(form), conv.images, *starts, *place_counts[0], *place_counts[1], conv.channels
    )
    rank = len(form)
    iters = zip_equal(at[:rank], at[rank : 2 * rank], at[2 * rank :])
    places = [
        _inputs(f, axis, distance, *axis_iters)
        for f, axis, distance, axis_iters in zip_equal(form, conv.axes, distances, iters)
    ]
    grid = _grid(form)
    for position in np.ndindex(*grid.shape):
        spot = (places[axis][k] for axis, k in enumerate(position))
        grid[position] = b.read(0, n, c, *spot, fill=0)
    values = _along(grid, [f.sums[0] for f in form])
    return b.finish((point, n, *at, c), chosen(point, list(values.flat)))


def _inputs(
    form: AxisForm, axis: ConvAxis, distance: int, start: Index, place: Index, piece: Index
) -> list[Index]:
    """Returns the positions in the image, along an axis, of the inputs of a tile and piece.

    Phases of a transposed convolution begin at `axis.starts` different inputs; `start` is the index
    of one of them.  `place` is the place at which the tile and piece begin, and `distance` the
    number of results between neighbouring places.
    """
    first = distance * place
    taps_before = piece // axis.classes * form.taps
    return [
        (first + k + taps_before) * axis.step + piece % axis.classes + start - axis.before
        for k in range(form.points)
    ]


def products(conv: Conv, form: Form, v: TensorType, u: TensorType) -> Expr:
    """Returns the expression of the products M[point, image, phases..., tiles..., filter].

    M is V * U, summed over the pieces and over the channels of the filter's group.
    """
    b = ExprBuilder(v, u)
    rank = len(form)
    phases = [axis.phases for axis in conv.axes]
    tiles = map(AxisForm.tiles, form, conv.axes)
    point, n, *at, o = b.iters(*v.shape[:2], *phases, *tiles, conv.filters)
    *piece, c = b.iters(*u.shape[1 + rank : -1])
    channel = floordiv(o, conv.filters // conv.groups) * u.shape[-2] + c
    filter_phases = map(ConvAxis.filter, conv.axes, at)
    starts = map(ConvAxis.start, conv.axes, at)
    spots, lots = [], []
    for f, axis, tile, i in zip_equal(form, conv.axes, at[rank:], piece):
        distance, _, many = f.places(axis)
        spots.append(tile * (f.tile // distance) + i // many * (f.taps // distance))
        lots.append(i % many)
    lhs = b.read(0, point, n, *starts, *spots, *lots, channel)
    rhs = b.read(1, point, *filter_phases, *piece, c, o)
    return b.finish((point, n, *at, o), lhs * rhs, over=(*piece, c), monoid="sum")


def output_transform(conv: Conv, form: Form, m: TensorType, bias: TensorType | None) -> Expr:
    """Returns the expression of the results y[image, filter, results...], computed from M.

    Adds the bias if its type is given.
    """
    b = ExprBuilder(m, bias)
    n, o, *y = conv.results(b)
    phases = [i % axis.phases for i, axis in zip_equal(y, conv.axes)]
    at = [i // axis.phases for i, axis in zip_equal(y, conv.axes)]
    tiles = [i // f.tile for i, f in zip_equal(at, form)]
    grid = _grid(form)
    for point, position in enumerate(np.ndindex(*grid.shape)):
        grid[position] = b.read(0, point, n, *phases, *tiles, o)
    values = _along(grid, [f.sums[1] for f in form])
    value = _element_at([i % f.tile for i, f in zip_equal(at, form)], values)
    return b.finish((n, o, *y), value if bias is None else value + b.read(1, o))


def direct_sums(
    conv: Conv,
    image: TensorType,
    u: TensorType,
    bias: TensorType | None,
    masks: Sequence[TensorType | None],
) -> Expr:
    """Returns the expression of the results y[image, filter, results...] as direct sums.

    Adds the bias if its type is given.  `u` is the type of U in the form F(1, 1) of every axis.
    `masks` has for each axis the type of mask[phase, tap], which is 0 if the phase lacks the tap.
    A missing tap adds nothing to a result, even if its input is NaN.
    """
    b, size = ExprBuilder(image, u, bias, *masks), conv.channels // conv.groups
    n, o, *y = conv.results(b)
    *taps, c = b.iters(*(axis.taps for axis in conv.axes), size)
    phases = [i % axis.phases for i, axis in zip_equal(y, conv.axes)]
    filter_phases = list(map(ConvAxis.filter, conv.axes, phases))
    at = zip_equal(conv.axes, phases, y, taps)
    places = (axis.place(phase, i // axis.phases, k) for axis, phase, i, k in at)
    channel = floordiv(o, conv.filters // conv.groups) * size + c
    value: Scalar = b.read(0, n, channel, *places, fill=0)
    for number, mask in enumerate(masks):
        if mask is not None:
            present = b.read(number + 3, filter_phases[number], taps[number]) > 0.0
            value = choose(present, value, 0.0)
    term = value * b.read(1, 0, *filter_phases, *taps, c, o)
    sums = b.sum((n, o, *y), term, (*taps, c))
    if bias is None:
        return b.done()
    n, o, *y = conv.results(b)
    return b.finish((n, o, *y), b.read(sums, n, o, *y) + b.read(2, o))


def largest_of_four(image: TensorType, result: TensorType) -> Expr:
    """Returns the expression y[n, c, i, j]: the largest element at 2*i + {0, 1}, 2*j + {0, 1}."""
    b = ExprBuilder(image)
    n, c, i, j = b.iters(*result.shape)
    four = [b.read(0, n, c, 2 * i + p, 2 * j + q) for p in range(2) for q in range(2)]
    largest = fn("max", fn("max", *four[:2]), fn("max", *four[2:]))
    return b.finish((n, c, i, j), largest)


def _grid(form: Form) -> _Grid:
    return np.empty([f.points for f in form], dtype=object)


_SCALARS: Arithmetic[Any] = Arithmetic(
    *(np.frompyfunc(partial(fn, name), 2, 1) for name in ("add", "sub", "mul"))
)


def _along(grid: _Grid, sums: Sequence[SharedSums]) -> _Grid:
    """Returns the grid after the linear maps `sums`: map n is applied along axis n."""
    for axis, axis_sums in enumerate(sums):
        lines = axis_sums.of(list(np.moveaxis(grid, axis, 0)[..., None]), _SCALARS)
        grid = np.moveaxis(np.stack(lines), 0, axis)[..., 0]
    return grid


def _element_at(position: Sequence[Index], values: Any) -> Scalar:
    """Returns a scalar that selects the element of the grid `values` at `position`."""
    if not position:
        assert isinstance(values, Scalar)
        return values
    return chosen(position[0], [_element_at(position[1:], part) for part in values])
