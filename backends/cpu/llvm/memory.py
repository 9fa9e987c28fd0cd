"""Addresses and loads of blocks; stores are in `stores.py`.

The flattened offset of an access has three parts: the offset of the row, address arithmetic that
rows share, and the part that depends on the lane. Lanes that are one element apart become a vector
access. Lanes that all read one element become a scalar access. Any other lanes are accessed one by
one.

The memory of lanes that a guard turns off is not touched. A scalar, or a vector of which all lanes
are off, reads a constant instead. A vector with active lanes and lanes that are off uses a masked
access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeVar

from tcc.backends.cpu.llvm.blocks import (
    Chunk,
    RegisterBlock,
    last_axis,
    part,
    row_number,
    row_positions,
    scalar_chunks,
    vector_chunks,
)
from tcc.backends.cpu.llvm.guards import Mask, mask_of
from tcc.backends.cpu.llvm.indices import LlvmIndices, constant, lane_of
from tcc.backends.cpu.llvm.relayout import rearrange
from tcc.backends.cpu.llvm.storage import (
    from_memory,
    literal,
    memory_element,
    stored_constant,
)
from tcc.backends.cpu.llvm.text import Code, Reg, int_const, lane_consts, mangled
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.frozen import frozen
from tcc.ir.index import (
    Index,
    Var,
    const,
    free_vars,
    linear_in,
    step_in,
    substitute,
    symbol,
)
from tcc.ir.layout import row_major_position
from tcc.ir.tile import Block, Guard, Load, Prefetch, Store, TileBuffer, guards_at, lanes
from tcc.schedule.nest import FEW_APART
from tcc.zipped import zip_equal

_LINE = 64  # bytes of a cache line; constants are aligned to it, which suffices for every vector
_WORTH_TRANSPOSING = 4  # a shorter axis is gathered element by element and not transposed


@frozen
class Environment:
    """State that all statements share: indices, addresses of buffers, registers of blocks."""

    indices: LlvmIndices
    buffers: Mapping[TileBuffer, Reg]
    values: Mapping[Block, RegisterBlock]


@dataclass(slots=True)
class BlockAccess:
    """A load, store or prefetch: the positions of a block's elements in a buffer, and the guards.

    `offset` and `guards` depend on the block's lane variables (`lanes`). `bound` pairs each
    data-dependent variable with the block that holds its values. Loaded elements for which a guard
    fails have the value `fill`.
    """

    indices: LlvmIndices
    base: Reg
    buffer: TileBuffer
    shape: tuple[int, ...]
    offset: Index
    guards: tuple[Guard, ...]
    bound: tuple[tuple[Var, RegisterBlock], ...]
    fill: bool | int | float = 0
    lanes: tuple[Var, ...] = field(init=False)
    _coeffs: tuple[Index | None, ...] = field(init=False)
    _affine: bool = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = free_vars(*lanes(self.shape))
        if any(linear_in(self.offset, lane) is None for lane in self.lanes):
            self.offset = self.indices.sharpen(self.offset)
        parts = [linear_in(self.offset, lane) for lane in self.lanes]
        self._coeffs = tuple(part and part[0] for part in parts)
        self._affine = None not in parts and not self.bound

    @property
    def code(self) -> Code:
        return self.indices.code

    @property
    def nontemporal(self) -> bool:
        """Returns True if stores of complete cache lines bypass the caches (nontemporal)."""
        return self.buffer in self.code.nontemporal

    def at(
        self, position: tuple[int, ...], last: Index, chunk: Chunk | None = None
    ) -> tuple[Index, tuple[Guard, ...]]:
        """Returns the offset in elements and the guards of an element or of a vector of them.

        `position` is the row. `last` is the position along the last axis; for a vector it contains
        the lane variable. Data-dependent indices are bound to the lanes of `chunk`. Without
        `chunk`, an index that varies along the last axis stays a variable.
        """
        values = [*map(const, position), last][: len(self.lanes)]
        mapping = dict(zip_equal(self.lanes, values))
        mapping |= self._bindings(position, last, chunk)
        return substitute(self.offset, mapping), guards_at(self.guards, mapping)

    def _bindings(
        self, position: tuple[int, ...], last: Index, chunk: Chunk | None
    ) -> dict[Var, Index]:
        """Returns the values of the data-dependent variables, for the parameters of `at`.

        If `last` contains the lane variable and `chunk` is None, variables that vary along the last
        axis are left out.
        """
        result: dict[Var, Index] = {}
        for var, value in self.bound:
            var_chunk = chunk if last.terms else Chunk(last.const, 1, 1)
            var_chunk = Chunk(0, 1, 1) if last_axis(value.shape) == 1 else var_chunk
            if var_chunk is None:
                continue
            row = row_number(value.shape, position)
            reg = part(self.code, value, row, var_chunk)
            opcode = "zext" if value.dtype.name.startswith(("u", "bool")) else "sext"
            if reg.elem != "i64":
                reg = self._widened(reg, opcode)
            name = f"{var.name}.{row}.{var_chunk.start}.{reg.text}"
            self.indices.values[name] = reg
            # The range of the data is unknown. The symbol gets no useful bounds, so that guards
            # with it are always tested.
            result[var] = symbol(name, -(1 << 63))
        return result

    def _widened(self, reg: Reg, opcode: str) -> Reg:
        key = ("wide", reg, opcode)
        return self.code.remember(key, lambda: self.code.convert(opcode, reg, "i64"))

    def contiguous_axis(self) -> int | None:
        """Returns the axis along which a transposed access is contiguous in memory, or None.

        Returns None if there is no such axis, if the last axis is contiguous itself or repeats one
        element, or if the contiguous axis is too short to be worth a transpose.
        """
        if not self._affine or not self.shape or self.shape[-1] < 2:
            return None
        if constant(self._coeffs[-1]) in (0, 1):
            return None
        axes = [n for n, c in enumerate(self._coeffs[:-1]) if constant(c) == 1]
        return next((n for n in axes if self.shape[n] >= _WORTH_TRANSPOSING), None)

    def dense_order(self) -> tuple[int, ...] | None:
        """Returns an order of the axes in which the last two are contiguous in memory as one axis.

        Example: a block [8, 3] of an array [8, 3] is 24 contiguous elements. Merging the two axes
        pays only if the last one is too short for a vector. Returns None if there is no such order,
        if another kind of access is better, or if `merged` cannot express a guard.
        """
        if not self._affine or len(self.shape) < 2:
            return None
        *outer, short_axis, long_axis = range(len(self.shape))
        limit = FEW_APART
        if constant(self._coeffs[short_axis]) != 1:
            # From `_WORTH_TRANSPOSING` elements on, a transposed access (`contiguous_axis`) is
            # better.
            short_axis, long_axis, limit = long_axis, short_axis, _WORTH_TRANSPOSING - 1
        if constant(self._coeffs[short_axis]) != 1 or not 1 < self.shape[short_axis] <= limit:
            return None
        if constant(self._coeffs[long_axis]) != self.shape[short_axis]:
            return None
        order = (*outer, long_axis, short_axis)
        return order if all(self._follows(guard, order) for guard in self.guards) else None

    def _follows(self, guard: Guard, order: tuple[int, ...]) -> bool:
        """Returns True if `merged` can express the guard after the last two axes of `order` are
        merged.

        The guard's index must not depend on the last axis. Along the axis before it, the index must
        be constant or grow by 1 per element.
        """
        long_lane, short_lane = (self.lanes[n] for n in order[-2:])
        linear = linear_in(guard.index, long_lane)
        if linear is None or constant(linear[0]) not in (0, 1):
            return False
        return not {long_lane, short_lane} & {*free_vars(linear[1], guard.extent)}

    def merged_shape(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of `merged(order)`."""
        *outer, long, short = (self.shape[n] for n in order)
        return (*outer, long * short)

    def merged(self, order: tuple[int, ...]) -> BlockAccess:
        """Returns the access with the last two axes of `order` (a `dense_order`) merged to one
        axis.

        With `i = 2 * long + short`, the guard `base + long < extent` becomes `2 * base + i < 2 *
        extent`.
        """
        shape, count = self.merged_shape(order), self.shape[order[-1]]
        (*_, lane), long_lane = lanes(shape), self.lanes[order[-2]]
        origin = {self.lanes[n]: const(0) for n in order[-2:]}
        guards = tuple(
            Guard(count * substitute(g.index, origin) + lane, count * g.extent)
            if long_lane in free_vars(g.index)
            else g
            for g in self.guards
        )
        offset = substitute(self.offset, origin) + lane
        return BlockAccess(self.indices, self.base, self.buffer, shape, offset, guards, ())

    def mask(self, position: tuple[int, ...], chunk: Chunk) -> Mask:
        """Returns the active lanes of a chunk of the row `position`."""
        lane = lane_of(chunk) if chunk.width > 1 else const(0)
        _, guards = self.at(position, const(chunk.start) + lane)
        return mask_of(self.indices, guards, chunk)

    def pointer(self, offset: Index) -> Reg:
        """Returns the address of the element at `offset`, which counts elements."""
        elem = memory_element(self.buffer.dtype)
        base = self.code.offset(self.base, self.indices.emit(offset - offset.const), elem)
        return self.code.offset(base, int_const(offset.const), elem)

    def alignment(self, offset: Index, width: int) -> int:
        """Returns a power of two, in bytes, that divides the address of `offset`.

        It is at most the size of an access to `width` elements.
        """
        size = self.buffer.dtype.bytes
        divisor = self.indices.divisor(offset) * size
        bound = min(_LINE if self.nontemporal else self.buffer.align, _LINE, size * width)
        while divisor % bound:
            bound //= 2
        return max(bound, 1)

    def fills_lines(self, position: tuple[int, ...]) -> bool:
        """Returns True if the block has no guards, and the row `position` fills complete cache
        lines."""
        row = last_axis(self.shape) * self.buffer.dtype.bytes
        if not self._affine or self.guards or row % _LINE:
            return False
        return self.alignment(self.at(position, const(0))[0], _LINE) == _LINE

    def lane_stride(self, chunk: Chunk) -> int | None:
        """Returns the distance in elements of neighbouring lanes, if it is from 2 to FEW_APART.

        Returns None for any other distance, and if guards may turn lanes off.
        """
        if not self._affine or self.guards or chunk.count < chunk.width:
            return None
        slope = constant(self._coeffs[-1])
        return slope if slope is not None and 1 < slope <= FEW_APART else None

    def constant_steps(self, position: tuple[int, ...], chunk: Chunk) -> bool:
        """Returns True if the distances between the lanes of a chunk are constants."""
        lane = lane_of(chunk)
        offset, first_offset = (self.at(position, const(chunk.start) + n)[0] for n in (lane, 0))
        return free_vars(offset - first_offset) == free_vars(lane)

    def step(self, position: tuple[int, ...], chunk: Chunk) -> int | None:
        """Returns the distance of neighbouring lanes in elements if it is 0 or 1, else None."""
        if chunk.width == 1:
            return 1
        lane = lane_of(chunk)
        offset, guards = self.at(position, const(chunk.start) + lane)
        variables = free_vars(offset, *(g.index for g in guards))
        if any(v in variables for v, _ in self.bound):
            return None
        split = step_in(offset, *free_vars(lane))
        return split[0] if split and split[0] in (0, 1) else None


