"""Integer expressions over sizes, loop variables and lanes, as Triton.

Numbers are int32 where no offset of the kernel needs more.  A lane variable becomes a `tl.arange`
that lies along its own axis, so that what an expression depends on is also its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import assert_never

from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    Monomial,
    Quotient,
    Remainder,
    Var,
    bounds,
    const,
    free_vars,
    nonnegative,
    of_atom,
    substitute,
)
from tcc.ir.tile import TileKernel, lanes
from tcc.ir.types import element_count
from tcc.record import entity, record

# Offsets of blocks that begin inside a buffer may pass its end by a block's elements.
_NARROW = 2**31 - 2**22


def index_type(kernel: TileKernel) -> str:
    """Triton's type of the kernel's offsets: int64 where a buffer may be too large for int32."""
    tops = (bounds(element_count(b.sizes))[1] for b in kernel.buffers)
    narrow = all(top is not None and top < _NARROW for top in tops)
    sizes = all(v.hi is not None and v.hi < _NARROW for v in kernel.sizes)
    return "tl.int32" if narrow and sizes else "tl.int64"


@record
class VaryingAxes:
    """The axes along which an expression varies; `ranked` where it has a block's rank at all."""

    axes: frozenset[int]
    ranked: bool

    def __or__(self, other: VaryingAxes) -> VaryingAxes:
        return VaryingAxes(self.axes | other.axes, self.ranked or other.ranked)

    def covers(self, shape: Sequence[int]) -> bool:
        """Whether an expression of this span has `shape`."""
        return not shape or (self.ranked and self.axes == long_axes(shape))


def long_axes(shape: Sequence[int]) -> frozenset[int]:
    """The axes of more than one element."""
    return frozenset(n for n, size in enumerate(shape) if size > 1)


def block_span(shape: Sequence[int]) -> VaryingAxes:
    return VaryingAxes(long_axes(shape), bool(shape))


def span_of(
    index: Index, shape: tuple[int, ...], bound: Mapping[Var, Sequence[int]]
) -> VaryingAxes:
    """Of `index` for a block of `shape`; `bound` has the shapes of the blocks behind variables."""
    variables = free_vars(index)
    own = frozenset(n for n in long_axes(shape) if free_vars(lanes(shape)[n])[0] in variables)
    found = VaryingAxes(own, bool(own))
    for var in variables:
        found |= block_span(bound.get(var, ()))
    return found


@entity
class TritonIndices:
    """Prints the index expressions of one kernel; `used` collects the library's functions.

    `layout`, if any, is that of the blocks of two axes: Gluon asks for one.
    """

    _writer: Writer
    dtype: str
    _used: dict[str, None]
    _layout: str = ""
    _known: dict[Var, PyExpr] = field(default_factory=dict)
    _fixed: dict[Var, Index] = field(default_factory=dict)

    def bind(self, var: Var, value: PyExpr) -> None:
        """What `var` is from here on; a variable of one value is that value."""
        if var.extent is const(1):
            self._fixed[var] = const(0)
        else:
            self._known[var] = value

    def converted(self, text: str) -> str:
        """`text`, an int32, as an offset."""
        return text if self.dtype == "tl.int32" else f"{text}.to(tl.int64)"

    def value(
        self, index: Index, shape: tuple[int, ...] = (), bound: Mapping[Var, PyExpr] | None = None
    ) -> PyExpr:
        """`index` for a block of `shape`; `bound` are the variables of the access alone."""
        found = dict(bound or {})
        fixed = dict(self._fixed)
        for axis, lane in enumerate(lanes(shape)):
            var = free_vars(lane)[0]
            if shape[axis] == 1:
                fixed[var] = const(0)
            elif var in free_vars(index):
                found[var] = self._lane(axis, shape)
        return self._sum(substitute(index, fixed), found)

    def _lane(self, axis: int, shape: tuple[int, ...]) -> PyExpr:
        size, rank, layout = shape[axis], len(shape), ""
        if self._layout:
            layout = f", tl.SliceLayout({1 - axis if rank == 2 else 1}, {self._layout})"
        line = PyExpr(self.converted(f"tl.arange(0, {size}{layout})"))
        if rank == 1 or not layout:
            line = self._writer.share(f"lane{size}", line)
        if rank == 1:
            return line
        spread = ", ".join(":" if n == axis else "None" for n in range(rank))
        names = {(0, 2): "row", (1, 2): "col"}
        like = names.get((axis, rank), f"axis{axis}_of{rank}_")
        return self._writer.share(f"{like}{size}", PyExpr(f"{line.text}[{spread}]"))

    def _sum(self, index: Index, found: Mapping[Var, PyExpr]) -> PyExpr:
        """The terms without lanes first and together: they are scalars."""
        scalar: list[tuple[bool, PyExpr]] = []
        spread: list[tuple[bool, PyExpr]] = []
        depth = 0
        for monomial, coeff in index.terms:
            varies = any(v in found for a in monomial for v in free_vars(of_atom(a)))
            product = self._product(monomial, abs(coeff), found)
            depth = max(depth, product.depth)
            (spread if varies else scalar).append((coeff < 0, product))
        if index.const or not index.terms:
            scalar.append((index.const < 0, PyExpr(str(abs(index.const)))))
        text = _joined(scalar)
        if scalar and spread:
            head = f"({text})" if len(scalar) > 1 else text
            text = _joined(spread, head)
        elif spread:
            text = _joined(spread)
        count = len(scalar) + len(spread)
        first = (scalar or spread)[0]
        return PyExpr(text, depth, count == 1 and first[1].atomic and not first[0])

    def _product(self, monomial: Monomial, coeff: int, found: Mapping[Var, PyExpr]) -> PyExpr:
        factors = [self._atom(a, found) for a in monomial]
        if coeff != 1:
            factors.append(PyExpr(str(coeff)))
        depth = max(f.depth for f in factors)
        return PyExpr(" * ".join(f.operand for f in factors), depth, len(factors) == 1)

    def _atom(self, atom: Atom, found: Mapping[Var, PyExpr]) -> PyExpr:
        match atom:
            case Var():
                return found.get(atom) or self._known[atom]
            case Quotient() | Remainder():
                return self._writer.share("part", self._divided(atom, found))
            case Extremum():
                a, b = self._sum(atom.a, found), self._sum(atom.b, found)
                call = f"tl.{atom.which}imum({a.text}, {b.text})"
                return self._writer.share("edge", PyExpr(call, max(a.depth, b.depth)))
            case _:
                assert_never(atom)

    def _divided(self, atom: Quotient | Remainder, found: Mapping[Var, PyExpr]) -> PyExpr:
        a, b = self._sum(atom.num, found), self._sum(atom.den, found)
        depth = max(a.depth, b.depth)
        sign, name = ("//", "floor_div") if isinstance(atom, Quotient) else ("%", "floor_mod")
        if nonnegative(atom.num):
            return PyExpr(f"{a.operand} {sign} {b.operand}", depth, False)
        self._used[name] = None
        return PyExpr(f"{name}({a.text}, {b.text})", depth)


def _joined(parts: Sequence[tuple[bool, PyExpr]], head: str = "") -> str:
    text = head
    for negative, value in parts:
        if text:
            text += f" {'-' if negative else '+'} {value.text}"
        else:
            text = f"-{value.operand}" if negative else value.text
    return text
