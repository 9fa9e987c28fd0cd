"""Layouts: where in storage an element with a given logical index lies.

Graph and expression indices are logical; no op has layout variants.  A layout is a side table
entry of a value.  It says that storage is a row-major array of `sizes` and that the element with
logical index (i0, i1, ...) lies at `indices`, expressions over the variables `i0, i1, ...`:

    channels last       sizes (n, h, w, c)            indices (i0, i2, i3, i1)
    with a zero halo    sizes (n, h+2, w+2, c)        indices (i0, i2+1, i3+1, i1)     fill 0
    packed weights      sizes (co/64, k, 64)          indices (i0//64, i1, i0%64)      fill 0

    planes apart        sizes (36, y*x*64 + 16)       indices (i0, (i1*x + i2)*64 + i3)

    part of a joined value  sizes (n, h, w, 96)       indices (i0, i2, i3, i1+64)      shared (1,)

Permutation, blocking and padding are all this one map; packing a weight is evaluating it.
Storage that is no element's holds `fill`, except that along the `shared` axes of a part other
values' elements lie before and after its own.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod

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
from tcc.record import record


@record
class Layout:
    """`sizes` of the storage array, `indices` over `axis_vars(shape)`, `fill` of unused storage.

    `shared` are the logical axes along which storage goes on with elements of other values.
    """

    sizes: Indices
    indices: Indices
    axes: Vars
    fill: float | None = None
    shared: tuple[int, ...] = ()


def axis_vars(shape: Indices) -> Indices:
    """The variables `i0, i1, ...` that stand for the logical index of a value of `shape`."""
    return tuple(iterator(f"i{axis}", size) for axis, size in enumerate(shape))


def layout(
    shape: Indices,
    sizes: Indices,
    indices: Indices,
    fill: float | None = None,
) -> Layout:
    """A layout of values of `shape`; `indices` are over `axis_vars(shape)`."""
    return Layout(sizes, indices, tuple(free_vars(v)[0] for v in axis_vars(shape)), fill)


def row_major(shape: Indices) -> Layout:
    return layout(shape, shape, axis_vars(shape))


def permuted(shape: Indices, order: tuple[int, ...]) -> Layout:
    """Storage with the logical axes in `order`, outermost first: (0, 2, 3, 1) is channels last."""
    axes = axis_vars(shape)
    return layout(shape, tuple(shape[a] for a in order), tuple(axes[a] for a in order))


def axis_order(where: Layout) -> tuple[int, ...] | None:
    """The logical axis of each storage dimension, outermost first; None where one has not one."""
    axes = [[n for n, v in enumerate(where.axes) if v in free_vars(i)] for i in where.indices]
    return tuple(a[0] for a in axes) if all(len(a) == 1 for a in axes) else None


def with_halo(base: Layout, halo: tuple[tuple[int, int], ...], fill: float) -> Layout:
    """`base` with `halo[d]` = (before, after) more places on storage dimension d."""
    sizes = tuple(size + (a + b) for size, (a, b) in zip(base.sizes, halo, strict=True))
    indices = tuple(index + a for index, (a, _) in zip(base.indices, halo, strict=True))
    return Layout(sizes, indices, base.axes, fill)


def set_apart(base: Layout, line: int) -> Layout:
    """`base` with planes that begin an odd number of lines of `line` elements after each other.

    A plane is the elements of one outermost index; the storage dimensions inside it become one.
    """
    planes, *rest = base.sizes
    pair = 2 * line
    sizes = planes, (prod(rest, start=const(1)) + line - 1) // pair * pair + line
    indices = base.indices[0], row_major_position(base.indices[1:], tuple(rest))
    return replace(base, sizes=sizes, indices=indices)


def part_of(whole: Layout, shape: Indices, axis: int, start: Index) -> Layout:
    """Where a value of `shape` lies in a joined value stored as `whole`, from `start` along `axis`
    on; its storage is all of `whole`."""
    axes = axis_vars(shape)
    shifted = tuple(i + start if n == axis else i for n, i in enumerate(axes))
    inner = layout(shape, whole.sizes, place(whole, shifted), whole.fill)
    return replace(inner, shared=tuple(sorted({*whole.shared, axis})))


def resized(where: Layout, sizes: Substitution) -> Layout:
    """`where` with size symbols replaced."""
    axes = {v: iterator(v.name, substitute(v.extent, sizes)) for v in where.axes if v.extent}
    mapping = {**sizes, **axes}
    return replace(
        where,
        sizes=tuple(substitute(n, sizes) for n in where.sizes),
        indices=tuple(substitute(i, mapping) for i in where.indices),
        axes=tuple(free_vars(axes[v])[0] if v in axes else v for v in where.axes),
    )


def place(where: Layout, logical: Indices) -> Indices:
    """The storage indices of the element with logical index `logical`."""
    mapping = dict(zip(where.axes, logical, strict=True))
    return tuple(substitute(index, mapping) for index in where.indices)


def strides(sizes: Indices) -> Indices:
    """Row-major strides in elements."""
    result: list[Index] = []
    step = const(1)
    for size in reversed(sizes):
        result.append(step)
        step = step * size
    return tuple(reversed(result))


def offset(where: Layout, logical: Indices) -> Index:
    """The offset in elements of the element with logical index `logical`."""
    return flat(place(where, logical), where.sizes)


@lru_cache(1 << 14)
def flat(indices: Indices, sizes: Indices) -> Index:
    """The row-major position of `indices` in an array of `sizes`."""
    return _rejoined(row_major_position(indices, sizes))


def row_major_position(indices: Indices, sizes: Indices) -> Index:
    """The row-major position of `indices`, term by term."""
    total = const(0)
    for index, size in zip(indices, sizes, strict=True):
        total = total * size + index
    return total


def _rejoined(total: Index) -> Index:
    """`total` with `d * (x // d) + x % d` as `x`: what a reshape took apart lies in a row again."""
    terms = dict(total.terms)
    for monomial, coeff in total.terms:
        for rest in monomial:
            if not isinstance(rest, Remainder) or monomial.count(rest) > 1:
                continue
            others = (of_atom(atom) for atom in monomial if atom is not rest)
            factor = prod(others, start=const(coeff))
            whole = rest.num // rest.den * rest.den * factor
            if not whole.const and all(terms.get(m) == c for m, c in whole.terms):
                return _rejoined(total - whole + (rest.num - of_atom(rest)) * factor)
    return total
