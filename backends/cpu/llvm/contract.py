"""Contractions of blocks in registers.

There are three kinds of code.
- GEMM: one operand has the last axis of the result in its lanes. Each element of the other operand
  is repeated over the lanes.
- Depthwise: both operands have the last axis of the result in their lanes.
- Dot products: both operands have the summed axis in their lanes. The lanes of a partial sum are
  added at the end.
Any other contraction is computed element by element.
"""

from collections.abc import Mapping
from itertools import product
from math import prod

from tcc.backends.cpu.llvm.blocks import (
    Chunk,
    RegisterBlock,
    carried_chunks,
    element,
    last_axis,
    part,
    register_element,
    row_number,
    scalar_chunks,
    splat_element,
    vector_chunks,
)
from tcc.backends.cpu.llvm.dot_operands import multiply_bytes, multiply_pairs, per_word
from tcc.backends.cpu.llvm.reduce import tree_of
from tcc.backends.cpu.llvm.relayout import rearrange
from tcc.backends.cpu.llvm.scalars import convert
from tcc.backends.cpu.llvm.storage import literal, round_to
from tcc.backends.cpu.llvm.text import Code, Reg
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.frozen import frozen
from tcc.ir.tile import Block, Contract
from tcc.ir.types import BF16, F32, I8, I32, U8, U32, DType
from tcc.target import Profile
from tcc.zipped import zip_equal

Point = Mapping[str, int]


def scalar_operands(node: Contract) -> tuple[Block, ...]:
    """Returns the operands whose elements are used one at a time and repeated over lanes."""
    if not node.out_axes or last_axis(node.out.shape) == 1 or _dots_pay(node):
        return ()
    last = node.out_axes[-1]
    if (last in node.a_axes) == (last in node.b_axes):
        return ()
    return (node.b if last in node.a_axes else node.a,)


def multiplies_words(node: Contract, profile: Profile) -> bool:
    """Returns True if one instruction multiplies and adds all elements of a 32-bit word.

    A word holds four bytes, or two bf16 if the CPU has an instruction for them. Requires one summed
    axis, of even length for bf16. It must be the last axis of the operand whose elements are
    repeated over lanes. In the other operand it must come directly before the axis in the lanes.
    """
    kinds, acc = {node.a.dtype, node.b.dtype}, node.acc.dtype
    paired = kinds == {BF16} and acc is F32 and profile.multiplies_pairs
    if not paired and not (kinds <= {I8, U8} and acc is I32):
        return False
    scalar = scalar_operands(node)
    summed = {x for x in node.a_axes + node.b_axes if x not in node.out_axes}
    if len(summed) != 1 or not scalar:
        return False
    scalar_axes, vector_axes = (
        (node.a_axes, node.b_axes) if node.a in scalar else (node.b_axes, node.a_axes)
    )
    k = scalar_axes[-1]
    fits = k in summed and vector_axes[-2:] == (k, node.out_axes[-1])
    return fits and not (paired and _size(node, k) % per_word(BF16))


def _size(node: Contract, label: str) -> int:
    return dict(zip_equal(node.a_axes, node.a.shape))[label]


def _dots_pay(node: Contract) -> bool:
    """Returns True if the last axis of both operands is summed and long enough for dot products.

    At the end, the lanes of each result's partial sum are added. This takes many instructions for
    each result, so it pays only if the summed axis is long.
    """
    a, b, out = node.a_axes, node.b_axes, node.out_axes
    if not a or not b or a[-1] != b[-1] or a[-1] in out:
        return False
    depth = last_axis(node.a.shape)
    if last_axis(node.out.shape) == 1:
        return depth > 1
    # The alternative is the GEMM form, for which the operand with the result's last axis must
    # first be transposed.
    return 32 * prod(node.out.shape[:-1]) < depth


def contract(
    code: Code, node: Contract, acc: RegisterBlock, a: RegisterBlock, b: RegisterBlock
) -> RegisterBlock:
    """Returns the result of the Contract statement `node`, given the values of its blocks."""
    return _Contraction(code, node, acc, a, b).run()


@frozen
class _Operand:
    """A block in registers, with the labels of its axes."""

    value: RegisterBlock
    axes: tuple[str, ...]

    def row(self, at: Point) -> int:
        """Returns the number of the row with the point `at`."""
        return row_number(self.value.shape, [at[x] for x in self.axes[:-1]])

    def lane(self, at: Point) -> int:
        """Returns the position of the point `at` along the last axis."""
        return at[self.axes[-1]] if self.axes else 0