def block_access(
    env: Environment, node: Load | Store | Prefetch, shape: tuple[int, ...]
) -> BlockAccess:
    """Returns the access of a statement to a block of `shape`."""
    offset = row_major_position(node.indices, node.buffer.sizes)
    guards = () if isinstance(node, Prefetch) else node.guards
    bound = tuple((var, env.values[block]) for var, block in node.indirect)
    base = env.buffers[node.buffer]
    fill = node.fill if isinstance(node, Load) else 0
    return BlockAccess(env.indices, base, node.buffer, shape, offset, guards, bound, fill)


# ---- transposed blocks -------------------------------------------------------------------------

_Node = TypeVar("_Node", Load, Store)


def with_last(rank: int, axis: int) -> tuple[int, ...]:
    """Returns the order of `rank` axes that moves `axis` to the end."""
    return (*(n for n in range(rank) if n != axis), axis)


def transposed(node: _Node, shape: tuple[int, ...], order: tuple[int, ...]) -> _Node:
    """Returns `node` for a block whose axes are permuted by `order`."""
    old, new = free_vars(*lanes(shape)), lanes(tuple(shape[n] for n in order))
    mapping = {v: new[order.index(n)] for n, v in enumerate(old)}
    indices = tuple(substitute(i, mapping) for i in node.indices)
    return replace(node, indices=indices, guards=guards_at(node.guards, mapping))


