"""Boxes: parts of tensors that Hopper's copy engine (TMA) moves by itself.

    load %b[786432*h + 768*(l0 + 64*j) + 32*k + l1] where l0 + 64*j < 197   ->
        tensor [.., 197, 768] with strides [786432, 768, 1], a box of 1 x 64 x 32 at (h, 64*j, 32*k)

A tensor map describes the tensor to the engine. Where a box extends beyond the tensor, the engine
loads zeros and drops stores, as guards do.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

from tcc.frozen import frozen
from tcc.ir.index import (
    Index,
    Indices,
    as_int,
    bounds,
    const,
    free_vars,
    linear_in,
    mul,
    of_atom,
    step_in,
)
from tcc.ir.tile import Guard, Load, Stmt, Store, TileBuffer, TileKernel, TileLoop, lanes
from tcc.zipped import zip_equal

# Limits of the copy engine. Strides and addresses are multiples of `_STRIDE` bytes. A box has at
# most `_MOST_POSITIONS` positions along an axis. Each extent of a tensor is below `_SIZES`.
_STRIDE, _MOST_POSITIONS, _SIZES = 16, 256, 2**31
_LEAST_ROW = 32  # the fewest bytes in a row of a box; rows must be as long to be swizzled


@frozen
class Box:
    """A box of `shape`, at the position `at` in a tensor with `sizes` and `strides`.

    Sizes and strides count elements, the outermost axis first; the last stride is 1. `transposed`:
    the block has the box's two axes in reverse order.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    at: Indices
    transposed: bool


@frozen
class BoxOperand:
    """An operand that the copy engine loads: the load, and its box."""

    load: Load
    box: Box

    @property
    def bytes(self) -> int:
        return prod(self.box.shape) * self.load.out.dtype.bytes


def operand_of(load: Load | None, aligned: Collection[TileBuffer]) -> BoxOperand | None:
    """Returns the load as an operand if it is a box in one of the `aligned` buffers, else None."""
    box = box_of(load) if load is not None and load.buffer in aligned else None
    return None if load is None or box is None else BoxOperand(load, box)


def aligned_buffers(kernel: TileKernel, alignments: Sequence[int]) -> set[TileBuffer]:
    """Returns the buffers that the copy engine can access.

    `alignments` has the alignment of each buffer of the kernel in bytes.
    """
    return {b for b, n in zip_equal(kernel.buffers, alignments) if n % _STRIDE == 0}


def around_loop(kernel: TileKernel) -> tuple[tuple[Stmt, ...], TileLoop, tuple[Stmt, ...]] | None:
    """Returns (statements before the only loop of a kernel, the loop, statements after it).

    Returns None if the kernel has symbolic sizes or another number of loops.
    """
    loops = [node for node in kernel.body if isinstance(node, TileLoop)]
    if kernel.sizes or len(loops) != 1:
        return None
    at = kernel.body.index(loops[0])
    return kernel.body[:at], loops[0], kernel.body[at + 1 :]


@dataclass(slots=True)
class _Axis:
    """An axis of the tensor that `box_of` constructs for a load or store.

    A guard fixes the axis' size. Without a guard, the size is chosen last, so that all positions of
    the box are inside.
    """

    stride: int
    block: int
    at: Index
    size: int | None

    @property
    def fixed(self) -> bool:
        return self.size is not None


def box_of(node: Load | Store) -> Box | None:
    """Returns the box that a load or store covers; None unless it certainly covers one."""
    block = node.out if isinstance(node, Load) else node.block
    if node.indirect or len(block.shape) != 2 or (isinstance(node, Load) and node.fill != 0):
        return None
    if max(block.shape) > _MOST_POSITIONS or len(node.indices) != 1:
        return None
    (index,) = node.indices
    steps, offset = [], index
    for lane in lanes(block.shape):
        linear = step_in(offset, free_vars(lane)[0])
        if linear is None:
            return None
        step, offset = linear
        steps.append(step)
    if 1 not in steps:
        return None
    inner = 1 if steps[1] == 1 else 0
    outer = 1 - inner
    width = node.buffer.dtype.bytes
    if steps[outer] * width % _STRIDE or steps[outer] <= 1:
        return None
    if block.shape[inner] * width < _LEAST_ROW:
        return None
    axes = {n: _Axis(steps[n], block.shape[n], const(0), None) for n in (outer, inner)}
    unfixed = _fix_axes(node.guards, block.shape, axes, offset)
    if unfixed is None:
        return None
    outer_axes = _distribute(unfixed, axes[outer], axes[inner])
    if outer_axes is None:
        return None
    return _box([*outer_axes, axes[outer], axes[inner]], transposed=inner == 0)


def _fix_axes(
    guards: tuple[Guard, ...], shape: tuple[int, ...], axes: dict[int, _Axis], offset: Index
) -> Index | None:
    """Fixes the sizes and positions of the axes that guards bound.

    A guard `at + lane < size` gives its axis the position `at` and the size `size`. Returns
    `offset` without the parts that these positions explain. Returns None if a guard has another
    form.
    """
    lane_vars = free_vars(*lanes(shape))
    for guard in guards:
        size = as_int(guard.extent)
        guarded_axes = [n for n in axes if lane_vars[n] in free_vars(guard.index)]
        if size is None or len(guarded_axes) != 1 or axes[guarded_axes[0]].fixed:
            return None
        axis = axes[guarded_axes[0]]
        split = linear_in(guard.index, lane_vars[guarded_axes[0]])
        if split is None or split[0] is not const(1):
            return None
        axis.at, axis.size = split[1], size
        offset = offset - axis.at * axis.stride
    return offset


def _distribute(offset: Index, outer: _Axis, inner: _Axis) -> list[_Axis] | None:
    """Adds each term of an offset to the position along `outer` or along `inner`.

    A term belongs to `outer` if it is a multiple of the stride of `outer`, and to `inner` if its
    coefficient is smaller than the stride of `outer`. If terms fit neither axis, the returned list
    has one more axis for them, which is the outermost; otherwise the list is empty. Returns None if
    the offset belongs to no box.
    """
    far_terms: list[tuple[int, Index]] = []
    terms = [(c, reduce(mul, map(of_atom, monomial), const(1))) for monomial, c in offset.terms]
    if offset.const:
        terms.append((offset.const, const(1)))
    for coeff, value in terms:
        if coeff < 0:
            return None
        if coeff % outer.stride == 0 and not outer.fixed:
            outer.at = outer.at + value * (coeff // outer.stride)
        elif coeff < outer.stride and not inner.fixed:
            inner.at = inner.at + value * coeff
        elif coeff % outer.stride == 0:
            far_terms.append((coeff, value))
        else:
            return None
    if not far_terms:
        return []
    step = reduce(gcd, (coeff for coeff, _ in far_terms))
    at = sum((value * (coeff // step) for coeff, value in far_terms), const(0))
    return [_Axis(step, 1, at, None)]


def _box(axes: list[_Axis], *, transposed: bool) -> Box | None:
    sizes = []
    for axis, above in zip_equal(axes, [None, *axes[:-1]]):
        low, high = bounds(axis.at)
        if low is None or low < 0 or high is None:
            return None
        size = axis.size if axis.size is not None else high + axis.block
        # An axis must end before the next position of the axis outside of it, so that no element
        # has two positions.
        if not 0 < size < _SIZES or (above is not None and size * axis.stride > above.stride):
            return None
        sizes.append(size)
    return Box(
        tuple(sizes),
        tuple(a.stride for a in axes),
        tuple(a.block for a in axes),
        tuple(a.at for a in axes),
        transposed,
    )
