"""Layouts: the position in storage of the element with a given logical index.

Graph and expression indices are logical; no op has layout variants.  A layout is a side-table entry
of a value.  Storage is a row-major array of `sizes`, and the element with logical index (i0, i1,
...) is stored at `indices`, expressions over the variables `i0, i1, ...`:

    channels last       sizes (n, h, w, c)            indices (i0, i2, i3, i1)
    with a zero halo    sizes (n, h+2, w+2, c)        indices (i0, i2+1, i3+1, i1)     fill 0
    packed weights      sizes (co/64, k, 64)          indices (i0//64, i1, i0%64)      fill 0

    padding after each  sizes (36, y*x*64 + 16)       indices (i0, (i1*x + i2)*64 + i3)
    plane of axis 0

    64 channels before  sizes (n, h, w, 96)           indices (i0, i2, i3, i1+64)      shared (1,)
    this value's 32

`indices` express permutation, blocking and padding; a weight is packed by evaluating them.
Positions of the storage that hold no element hold `fill`.  In the last example several values are
stored in one array, such as the operands of a concatenation.  Axis 1 is `shared`: along it, the
array has elements of other values before or after the elements of this value.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod

from tcc.frozen import frozen
from tcc.ir.index import (
    Index,
    Indices,
    Remainder,
    Substitution,
    Vars,
    const,
    free_vars,
    iterator,
    of_atom,
    substitute,
)
from tcc.zipped import zip_equal


@frozen
class Layout:
    """The storage order of a value.

    `sizes` is the shape of the storage array. `indices` are the storage indices of the element with
    the logical index `axes`, the variables of `axis_vars(shape)`. Storage without an element holds
    `fill`, or any value if `fill` is None. Along the logical axes `shared`, the array also has
    elements of other values.
    """

    sizes: Indices
    indices: Indices
    axes: Vars
    fill: float | None = None
    shared: tuple[int, ...] = ()


def axis_vars(shape: Indices) -> Indices:
    """Returns the variables `i0, i1, ...` for the logical index of a value of `shape`."""
    return tuple(iterator(f"i{axis}", size) for axis, size in enumerate(shape))


def layout(
    shape: Indices,
    sizes: Indices,
    indices: Indices,
    fill: float | None = None,
) -> Layout:
    """Returns a layout of values of `shape`; `indices` are over `axis_vars(shape)`."""
    return Layout(sizes, indices, free_vars(*axis_vars(shape)), fill)


def row_major(shape: Indices) -> Layout:
    return layout(shape, shape, axis_vars(shape))


def permuted(shape: Indices, order: tuple[int, ...]) -> Layout:
    """Returns the layout that stores the logical axes in `order`, outermost first.

    The order (0, 2, 3, 1) is channels last.
    """
    axes = axis_vars(shape)
    return layout(shape, tuple(shape[a] for a in order), tuple(axes[a] for a in order))


def axis_order(where: Layout) -> tuple[int, ...] | None:
    """Returns the logical axis of each storage dimension, outermost first; None where a dimension
    does not belong to exactly one axis."""
    axes = [[n for n, v in enumerate(where.axes) if v in free_vars(i)] for i in where.indices]
    return tuple(a[0] for a in axes) if all(len(a) == 1 for a in axes) else None


def with_halo(base: Layout, halo: tuple[tuple[int, int], ...], fill: float) -> Layout:
    """Returns `base` with padding of value `fill` around the storage array.

    `halo[d]` is the number of positions added before and after storage dimension d.
    """
    sizes = tuple(size + (a + b) for size, (a, b) in zip_equal(base.sizes, halo))
    indices = tuple(index + a for index, (a, _) in zip_equal(base.indices, halo))
    return Layout(sizes, indices, base.axes, fill)


def set_apart(base: Layout, line: int) -> Layout:
    """Returns `base` with padding between the planes of the storage array.

    A plane holds the elements of one outermost storage index. The distance between the starts of
    neighbouring planes becomes an odd number of cache lines, of `line` elements each. The storage
    dimensions inside a plane become one dimension.
    """
    planes, *inner_sizes = base.sizes
    pair = 2 * line
    sizes = planes, (prod(inner_sizes, start=const(1)) + line - 1) // pair * pair + line
    indices = base.indices[0], row_major_position(base.indices[1:], tuple(inner_sizes))
    return replace(base, sizes=sizes, indices=indices)


def part_of(joined: Layout, shape: Indices, axis: int, start: Index) -> Layout:
    """Returns the layout of a value of `shape` that is stored as a part of a larger value.

    The larger value has the layout `joined`; the part begins at `start` along `axis`. The result
    has the storage sizes of `joined`.
    """
    axes = axis_vars(shape)
    shifted = tuple(i + start if n == axis else i for n, i in enumerate(axes))
    inner = layout(shape, joined.sizes, place(joined, shifted), joined.fill)
    return replace(inner, shared=tuple(sorted({*joined.shared, axis})))


def resized(where: Layout, sizes: Substitution) -> Layout:
    """Returns `where` with size symbols replaced."""
    axes = {v: iterator(v.name, substitute(v.extent, sizes)) for v in where.axes if v.extent}
    mapping = {**sizes, **axes}
    return replace(
        where,
        sizes=tuple(substitute(n, sizes) for n in where.sizes),
        indices=tuple(substitute(i, mapping) for i in where.indices),
        axes=tuple(free_vars(axes[v])[0] if v in axes else v for v in where.axes),
    )


def place(where: Layout, logical: Indices) -> Indices:
    """Returns the storage indices of the element with logical index `logical`."""
    mapping = dict(zip_equal(where.axes, logical))
    return tuple(substitute(index, mapping) for index in where.indices)


def offset(where: Layout, logical: Indices) -> Index:
    """Returns the offset in elements of the element with logical index `logical`."""
    return flat(place(where, logical), where.sizes)


@lru_cache(1 << 14)
def flat(indices: Indices, sizes: Indices) -> Index:
    """Returns the row-major position of `indices` in an array of `sizes`.

    The axes of a split that are stored next to each other are joined: `d * (x // d) + x % d` is x.
    """
    return _rejoined(row_major_position(indices, sizes))


def row_major_position(indices: Indices, sizes: Indices) -> Index:
    """Returns the row-major position of `indices` in an array of `sizes`, without joining axes."""
    position = const(0)
    for index, size in zip_equal(indices, sizes):
        position = position * size + index
    return position


def _rejoined(position: Index) -> Index:
    """Returns `position` with `x` in place of `d * (x // d) + x % d`.

    So an axis that a reshape has split is contiguous again.
    """
    terms = dict(position.terms)
    for monomial, coeff in position.terms:
        for remainder in monomial:
            if not isinstance(remainder, Remainder) or monomial.count(remainder) > 1:
                continue
            other_factors = (of_atom(atom) for atom in monomial if atom is not remainder)
            factor = prod(other_factors, start=const(coeff))
            quotient_term = remainder.num // remainder.den * remainder.den * factor
            if not quotient_term.const and all(terms.get(m) == c for m, c in quotient_term.terms):
                return _rejoined(
                    position - quotient_term + (remainder.num - of_atom(remainder)) * factor
                )
    return position