# ---- loads ------------------------------------------------------------------------------------


def load(env: Environment, node: Load, scalars: bool) -> RegisterBlock:
    """Returns a loaded block; with `scalars`, each element has a register of its own."""
    access = block_access(env, node, node.out.shape)
    axis = None if scalars else access.contiguous_axis()
    if axis is None:
        return _load_rows(access, scalars)
    # `axis` is contiguous in memory but is not the last axis. So the block is loaded with `axis`
    # as the last axis, and then transposed in registers.
    order = with_last(len(node.out.shape), axis)
    shape = tuple(node.out.shape[n] for n in order)
    reordered = block_access(env, transposed(node, node.out.shape, order), shape)
    value = _load_rows(reordered, False)
    inverse = tuple(order.index(n) for n in range(len(order)))
    return rearrange(access.code, value, inverse, node.out.shape)


def _load_rows(access: BlockAccess, scalars: bool) -> RegisterBlock:
    shape = access.shape
    size = last_axis(shape)
    chunks = scalar_chunks(size) if scalars else vector_chunks(size, access.code.module.lanes)
    regs = (_load_chunk(access, *place) for place in product(row_positions(shape), chunks))
    return RegisterBlock(access.buffer.dtype, shape, chunks, tuple(regs))


def _load_chunk(access: BlockAccess, position: tuple[int, ...], chunk: Chunk) -> Reg:
    step = access.step(position, chunk)
    uniform = False
    if step is not None:
        mask = access.mask(position, chunk)
        if mask.never:
            return literal(access.fill, access.buffer.dtype, chunk.width)
        if step == 1:
            return _load_vector(access, position, chunk, mask)
        uniform = mask.vector is None
    if step is None and (stride := access.lane_stride(chunk)):
        return _load_strided(access, position, chunk, stride)
    if step is None and not access.constant_steps(position, chunk):
        return _gathered(access, position, chunk)
    places = range(chunk.start, chunk.start + (1 if uniform else chunk.count))
    elements = [_load_chunk(access, position, Chunk(n, 1, 1)) for n in places]
    if uniform:
        return access.code.splat(elements[0], chunk.width)
    return access.code.gather(elements, chunk.width)