class _Contraction:
    def __init__(
        self, code: Code, node: Contract, acc: RegisterBlock, a: RegisterBlock, b: RegisterBlock
    ) -> None:
        self.code, self.node, self.dtype = code, node, acc.dtype
        # True if the operands are 32-bit words of several elements; then the size of the summed
        # axis is a number of words.
        self.words = a.dtype is U32 and node.a.dtype is not U32
        if not self.words:
            a, b = _cast(code, a, acc.dtype), _cast(code, b, acc.dtype)
        self.acc = _Operand(acc, node.out_axes)
        self.a, self.b = _Operand(a, node.a_axes), _Operand(b, node.b_axes)
        self.sizes: dict[str, int] = {}
        for x in (self.acc, self.a, self.b):
            self.sizes |= dict(zip_equal(x.axes, x.value.shape))
        self.summed = tuple(
            x for x in dict.fromkeys(node.a_axes + node.b_axes) if x not in node.out_axes
        )

    def run(self) -> RegisterBlock:
        node = self.node
        last = node.out_axes[-1] if node.out_axes else None
        if _dots_pay(node):
            return self._dots(node.a_axes[-1])
        if last is not None and self.sizes[last] > 1 and last in node.a_axes + node.b_axes:
            self.a, self.b = self._ending_in(last, self.a), self._ending_in(last, self.b)
            return self._along_result(last)
        return self._elements()

    def _ending_in(self, last: str, x: _Operand) -> _Operand:
        """Returns `x` with the axis `last` moved to the end, if `x` has that axis."""
        if last not in x.axes or x.axes[-1] == last:
            return x
        axes = (*(label for label in x.axes if label != last), last)
        order = tuple(map(x.axes.index, axes))
        shape = tuple(self.sizes[label] for label in axes)
        return _Operand(rearrange(self.code, x.value, order, shape), axes)

    # ---- GEMM and depthwise: the result's last axis in the lanes ---------------------------------

    def _along_result(self, last: str) -> RegisterBlock:
        chunks = carried_chunks(self.sizes[last], self.code.module.lanes)
        points = self._points(self.acc.axes[:-1])
        sums = [
            part(self.code, self.acc.value, self.acc.row(point), chunk)
            for point in points
            for chunk in chunks
        ]
        for inner in self._points(self.summed):
            for n, point in enumerate(points):
                at = {**point, **inner}
                for m, chunk in enumerate(chunks):
                    x, y = (self._lanes(o, at, last, chunk) for o in (self.a, self.b))
                    number = n * len(chunks) + m
                    sums[number] = self._multiply_add(x, y, sums[number])
        return RegisterBlock(self.dtype, self.node.out.shape, chunks, tuple(sums))

    def _lanes(self, x: _Operand, at: Point, last: str, chunk: Chunk) -> Reg:
        if x.axes[-1:] == (last,):
            return part(self.code, x.value, x.row(at), chunk)
        return splat_element(self.code, x.value, x.row(at), x.lane(at), chunk.width)

    # ---- dot products: the summed axis in the lanes ----------------------------------------------

    def _dots(self, last: str) -> RegisterBlock:
        chunks = vector_chunks(self.sizes[last], self.code.module.lanes)
        outer = tuple(x for x in self.summed if x != last)
        out: list[Reg] = []
        tree = tree_of(self.code, "sum", (self.dtype,))
        for point in self._points(self.acc.axes):
            partial: dict[int, Reg] = {}
            for inner in self._points(outer):
                at = {**point, **inner}
                for chunk in chunks:
                    x, y = (part(self.code, o.value, o.row(at), chunk) for o in (self.a, self.b))
                    x, y = (tree.padded((reg,), chunk.count)[0] for reg in (x, y))
                    zero = literal(0, self.dtype, chunk.width)
                    acc = partial.get(chunk.width, zero)
                    partial[chunk.width] = self._multiply_add(x, y, acc)
            (dot,) = tree.across([(r,) for r in partial.values()], [*partial])
            out.append(self._add(self._element(self.acc, point), dot))
        return self._from_elements(out)

    # ---- element by element ----------------------------------------------------------------------

    def _elements(self) -> RegisterBlock:
        out: list[Reg] = []
        for point in self._points(self.acc.axes):
            acc = self._element(self.acc, point)
            for inner in self._points(self.summed):
                at = {**point, **inner}
                x, y = self._element(self.a, at), self._element(self.b, at)
                acc = self._multiply_add(x, y, acc)
            out.append(acc)
        return self._from_elements(out)

    def _element(self, x: _Operand, at: Point) -> Reg:
        return element(self.code, x.value, x.row(at), x.lane(at))

    def _from_elements(self, regs: list[Reg]) -> RegisterBlock:
        shape = self.node.out.shape
        return RegisterBlock(self.dtype, shape, scalar_chunks(last_axis(shape)), tuple(regs))

    # ---- arithmetic and positions -------------------------------------------------------------

    def _points(self, axes: tuple[str, ...]) -> list[dict[str, int]]:
        ranges = [range(self.sizes[x]) for x in axes]
        return [dict(zip_equal(axes, at)) for at in product(*ranges)]

    def _multiply_add(self, x: Reg, y: Reg, acc: Reg) -> Reg:
        if self.words and self.node.a.dtype is BF16:
            return multiply_pairs(self.code, x, y, acc)
        if self.words:
            kinds = self.node.a.dtype, self.node.b.dtype
            return multiply_bytes(self.code, (x, kinds[0]), (y, kinds[1]), acc)
        if self.dtype.is_float and self.code.module.profile.fma:
            return self._rounded(self.code.fma(x, y, acc))
        if self.dtype.is_float:
            return self._add(self._rounded(self.code.op("fmul", x, y)), acc)
        return self.code.op("add", self.code.op("mul", x, y), acc)

    def _add(self, x: Reg, y: Reg) -> Reg:
        return self._rounded(self.code.op("fadd" if self.dtype.is_float else "add", x, y))

    def _rounded(self, reg: Reg) -> Reg:
        return round_to(LlvmValue(self.code, reg), self.dtype).reg


def _cast(code: Code, value: RegisterBlock, dtype: DType) -> RegisterBlock:
    if value.dtype is dtype:
        return value
    if register_element(value.dtype) == register_element(dtype) and dtype.bits >= value.dtype.bits:
        return RegisterBlock(dtype, value.shape, value.chunks, value.regs)
    regs = tuple(convert(LlvmValue(code, r), value.dtype, dtype).reg for r in value.regs)
    return RegisterBlock(dtype, value.shape, value.chunks, regs)
