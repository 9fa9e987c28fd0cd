"""Prints integer expressions over sizes, loop variables and lane variables as Triton.

Numbers are int32 unless an offset of the kernel needs more. A lane variable becomes a `tl.arange`
along its own axis, so the lanes in an expression determine its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import assert_never

from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.frozen import entity, frozen
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

# Buffers with fewer elements have int32 offsets. A block that starts inside a buffer may extend
# beyond the buffer's end, by at most the elements of a block.
_NARROW = 2**31 - 2**22


def index_type(kernel: TileKernel) -> str:
    """Returns Triton's type of offsets in the kernel: int64 if a buffer may be too large for
    int32."""
    tops = (bounds(element_count(b.sizes))[1] for b in kernel.buffers)
    narrow = all(top is not None and top < _NARROW for top in tops)
    sizes = all(v.hi is not None and v.hi < _NARROW for v in kernel.sizes)
    return "tl.int32" if narrow and sizes else "tl.int64"


@frozen
class VaryingAxes:
    """The span of a Triton expression: the axes of a block along which the expression varies.

    If `ranked`, the expression has the rank of the block. Otherwise it is a scalar.
    """

    axes: frozenset[int]
    ranked: bool

    def __or__(self, other: VaryingAxes) -> VaryingAxes:
        return VaryingAxes(self.axes | other.axes, self.ranked or other.ranked)

    def covers(self, shape: Sequence[int]) -> bool:
        """True if an expression that varies along these axes already has `shape`.

        Otherwise the expression must be broadcast to `shape`.
        """
        return not shape or (self.ranked and self.axes == long_axes(shape))


def long_axes(shape: Sequence[int]) -> frozenset[int]:
    """Returns the axes that have more than one element."""
    return frozenset(n for n, size in enumerate(shape) if size > 1)


def block_span(shape: Sequence[int]) -> VaryingAxes:
    return VaryingAxes(long_axes(shape), bool(shape))


def span_of(
    index: Index, shape: tuple[int, ...], bound: Mapping[Var, Sequence[int]]
) -> VaryingAxes:
    """Returns the axes of a block of `shape` along which `index` varies.

    The value of a data-dependent variable is an element of a block. `bound` has the shape of this
    block for each of these variables.
    """
    variables = free_vars(index)
    axes = frozenset(n for n in long_axes(shape) if free_vars(lanes(shape)[n])[0] in variables)
    span = VaryingAxes(axes, bool(axes))
    for var in variables:
        span |= block_span(bound.get(var, ()))
    return span


@entity
class TritonIndices:
    """Prints the index expressions of a kernel.

    `used` collects the library functions that they call. `layout` is the layout of blocks of two
    axes, which Gluon needs; it is "" for Triton.
    """

    _writer: Writer
    dtype: str
    _used: dict[str, None]
    _layout: str = ""
    _known: dict[Var, PyExpr] = field(default_factory=dict)
    _fixed: dict[Var, Index] = field(default_factory=dict)

    def bind(self, var: Var, value: PyExpr) -> None:
        """Binds `var` to `value`, or to 0 if 0 is its only value."""
        if var.extent is const(1):
            self._fixed[var] = const(0)
        else:
            self._known[var] = value

    def converted(self, text: str) -> str:
        """Returns `text`, an int32, converted to the type of offsets."""
        return text if self.dtype == "tl.int32" else f"{text}.to(tl.int64)"

    def value(
        self, index: Index, shape: tuple[int, ...] = (), bound: Mapping[Var, PyExpr] | None = None
    ) -> PyExpr:
        """Returns the text of `index` for a block of `shape`.

        `bound` maps the data-dependent variables of the access to their expressions.
        """
        bindings = dict(bound or {})
        fixed = dict(self._fixed)
        for axis, lane in enumerate(lanes(shape)):
            var = free_vars(lane)[0]
            if shape[axis] == 1:
                fixed[var] = const(0)
            elif var in free_vars(index):
                bindings[var] = self._lane(axis, shape)
        return self._sum(substitute(index, fixed), bindings)

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

    def _sum(self, index: Index, bindings: Mapping[Var, PyExpr]) -> PyExpr:
        """Prints a sum; terms without lanes are scalars, so they are added first and separately."""
        scalars: list[tuple[bool, PyExpr]] = []
        vectors: list[tuple[bool, PyExpr]] = []
        depth = 0
        for monomial, coeff in index.terms:
            varies = any(v in bindings for a in monomial for v in free_vars(of_atom(a)))
            term = self._monomial(monomial, abs(coeff), bindings)
            depth = max(depth, term.depth)
            (vectors if varies else scalars).append((coeff < 0, term))
        if index.const or not index.terms:
            scalars.append((index.const < 0, PyExpr(str(abs(index.const)))))
        text = _sum_text(scalars)
        if scalars and vectors:
            head = f"({text})" if len(scalars) > 1 else text
            text = _sum_text(vectors, head)
        elif vectors:
            text = _sum_text(vectors)
        count = len(scalars) + len(vectors)
        first = (scalars or vectors)[0]
        return PyExpr(text, depth, count == 1 and first[1].atomic and not first[0])

    def _monomial(self, monomial: Monomial, coeff: int, bindings: Mapping[Var, PyExpr]) -> PyExpr:
        factors = [self._atom(a, bindings) for a in monomial]
        if coeff != 1:
            factors.append(PyExpr(str(coeff)))
        depth = max(f.depth for f in factors)
        return PyExpr(" * ".join(f.operand for f in factors), depth, len(factors) == 1)

    def _atom(self, atom: Atom, bindings: Mapping[Var, PyExpr]) -> PyExpr:
        match atom:
            case Var():
                return bindings.get(atom) or self._known[atom]
            case Quotient() | Remainder():
                return self._writer.share("part", self._divided(atom, bindings))
            case Extremum():
                a, b = self._sum(atom.a, bindings), self._sum(atom.b, bindings)
                call = f"tl.{atom.which}imum({a.text}, {b.text})"
                return self._writer.share("edge", PyExpr(call, max(a.depth, b.depth)))
            case _:
                assert_never(atom)

    def _divided(self, atom: Quotient | Remainder, bindings: Mapping[Var, PyExpr]) -> PyExpr:
        a, b = self._sum(atom.num, bindings), self._sum(atom.den, bindings)
        depth = max(a.depth, b.depth)
        sign, name = ("//", "floor_div") if isinstance(atom, Quotient) else ("%", "floor_mod")
        if nonnegative(atom.num):
            return PyExpr(f"{a.operand} {sign} {b.operand}", depth, False)
        self._used[name] = None
        return PyExpr(f"{name}({a.text}, {b.text})", depth)


def _sum_text(parts: Sequence[tuple[bool, PyExpr]], head: str = "") -> str:
    text = head
    for negative, value in parts:
        if text:
            text += f" {'-' if negative else '+'} {value.text}"
        else:
            text = f"-{value.operand}" if negative else value.text
    return text
