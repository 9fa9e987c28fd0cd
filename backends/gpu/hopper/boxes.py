"""Blocks of memory that a tensor map describes: what Hopper's copy engine moves by itself.

    load %b[786432*h + 768*(l0 + 64*j) + 32*k + l1] where l0 + 64*j < 197   ->
        tensor [.., 197, 768] with strides [786432, 768, 1], a box of 1 x 64 x 32 at (h, 64*j, 32*k)

The engine puts zeros where a box leaves the tensor and drops what is stored there, as guards do.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

from tcc.ir.index import Index, Indices, as_int, bounds, const, free_vars, linear_in, mul, of_atom
from tcc.ir.tile import Guard, Load, Loop, Stmt, Store, TileBuffer, TileKernel, lanes
from tcc.record import record

# What the engine asks for: strides and addresses in bytes, positions of a box along an axis, and of
# a tensor.
_STRIDE, _MOST, _SIZES = 16, 256, 2**31
_LEAST_ROW = 32  # bytes of a box's row, so that rows can be swizzled


@record
class Box:
    """A box at `at` of a tensor of `sizes` and `strides` (elements, the last 1), outermost first.

    `transposed`: the block's two axes are the box's in the other order.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    at: Indices
    transposed: bool


@record
class Side:
    """A block that the engine brings: its load, and the load's box."""

    load: Load
    box: Box

    @property
    def bytes(self) -> int:
        return prod(self.box.shape) * self.load.out.dtype.bytes


def side_of(load: Load | None, aligned: Collection[TileBuffer]) -> Side | None:
    """The load as a side, where it is a box of one of the buffers that are `aligned`."""
    box = box_of(load) if load is not None and load.buffer in aligned else None
    return None if load is None or box is None else Side(load, box)


def aligned_buffers(kernel: TileKernel, alignments: Sequence[int]) -> set[TileBuffer]:
    """The buffers that the engine can read and write; `alignments` are those of all in bytes."""
    return {b for b, n in zip(kernel.buffers, alignments, strict=True) if n % _STRIDE == 0}


def around_loop(kernel: TileKernel) -> tuple[tuple[Stmt, ...], Loop, tuple[Stmt, ...]] | None:
    """What a kernel without symbolic sizes does before its loop, the loop, and what it does then;
    None where it has another number of loops."""
    loops = [node for node in kernel.body if isinstance(node, Loop)]
    if kernel.sizes or len(loops) != 1:
        return None
    at = kernel.body.index(loops[0])
    return kernel.body[:at], loops[0], kernel.body[at + 1 :]


@dataclass(slots=True)
class _Axis:
    """One axis of the tensor while it is found: `fixed` by a guard, or as long as is used."""

    stride: int
    block: int
    at: Index
    size: int | None

    @property
    def fixed(self) -> bool:
        return self.size is not None


def box_of(node: Load | Store) -> Box | None:
    """The box that a load fills or a store is; None where it is no such box, or not surely one."""
    block = node.out if isinstance(node, Load) else node.block
    if node.indirect or len(block.shape) != 2 or (isinstance(node, Load) and node.fill != 0):
        return None
    if max(block.shape) > _MOST or len(node.indices) != 1:
        return None
    (index,) = node.indices
    steps, rest = [], index
    for lane in lanes(block.shape):
        found = linear_in(rest, free_vars(lane)[0])
        step = None if found is None else as_int(found[0])
        if found is None or step is None:
            return None
        steps.append(step)
        rest = found[1]
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
    left = _guarded(node.guards, block.shape, axes, rest)
    if left is None:
        return None
    far = _spread(left, axes[outer], axes[inner])
    if far is None:
        return None
    return _box([*far, axes[outer], axes[inner]], transposed=inner == 0)


def _guarded(
    guards: tuple[Guard, ...], shape: tuple[int, ...], axes: dict[int, _Axis], rest: Index
) -> Index | None:
    """Fixes the axes that guards bound; what is left of the offset `rest`."""
    for guard in guards:
        size = as_int(guard.extent)
        along = [n for n in axes if free_vars(lanes(shape)[n])[0] in free_vars(guard.index)]
        if size is None or len(along) != 1 or axes[along[0]].fixed:
            return None
        axis = axes[along[0]]
        found = linear_in(guard.index, free_vars(lanes(shape)[along[0]])[0])
        if found is None or found[0] is not const(1):
            return None
        axis.at, axis.size = found[1], size
        rest = rest - axis.at * axis.stride
    return rest


def _spread(rest: Index, outer: _Axis, inner: _Axis) -> list[_Axis] | None:
    """Gives the terms of an offset to the axes; those of neither to an axis of their own."""
    far: list[tuple[int, Index]] = []
    terms = [(c, reduce(mul, map(of_atom, monomial), const(1))) for monomial, c in rest.terms]
    if rest.const:
        terms.append((rest.const, const(1)))
    for coeff, value in terms:
        if coeff < 0:
            return None
        if coeff % outer.stride == 0 and not outer.fixed:
            outer.at = outer.at + value * (coeff // outer.stride)
        elif coeff < outer.stride and not inner.fixed:
            inner.at = inner.at + value * coeff
        elif coeff % outer.stride == 0:
            far.append((coeff, value))
        else:
            return None
    if not far:
        return []
    step = reduce(gcd, (coeff for coeff, _ in far))
    at = sum((value * (coeff // step) for coeff, value in far), const(0))
    return [_Axis(step, 1, at, None)]


def _box(axes: list[_Axis], *, transposed: bool) -> Box | None:
    sizes = []
    for axis, above in zip(axes, [None, *axes[:-1]], strict=True):
        low, high = bounds(axis.at)
        if low is None or low < 0 or high is None:
            return None
        size = axis.size if axis.size is not None else high + axis.block
        # Rows must not overlap: a place belongs to one row only.
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