def _gathered(access: BlockAccess, position: tuple[int, ...], chunk: Chunk) -> Reg:
    """Loads lanes from arbitrary addresses, which are computed as one vector."""
    code, dtype, width = access.code, access.buffer.dtype, chunk.width
    elem = memory_element(dtype)
    offset, guards = access.at(position, const(chunk.start) + lane_of(chunk), chunk)
    mask = mask_of(access.indices, guards, chunk)
    if mask.never:
        return literal(access.fill, dtype, width)
    offsets = access.indices.lanes(offset, chunk)
    active = lane_mask(code, mask, chunk) or mask.scalar
    places = code.emit("ptr", width, f"getelementptr {elem}, {access.base}, {offsets}")
    if active:
        places = _or_constant(access, active, places, 1)
    elements = [
        code.load(elem, 1, code.extract(places, n), dtype.bytes) for n in range(chunk.count)
    ]
    return from_memory(LlvmValue(code, code.gather(elements, width)), dtype).reg


def _load_strided(access: BlockAccess, position: tuple[int, ...], chunk: Chunk, stride: int) -> Reg:
    """Loads lanes that are `stride` elements apart, by loading `stride` adjacent vectors.

    The last vector ends with the last lane, so that no memory after it is touched.
    """
    code, width = access.code, chunk.width
    offset, _ = access.at(position, const(chunk.start))
    (lane,), full_chunk = lanes((width,)), Chunk(0, width, width)
    result, places = None, list(range(width))
    for number in range(stride):
        first_lane = -(-number * width // stride)
        start = min(stride * first_lane, (stride - 1) * (width - 1))
        row_offset = offset + start + lane
        row = BlockAccess(access.indices, access.base, access.buffer, (width,), row_offset, (), ())
        reg = _load_chunk(row, (), full_chunk)
        row_places = [min(stride * n - start, width - 1) for n in range(width)]
        if result is None:
            result, places = reg, row_places
        else:
            picked = [places[n] if n < first_lane else width + row_places[n] for n in range(width)]
            result, places = code.shuffle(result, reg, picked), list(range(width))
    assert result is not None
    return result


def _load_vector(access: BlockAccess, position: tuple[int, ...], chunk: Chunk, mask: Mask) -> Reg:
    code, dtype, width = access.code, access.buffer.dtype, chunk.width
    if halves := registers_of(access, mask, chunk):
        low, high = (
            _load_chunk(access, position, half)
            if half.count
            else literal(access.fill, dtype, half.width)
            for half in halves
        )
        return code.shuffle(low, high, range(width))
    offset, _ = access.at(position, const(chunk.start))
    pointer = access.pointer(offset)
    align = access.alignment(offset, width)
    lanes_on = lane_mask(code, mask, chunk)
    if lanes_on is None:
        if mask.scalar is not None:
            pointer = _active_pointer(access, position, chunk.start, width, mask.scalar)
            align = min(align, dtype.bytes * (width & -width))
        loaded = code.load(memory_element(dtype), width, pointer, align)
    else:
        fill_bits = stored_constant(access.fill, dtype, width)
        loaded = masked_load(code, fill_bits, pointer, lanes_on, align)
    return from_memory(LlvmValue(code, loaded), dtype).reg


def registers_of(access: BlockAccess, mask: Mask, chunk: Chunk) -> tuple[Chunk, ...]:
    """Returns the two halves of the register of a masked access to 64-bit elements.

    The result is empty for any other access. LLVM 22 would split an access to 64-bit elements while
    it selects instructions. Its assertion then fails if the mask of one half is always false.
    """
    width = access.code.module.profile.lanes(64)
    masked = mask.vector is not None or chunk.count < chunk.width
    if not masked or access.buffer.dtype.bytes < 8 or chunk.width <= width:
        return ()
    starts = (chunk.start, chunk.start + width)
    counts = (min(chunk.count, width), max(chunk.count - width, 0))
    return tuple(Chunk(*span, width) for span in zip_equal(starts, counts))


def lane_mask(code: Code, mask: Mask, chunk: Chunk) -> Reg | None:
    """Returns the mask of active lanes, or None if one condition holds for all lanes."""
    lanes_on = mask.vector
    if chunk.count < chunk.width:
        used_lanes = lane_consts([int(n < chunk.count) for n in range(chunk.width)], "i1")
        lanes_on = used_lanes if lanes_on is None else code.op("and", lanes_on, used_lanes)
    if lanes_on is not None and mask.scalar is not None:
        lanes_on = code.op("and", lanes_on, code.splat(mask.scalar, chunk.width))
    return lanes_on


def _active_pointer(
    access: BlockAccess, position: tuple[int, ...], start: int, count: int, active: Reg
) -> Reg:
    """Returns the address of `count` elements, starting at lane `start`.

    Where `active` is false, it is the address of a constant: `count` copies of the fill value.
    """
    offset, guards = access.at(position, const(start))
    row_offset, row_guards = access.at(position, const(0))
    distance = constant(offset - row_offset)
    if distance == start and guards == row_guards:
        # The chunk has the same guards as the start of its row, and lies at a constant distance
        # from it. So the select is emitted for the row's address, and all chunks of the row use it.
        row = last_axis(access.shape)
        base = _or_constant(access, active, access.pointer(row_offset), row)
        return access.code.offset(base, int_const(start), memory_element(access.buffer.dtype))
    return _or_constant(access, active, access.pointer(offset), count)


def _or_constant(access: BlockAccess, active: Reg, pointer: Reg, width: int) -> Reg:
    """Returns `pointer` where `active` holds, else the address of a constant: `width` copies of
    the fill value."""
    code, dtype = access.code, access.buffer.dtype
    value = stored_constant(access.fill, dtype, width)
    spelling = "".join(c if c.isalnum() else "_" for c in value.text)
    name = f"fill.{dtype.name}.{width}.{spelling}"
    code.module.add(name, lambda: f"@{name} = private unnamed_addr constant {value}, align {_LINE}")
    return code.remember(
        ("active", active, pointer, name),
        lambda: code.select(active, pointer, code.splat(Reg("ptr", 1, f"@{name}"), pointer.width)),
    )


def masked_load(code: Code, fallback: Reg, pointer: Reg, mask: Reg, align: int) -> Reg:
    """Returns a vector of loaded lanes where `mask` is true, and lanes of `fallback` elsewhere."""
    name = f"llvm.masked.load.{mangled(fallback)}.p0"
    code.module.add(
        name, lambda: f"declare {fallback.type} @{name}(ptr, {mask.type}, {fallback.type})"
    )
    return code.emit(
        fallback.elem,
        fallback.width,
        f"call {fallback.type} @{name}(ptr align {align} {pointer.text}, {mask}, {fallback})",
    )


# ---- hints ------------------------------------------------------------------------------------


def prefetch(env: Environment, node: Prefetch) -> None:
    """Prefetches a cache line for reading or writing; an invalid address does no harm."""
    code = env.indices.code
    rank = max((len(block.shape) for _, block in node.indirect), default=0)
    access = block_access(env, node, (1,) * rank)
    offset, _ = access.at((0,) * max(rank - 1, 0), const(0))
    name = "llvm.prefetch.p0"
    code.module.add(name, lambda: f"declare void @{name}(ptr, i32, i32, i32)")
    locality = 4 - node.level
    purpose = int(node.write)
    code.void(f"call void @{name}({access.pointer(offset)}, i32 {purpose}, i32 {locality}, i32 1)")
