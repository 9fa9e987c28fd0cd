"""Leaves out products with zeros and repeats of constants, where the price is lower.

    %y = matmul(%x, %w)    w = 0 above the diagonal     y[:, :n] = x[:, :n] * w[:n, :n], ...
                           w = blocks on the diagonal   y[i, g, j] = sum(k) x[i, g, k] * w[g, k, j]
                           w = one number a column      y[i, j] = x[i, rows[j]] * w[j]
                           w = equal numbers in rows    y = cum_sum(%x * w[:, n - 1])
                               of a triangle
    %y = matmul(where(equal(%rows, [0, 1, ...]), 1, 0), %w)     y[i, j] = w[rows[i], j]
    %d = reduce_sum(mul(%eye, matmul(%a, %b)))          d[i] = sum(k) a[i, k] * b[k, i]
    %y = matmul(%x, %w)    w[:, j] = u[:, labels[j]]    y[:, j] = (x * u)[:, labels[j]]
                           w = kron(a, b)               y = (x * kron(1, b)) * kron(a, 1)

A site is a sum of products (`sites`), or one of its nodes.  The constant is a matrix of two loops,
of which at least one is summed: the rows.  Its columns are cut into tiles, and each tile has a
range of rows outside of which it is 0.  The ranges become loops of the sum.

The product of a zero and of an infinity or a NaN is NaN.  So a result also adds 0 * x for every x
whose products are left out: it is NaN if one of these x is infinite or NaN, as before.  A constant
with infinities or NaN stays.  A column that is computed once leaves no element of a sum out.
Requires folded constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import as_index
from tcc.ir.op import Array
from tcc.ir.region import Factor, RegionStage, product
from tcc.ir.region.affine import Affine, Sizes, loops_of, unit, units
from tcc.ir.region.convert import to_expr
from tcc.ir.region.edit import depends, loop_maps, mapped
from tcc.ir.types import DType
from tcc.known import all_known
from tcc.ops.shapes import replaced
from tcc.passes.derive.algebra.fold import is_axis
from tcc.passes.derive.algebra.terms import WIDE, Flattened, Term
from tcc.passes.derive.emitted import Way, with_cheapest
from tcc.passes.derive.repeats import kronecker_factors, repeated_rows, repeats
from tcc.passes.derive.rewritten import single_stage
from tcc.passes.derive.sites import DerivationSite, SiteScope, composed, scopes
from tcc.passes.graph.emit import emit, express
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.zipped import zip_equal

# A constant is looked through if it has at most _MOST elements, and if at most _DENSE of _SAMPLE of
# its elements are not 0.  Columns with different ranges of rows are cut into at most _PARTS parts.
_MOST, _SAMPLE, _DENSE, _PARTS = 1 << 28, 256, 224, 8


def skip_zeros(graph: Graph, cheapest: Cheapest) -> Graph:
    """Returns `graph` without products with zeros and repeated columns of constants; `graph` itself
    if nothing changes.

    `cheapest` returns the index of the cheapest of several graphs.  Bodies stay as they are.
    """
    arrays = {v: a for v in graph.constants if (a := _structured(graph, v)) is not None}
    scope = next(scopes(graph))
    options = ((site, [*_ways(site, arrays)]) for site in (_sites(scope, arrays) if arrays else ()))
    return with_cheapest(graph, chain(options, _lookups(scope)), cheapest)


def _structured(graph: Graph, value: Value) -> Array | None:
    """Returns the array of a constant of finite numbers that has zeros or repeats; else None."""
    if value.dtype not in WIDE or value.rank < 2:
        return None
    handle = graph.constants[value]
    return graph.store.common(handle) if graph.store.fact(_has_structure, (handle,)) else None


def _has_structure(arrays: Sequence[Array]) -> bool:
    """Returns True if all ranks have one array, of finite numbers, with many zeros or repeats."""
    array, *copies = arrays
    if copies or not 1 < array.size <= _MOST:
        return False
    # The sampled places have no common period with rows or columns.
    places = np.arange(1, _SAMPLE + 1) * 0.6180339887498949 % 1 * array.size
    is_dense = np.count_nonzero(array.flat[places.astype(np.int64)]) > _DENSE
    return (not is_dense or repeats(array)) and bool(np.isfinite(array).all())


def _sites(scope: SiteScope, arrays: Mapping[Value, Array]) -> Iterator[DerivationSite]:
    """Yields the nodes that read one of `arrays` as a factor, then sites of several such nodes."""
    for site in scope.sums():
        nodes = [scope.site((node,), ()) for node in site.nodes if len(site.nodes) > 1]
        yield from (s for s in (*nodes, site) if not arrays.keys().isdisjoint(s.operands))


# ---- rows that a run selects --------------------------------------------------------------------


def _lookups(scope: SiteScope) -> Iterator[tuple[DerivationSite, list[Way]]]:
    """Yields matmuls of a matrix whose rows have a 1 each, at positions that a run computes.

    The other matrix is a constant of finite numbers; it is read at these positions.
    """

    def array(value: Value | None) -> Array | None:
        handle = scope.known.get(value) if value else None
        return None if handle is None else scope.graph.store.common(handle)

    for node in scope.graph.nodes:
        is_matmul = node.op.name == "matmul" and node.result.dtype in WIDE
        x, table = node.inputs if is_matmul else (None, None)
        select = scope.producers.get(x)
        condition = select.inputs[0] if select and select.op.name == "where" else None
        equal = scope.producers.get(condition)
        if not select or not equal or equal.op.name != "equal":
            continue
        places, columns = equal.inputs
        constants = all_known(map(array, (*select.inputs[1:], columns, table)))
        shape = select.result.shape[:-1]
        if constants and places and places.shape == (*shape, as_index(1)):
            on, off, counted, rows = constants
            is_one_hot = np.all(on == 1) and not np.any(off)
            is_one_hot &= np.array_equal(counted.reshape(-1), np.arange(len(rows)))
            if is_one_hot and rows.ndim == 2 and np.isfinite(rows).all():
                site = scope.site((equal, select, node), ())
                at = [site.operands.index(v) for v in (places, table) if v]
                yield site, [partial(_selected, at=at, shape=shape, last=len(rows) - 1)]


def _selected(
    b: GraphBuilder, operands: Sequence[Value], at: Sequence[int], shape: Any, last: int
) -> Value:
    """Adds nodes that read a row of a table for each position; 0 for a position outside of it."""
    places, table = (operands[n] for n in at)
    first, end = (b.constant(np.array(n, places.dtype.carrier), "end") for n in (0, last))
    inside = emit(b, "min", emit(b, "max", places, first), end)
    rows = emit(b, "gather", table, emit(b, "reshape", inside, shape=shape), axis=0)
    zero = b.constant(np.zeros((), table.dtype.carrier), "zero")
    # The sum of a row and of products with 0 has no negative zeros.
    return emit(b, "where", emit(b, "equal", places, inside), emit(b, "add", rows, zero), zero)


# ---- zeros of a matrix --------------------------------------------------------------------------


@frozen
class _Part:
    """The columns of a matrix from `column` on, in `tiles` tiles of `width` columns.

    Tile g is 0 outside of `height` rows, of which `first + step * g` is the first.  The rows of a
    tile, and its columns, are neighbours; with a `stride` they are so far apart, and tiles overlap.
    """

    column: int
    tiles: int
    width: int
    first: int
    step: int
    height: int
    stride: int = 1

    @property
    def rows(self) -> Array:
        """The rows of each tile, as an array [tile, row of the tile, 1]."""
        tiles = np.arange(self.tiles)[:, None, None]
        return self.first + self.step * tiles + np.arange(self.height)[:, None]

    def values(self, matrix: Array) -> Array:
        """Returns the numbers of the tiles as an array [tile, row of the tile, column of it]."""
        columns = np.arange(self.tiles * self.width).reshape(-1, 1, self.width)
        return matrix[self.rows, self.column + columns]


# The products of a matrix with one number of each row, and the parts; no parts stand for all of it.
_Cover: TypeAlias = tuple[int, tuple[_Part, ...]]


def _covers(matrix: Array) -> list[tuple[_Part, ...]]:
    """Returns the ways to cover the numbers of a matrix that are not 0 with the fewest products.

    The first way has one part whose tiles have equally many rows, the second way several parts.
    """
    size, columns = matrix.shape
    nonzero = matrix != 0
    used = nonzero.any(0)
    low = np.where(used, nonzero.argmax(0), size)
    high = np.where(used, size - nonzero[::-1].argmax(0), 0)
    even: list[_Cover] = [(size * columns, ())]
    uneven = [*even]
    for width in (n for n in range(1, columns + 1) if columns % n == 0):
        tiles = columns // width
        lows, highs = low.reshape(-1, width).min(1), high.reshape(-1, width).max(1)
        first, step = int(lows[0]), int(lows[1] - lows[0]) if tiles > 1 else 0
        height = int((highs - lows).max())
        fits = height > 0 and lows.min() >= 0 and lows.max() + height <= size
        if fits and np.all(np.diff(lows) == step):
            part = _Part(0, tiles, width, first, step, height)
            even.append((height * columns, (part,)))
        if tiles <= _PARTS:
            # A tile of zeros keeps one row.
            lows, highs = np.where(highs, lows, 0), np.maximum(highs, 1)
            parts = [
                _Part(n * width, 1, width, int(a), 0, int(b - a))
                for n, (a, b) in enumerate(zip_equal(lows, highs))
            ]
            uneven.append((width * int((highs - lows).sum()), tuple(parts)))
    best = (min(ways, key=lambda way: way[0]) for ways in (even, uneven))
    return [parts for _, parts in best if parts]


# ---- sums of products ---------------------------------------------------------------------------


class _Product(NamedTuple):
    """A sum of products of type `dtype`; `iters` are the extents of its result.

    Factor `place` of `term` is a constant matrix, whose rows are loop `row` and whose columns are
    loop `column`.
    """

    term: Term
    iters: Sizes
    dtype: DType
    place: int
    row: int
    column: int

    @property
    def other_factors(self) -> tuple[Factor, ...]:
        return replaced(self.term.factors, self.place)


def _ways(site: DerivationSite, arrays: Mapping[Value, Array]) -> Iterator[Way]:
    """Yields ways to compute a site with fewer products; `arrays` has constants with zeros."""
    region = composed(site.nodes)
    ((number, _),) = region.outputs
    flat = Flattened(region, spread=False)
    terms = flat.terms(number) or ()
    stage = flat.region.stages[number]
    dtype = stage.dtypes[0]
    is_plain = all(
        f.source is not None and f.source >= 0 and f.dtype is dtype
        for t in terms
        for f in t.factors
    )
    if len(terms) != 1 or not is_plain or terms[0].scale or len(terms[0].factors) < 2:
        return
    (term,) = terms
    for place, factor in enumerate(term.factors):
        array = arrays.get(site.operands[factor.source or 0])
        reading = None if array is None else _matrix(factor, array, (*stage.iters, *term.sums))
        if reading is None:
            continue
        matrix, loops = reading
        for row, column, oriented in ((*loops, matrix), (*loops[::-1], matrix.T)):
            if row >= len(stage.iters):
                yield from _skipped(
                    _Product(term, stage.iters, dtype, place, row, column), oriented
                )


def _matrix(factor: Factor, array: Array, loops: Sizes) -> tuple[Array, tuple[int, int]] | None:
    """Returns the matrix that a factor reads, and the loops of its two axes; None if it reads
    something else."""
    at = [next((k for k, step in enumerate(f.steps) if step != 0), None) for f in factor.forms]
    axes = [k for k in at if k is not None and loops[k] != 1]
    if not all(map(is_axis, factor.forms)) or len(axes) != 2 or axes[0] == axes[1]:
        return None
    places: tuple[Any, ...] = tuple(
        slice(None) if k in axes else form.offset for k, form in zip_equal(at, factor.forms)
    )
    matrix = array[places]
    return (
        (matrix, (axes[0], axes[1])) if matrix.shape == (loops[axes[0]], loops[axes[1]]) else None
    )


def _skipped(p: _Product, matrix: Array) -> Iterator[Way]:
    """Yields ways to compute a product that leave out zeros of its matrix."""
    is_result = p.column < len(p.iters)
    for cover in _covers(matrix):
        if len(cover) == 1 or is_result:
            parts = [(part, part.values(matrix)) for part in cover]
            yield partial(_in_parts, p=p, parts=parts)
    x = _read_by_row(p)
    if is_result and p.column not in chain(*map(depends, p.other_factors)):
        yield from _factored(p, matrix)
    if not is_result or x is None:
        return
    # The differences of neighbouring columns, in order and in the opposite order.
    steps, steps_back = np.diff(matrix, prepend=0), -np.diff(matrix, append=0)
    for reverse, numbers in ((None, matrix), (False, steps), (True, steps_back)):
        axes = (0,) if reverse is None else (0, 1)
        if all(np.count_nonzero(numbers, axis).max() <= 1 for axis in axes):
            rows = (numbers != 0).argmax(0)
            values = numbers[rows, np.arange(len(rows))].reshape(-1, 1, 1)
            yield partial(_gathered, p=p, x=x, rows=rows, values=values, reverse=reverse)


def _factored(p: _Product, matrix: Array) -> Iterator[Way]:
    """Yields ways to multiply by a matrix in two steps, without equal products."""
    if pair := kronecker_factors(matrix):
        (m, n), (height, width) = pair[0].shape, pair[1].shape
        a, c = pair[0][None], pair[1][None]
        b_then_a = (
            (_Part(0, m, width, 0, height, height), c),
            (_Part(0, width, n, 0, 1, m, width), a),
        )
        a_then_b = (
            (_Part(0, height, n, 0, 1, m, height), a),
            (_Part(0, n, width, 0, height, height), c),
        )
        for steps in (b_then_a, a_then_b):
            yield partial(_stepwise, p=p, steps=steps)
    if pair := repeated_rows(matrix.T):
        yield partial(_repeated, p=p, columns=pair[0].T, labels=pair[1])


def _repeated(
    b: GraphBuilder, operands: Sequence[Value], p: _Product, columns: Array, labels: Array
) -> Value:
    """Adds nodes that multiply by different columns, and repeat the results."""
    part = _Part(0, 1, columns.shape[1], 0, 0, len(columns))
    y = _tiled(b, operands, p, part, columns[None])
    return emit(b, "gather", y, b.constant(labels.astype(np.int64), "columns"), axis=p.column)


def _stepwise(
    b: GraphBuilder, operands: Sequence[Value], p: _Product, steps: Sequence[tuple[_Part, Array]]
) -> Value:
    """Adds nodes that multiply by several matrices, one after the other."""
    loops = len(p.iters)
    axes = replaced(units(loops + 1)[:-1], p.column, unit(loops, loops + 1))
    for part, values in steps:
        operands = [y := _tiled(b, operands, p, part, values)]
        factors = (Factor(0, 0, axes, p.dtype),) * 2
        term = Term((), (part.tiles * part.width,), factors)
        p = _Product(term, p.iters, p.dtype, 1, loops, p.column)
    return y


def _read_by_row(p: _Product) -> tuple[int, int] | None:
    """Returns (factor, axis) if a single factor reads along the rows, and reads an axis by it."""
    form = unit(p.row, len(p.iters) + len(p.term.sums))
    readers = [
        (n, axis, each == form and f.fill is None)
        for n, f in enumerate(p.term.factors)
        for axis, each in enumerate(f.forms)
        if n != p.place and p.row in loops_of(each)
    ]
    return readers[0][:2] if [fits for *_, fits in readers] == [True] else None


def _gathered(
    b: GraphBuilder,
    operands: Sequence[Value],
    p: _Product,
    x: tuple[int, int],
    rows: Array,
    values: Array,
    reverse: bool | None,
) -> Value:
    """Adds nodes that read a row for every column, and multiply it by the column's number.

    If `reverse` is not None, each column of the result adds those before it, or those behind it.
    """
    number, axis = x
    factor = p.term.factors[number]
    assert factor.source is not None
    selected = emit(
        b, "gather", operands[factor.source], b.constant(rows.astype(np.int64), "rows"), axis=axis
    )
    factors = replaced(p.term.factors, number, factor._replace(source=len(operands)))
    part = _Part(0, len(rows), 1, 0, 1, 1)
    new = p._replace(term=p.term._replace(factors=factors))
    y = _tiled(b, [*operands, selected], new, part, values)
    if reverse is not None:
        y = emit(b, "cum_sum", y, axis=p.column, reverse=reverse)
    return _guarded(b, operands, p, y)


def _in_parts(
    b: GraphBuilder, operands: Sequence[Value], p: _Product, parts: Sequence[tuple[_Part, Array]]
) -> Value:
    """Adds nodes that compute a product in parts of its columns."""
    results = [_tiled(b, operands, p, part, values) for part, values in parts]
    y = results[0] if len(results) == 1 else emit(b, "concat", *results, axis=p.column)
    # If the columns are summed too, each result may read an element by the row of another column.
    is_summed = p.column >= len(p.iters)
    size = (*p.iters, *p.term.sums)[p.row]
    return _guarded(b, operands, p, y, is_summed and len(np.unique(parts[0][0].rows)) == size)


def _guarded(
    b: GraphBuilder, operands: Sequence[Value], p: _Product, y: Value, reads_all: bool = False
) -> Value:
    """Adds 0 times each element of the sums of `p` that `y`, computed in its place, may leave out.

    With `reads_all`, only elements that depend on the column may be left out.
    """
    first = len(p.iters)
    for factor in p.other_factors:
        loops = depends(factor)
        if p.row in loops and not (reads_all and p.column not in loops):
            sums = [k for k, _ in enumerate(p.term.sums, first) if k in loops]
            iters = tuple(n if k in loops else 1 for k, n in enumerate(p.iters))
            maps = loop_maps((*range(first), *sums), first + len(p.term.sums))
            sizes = (*iters, *(p.term.sums[k - first] for k in sums))
            zero = product((p.dtype,), p.dtype, 0)
            stage = RegionStage(iters, sizes[first:], "sum", (mapped(factor, maps, sizes),), zero)
            y = emit(b, "add", y, _computed(b, stage, operands))
    return y


def _tiled(
    b: GraphBuilder, operands: Sequence[Value], p: _Product, part: _Part, values: Array
) -> Value:
    """Adds the nodes that compute a part of a product; `values` has the numbers of its tiles."""
    # The loops of tiles, of their rows and of their columns: (extent, step of row, step of column).
    stride = part.stride
    tile_loop = part.tiles, part.step, part.width if stride == 1 else 1
    parts = tile_loop, (part.height, stride, 0), (part.width, 0, stride)
    tile, inner_row, inner_column = ([loop] if loop[0] > 1 else [] for loop in parts)
    loops: list[Any] = [[(size, 0, 0)] for size in (*p.iters, *p.term.sums)]
    loops[p.row] = inner_row
    loops[p.column] = [*tile, *inner_column] if stride == 1 else [*inner_column, *tile]
    every = [*chain(*loops)]
    sizes = tuple(size for size, _, _ in every)
    starts = [len([*chain(*loops[:k])]) for k in range(len(loops))]
    maps = [unit(start, len(every)) for start in starts]
    maps[p.row] = Affine(tuple(step for _, step, _ in every), part.first)
    maps[p.column] = Affine(tuple(step for _, _, step in every), part.column)
    cut = len([*chain(*loops[: len(p.iters)])])
    factors = [mapped(f, maps, sizes) for f in p.other_factors]
    operands = list(operands)
    if not np.all(values == 1):
        # Equal tiles are stored once.
        stored_tile = [] if len(values) == 1 else tile
        at = [every.index(loop) for loop in (*stored_tile, *inner_row, *inner_column)]
        axes = tuple(unit(n, len(every)) for n in at)
        factors.append(Factor(len(operands), 0, axes, p.dtype))
        array = values.reshape([sizes[n] for n in at])
        operands.append(b.constant(array.copy(), "tiles"))
    monoid = "sum" if sizes[cut:] else None
    body = product((p.dtype,) * len(factors), p.dtype)
    stage = RegionStage(sizes[:cut], sizes[cut:], monoid, tuple(factors), body)
    y = _computed(b, stage, operands)
    if p.column >= len(p.iters) or len(loops[p.column]) == 1:
        return y
    shape = replaced(tuple(map(as_index, p.iters)), p.column, as_index(part.tiles * part.width))
    return emit(b, "reshape", y, shape=shape)


def _computed(b: GraphBuilder, stage: RegionStage, operands: Sequence[Value]) -> Value:
    """Adds a node that computes a stage whose factors read `operands`."""
    part, sources = single_stage(stage)
    inputs = [operands[source] for source, _ in sources]
    region = part._replace(params=tuple(v.type for v in inputs))
    return express(b, to_expr(region), *inputs)[0]
