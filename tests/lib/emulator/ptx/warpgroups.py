"""`wgmma`: asynchronous matmuls of four warps, with matrices in shared memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown

from .barriers import uniform
from .machine import LANES
from .numbers import cut_tf32, from_bf16, from_float8
from .parse import Instruction, Name, Number, Operand, Several
from .products import ELEMENTS, matrix_a
from .program import Array, Body, Machine, Program, Read, Strand, at_end, form, parts, whole
from .tensor_maps import swizzled


@dataclass
class Group:
    """The matmuls of one warpgroup.

    `open` and `closed` hold the registers of pending matmuls, `closed` in the order of the groups.
    `touched` holds the registers that other instructions have used since the last fence.
    """

    open: set[str] = field(default_factory=set)
    closed: list[set[str]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    number: int = 0

    def busy(self, names: Sequence[str]) -> str | None:
        for registers in (self.open, *self.closed):
            for name in names:
                if name in registers:
                    return name
        return None


class Products:
    """The pending matmuls of all warpgroups."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}

    def of(self, s: Strand) -> list[tuple[int, Group]]:
        """Returns the strand's warpgroups by their first warps."""
        first = s.rows[::4]
        if len(s.rows) % 4 or (first % 4).any() or (s.rows[3::4] != first + 3).any():
            raise Unknown("warps of a warpgroup that are apart")
        return [(int(row), self.groups.setdefault(int(row), Group())) for row in first]

    def touch(self, s: Strand, names: Sequence[str]) -> None:
        """Notes that another instruction uses registers; raises Fault if a pending matmul does."""
        for first in {int(row) // 4 * 4 for row in s.rows}:
            group = self.groups.setdefault(first, Group())
            if register := group.busy(names):
                raise Fault(f"register {register} is used before its product is waited for")
            group.touched.update(names)


def _products(m: Machine) -> Products:
    products: Products = m.state["products"]
    return products


@dataclass(frozen=True)
class Descriptor:
    """A matrix descriptor: addresses and strides in bytes; `mode` is the mode of `swizzled`."""

    start: int
    leading: int
    stride: int
    mode: int

    def addresses(self, lines: int, bytes_of_k: int, size: int, turned: bool) -> Array:
        """Returns the addresses of elements [line, k] of `size` bytes.

        A `turned` matrix is contiguous in lines, not in k. The layouts come from the PTX manual's
        "Shared Memory Matrix Layout": rows have the swizzle's length, a pattern has eight rows, and
        patterns are `stride` and `leading` bytes apart.
        """
        line, k = np.arange(lines)[:, None], np.arange(bytes_of_k // size)[None]
        span = 16 << self.mode  # in bytes
        if not turned:
            along = k * size
            far = self.leading if not self.mode else span  # A swizzled row holds all of k.
            at = line // 8 * self.stride + line % 8 * span + along // span * far + along % span
        else:
            along = line * size
            near, far = (self.leading, self.stride) if self.mode else (self.stride, self.leading)
            at = along // span * near + along % span + k // 8 * far + k % 8 * span
        return swizzled(self.start + at, self.mode)


def descriptor(bits: int) -> Descriptor:
    """Decodes a descriptor by the PTX manual's "Matrix Descriptor Format" for wgmma."""
    if bits >> 49 & 7:
        raise Unknown("a matrix descriptor with a base offset")
    if bits & ~0xC00E3FFF3FFF3FFF:
        raise Fault(f"matrix descriptor {bits:#x} has bits that mean nothing")
    leading, stride = (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4
    mode = (0, 3, 2, 1)[bits >> 62]
    start = (bits & 0x3FFF) << 4
    return Descriptor(start, leading, stride, mode)


@form(r"wgmma\.fence\.sync\.aligned")
def _fence(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        for _, group in _products(m).of(s):
            group.touched.clear()

    return body


@form(r"wgmma\.commit_group\.sync\.aligned")
def _commit(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        for _, group in _products(m).of(s):
            group.closed.append(group.open)
            group.open, group.number = set(), group.number + 1

    return body


@form(r"wgmma\.wait_group\.sync\.aligned")
def _wait(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    assert isinstance(i.operands[0], Number)
    pending = i.operands[0].value

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        for first, group in _products(m).of(s):
            del group.closed[: max(len(group.closed) - pending, 0)]
            rows = np.arange(first, first + 4)
            m.order.learn(rows, _agents(m, rows), group.number - len(group.closed))

    return body


def _agents(m: Machine, rows: Array) -> Array:
    """Returns an agent per warp, because a warp's wait does not cover the other warps' parts."""
    return np.array([m.order.agent("the products of warp", row % m.warps) for row in rows])


@at_end
def _all_are_waited_for(m: Machine) -> None:
    products: Products | None = m.state.get("products")
    for group in products.groups.values() if products else ():
        if group.open or group.closed:
            raise Fault("a block ends with products under way")


_FLOAT = "(f16|bf16|tf32|e4m3|e5m2)"
_SHAPE = rf"m64n(\d+)k(\d+)\.(?:f32\.{_FLOAT}\.{_FLOAT}|s32\.([su]8)\.([su]8)(\.satfinite)?)"
_SIZES = {"f16": 2, "bf16": 2, "tf32": 4}  # Bytes of an element; other types have one.


@form(rf"wgmma\.mma_async\.sync\.aligned\.{_SHAPE}")
def _mma_async(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    """Products are exact, and their sum is rounded once to f32; a device truncates in between.

    Integer sums saturate at the ends of s32 with `.satfinite`; otherwise they wrap.
    """
    sums, left, right, *rest = i.operands
    scale = p.read(rest[0], "pred")
    signs = [_literal(o) for o in rest[1:3]] or [1, 1]
    kinds, columns, k = (f[3] or f[5], f[4] or f[6]), int(f[1]), int(f[2])
    number, bounded = "f32" if f[3] else "s32", bool(f[7])
    in_registers_a = isinstance(left, Several)
    # The last operands say which matrices in shared memory are transposed.
    transposes = [bool(_literal(o)) for o in rest[3:]] or [False] * (2 - in_registers_a)
    turned_a, turned_b = (False, *transposes) if in_registers_a else transposes
    of_sums = [p.read(o, number) for o in parts(sums)]
    writes = [p.write(o, number) for o in parts(sums)]
    if 2 * len(of_sums) != columns or k * _SIZES.get(kinds[0], 1) != 32:
        raise Unknown(i.text)
    a = _operand(p, left)
    b = p.read(right, "b64")
    in_registers = (*parts(sums), *(parts(left) if in_registers_a else ()))
    names = {o.text for o in in_registers if isinstance(o, Name)}

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        use_sums = bool(uniform(scale(m, s, active), "scale-d"))
        for first, group in _products(m).of(s):
            part = Strand(np.arange(first, first + 4), s.pc)
            _start(group, names)
            if in_registers_a:
                of_a = [np.broadcast_to(r(m, part, None), (4, LANES)) for r in a]
                rows = np.concatenate(list(matrix_a(of_a, ELEMENTS[kinds[0]])))
            else:
                rows = _from_shared(m, group, part, a[0], 64, k, kinds[0], turned_a)
            columns_b = _from_shared(m, group, part, b, columns, k, kinds[1], turned_b)
            product = (rows * signs[0]) @ (columns_b * signs[1]).T
            totals = _registers(product)
            if use_sums:
                totals = totals + np.stack([read(m, part, None) for read in of_sums])
            if bounded:
                totals = np.clip(totals, -(2**31), 2**31 - 1)
            results = totals.astype(np.float32 if f[3] else np.int32)
            for write, total in zip(writes, results, strict=True):
                write(m, part, total, None)

    return body


def _registers(product: Array) -> Array:
    """Returns 64 rows in the registers' layout [register, warp, lane].

    A lane has two of eight columns, in a row and in the row eight below.
    """
    split = product.reshape(4, 2, 8, -1, 4, 2)  # warp, half, row, eight columns, pair, column
    return split.transpose(3, 1, 5, 0, 2, 4).reshape(-1, 4, LANES)


def _literal(operand: Operand) -> int:
    if not isinstance(operand, Number):
        raise Unknown(f"operand {operand} instead of a number")
    return operand.value


def _operand(p: Program, operand: Operand) -> list[Read]:
    """Returns readers of the registers that hold a matrix, or of its descriptor."""
    kind = "b32" if isinstance(operand, Several) else "b64"
    return [p.read(o, kind) for o in parts(operand)]


def _start(group: Group, names: set[str]) -> None:
    if registers := group.touched & names:
        raise Fault(f"no wgmma.fence stands between a product and the last use of {min(registers)}")
    group.open |= names


def _from_shared(
    m: Machine,
    group: Group,
    part: Strand,
    read: Read,
    lines: int,
    k: int,
    kind: str,
    transposed: bool,
) -> Array:
    """Returns the matrix [line, k] of a descriptor, and records the reads of the warpgroup."""
    size = _SIZES.get(kind, 1)
    matrix = descriptor(uniform(read(m, part, None), "a matrix descriptor"))
    at = matrix.addresses(lines, k * size, size, transposed)
    places = m.shared.places(m.block_of[part.rows[:1]], at.ravel(), size, size)
    words = m.shared.words_of(places)
    rows = np.repeat(part.rows, len(words))
    agents = np.repeat(_agents(m, part.rows), len(words))
    m.shared.history.reads(rows, np.tile(words, 4), agents, group.number + 1, proxy=True)
    bits = m.shared.get(places, size).reshape(at.shape)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    match kind:
        case "tf32":
            values = cut_tf32(bits)
        case "bf16":
            values = from_bf16(bits)
        case "f16":
            values = bits.view(np.float16)
        case _:
            values = from_float8(bits, kind)
    return values.astype(np.float64)
