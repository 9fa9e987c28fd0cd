"""Index expressions as 64-bit integer code."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import itemgetter
from typing import TypeAlias

from tcc.backends.cpu.llvm.blocks import Chunk
from tcc.backends.cpu.llvm.text import Code, Reg, int_const, lane_consts
from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    Quotient,
    Remainder,
    Var,
    as_int,
    bounds,
    divisor_of,
    free_vars,
    iterator,
    of_atom,
    substitute,
    symbol,
)

# A list of lines, which of them is in front of a loop, and the values in sight there.
_Front: TypeAlias = tuple[list[str], int, dict[str, Reg]]
_first = itemgetter(0)


def lane_of(chunk: Chunk) -> Index:
    """The variable that stands for the lanes of a chunk."""
    return iterator("lane", chunk.count)


class LlvmIndices:
    """Emits indices; equal ones are computed once per dominating place.

    `values` holds the SSA value of each variable in sight, `steps` loop variables as
    `start + step * trip`, which lets the simplifier see what divides them.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.values: dict[str, Reg] = {}
        self.steps: dict[Var, Index] = {}
        # In front of each loop around: the line that is kept for it, and what is in sight there.
        self._fronts: list[_Front] = []

    def emit(self, index: Index) -> Reg:
        """The value of `index` as an i64, or as a vector of them where a variable is one."""
        if not index.terms:
            return int_const(index.const)
        return self.code.remember(("index", index), lambda: self._sum(index))

    def lanes(self, index: Index, chunk: Chunk) -> Reg:
        """`index` over `lane_of(chunk)` as a vector of i64; further lanes repeat the last."""
        last = chunk.count - 1
        ramp = lane_consts([min(n, last) for n in range(chunk.width)], "i64")
        self.values[name := f"lane.{chunk.count}.{chunk.width}"] = ramp
        (lane,) = free_vars(lane_of(chunk))
        index = substitute(index, {lane: symbol(name, 0, last)})
        return self.code.splat(self.emit(index), chunk.width)

    def sharpen(self, index: Index) -> Index:
        """`index` with loop variables replaced by what is known of them."""
        return substitute(index, self.steps)

    def divisor(self, index: Index) -> int:
        """An integer that divides every value of `index`; 0 for zero."""
        return divisor_of(index, self._atom_divisor)

    def _atom_divisor(self, atom: Atom) -> int:
        if not isinstance(atom, Var):
            return 1
        step = self.steps.get(atom)
        return atom.divisor if step is None else self.divisor(step)

    @contextmanager
    def in_loop(self, front: int) -> Iterator[None]:
        """Emits what a loop does not change to the empty line `front`, which stands before it.

        LLVM leaves such code in the loop where addresses take many registers, and then keeps sums
        in memory: blocks of five rows took 1.7 times as long as blocks of six."""
        self._fronts.append((self.code.lines, front, dict(self.values)))
        yield
        self._fronts.pop()

    def _depth(self, atoms: Iterable[Atom]) -> int:
        """The first loop that changes none of the `atoms`; the number of loops where all do."""
        names = [v.name for atom in atoms for v in free_vars(of_atom(atom))]
        for depth, (_, _, values) in enumerate(self._fronts):
            if all(values.get(name) is self.values[name] for name in names):
                return depth
        return len(self._fronts)

    @contextmanager
    def _outside(self, depth: int) -> Iterator[None]:
        """Emits to the front of the loop at `depth`."""
        if depth == len(self._fronts):
            yield
            return
        lines, front, _ = self._fronts[depth]
        here, self.code.lines = self.code.lines, []
        yield
        self.code.lines, moved = here, self.code.lines
        lines[front] = "\n".join(filter(None, (lines[front], *moved)))

    def _sum(self, index: Index) -> Reg:
        """Sums the terms that a loop does not change in front of it."""
        depths = [self._depth(atoms) for atoms, _ in index.terms]
        total: Reg | None = None
        for depth in sorted({*depths}):
            terms = [t for t, own in zip(index.terms, depths, strict=True) if own == depth]
            make = partial(self._added, depth, total, terms)
            total = self.code.remember(("terms", total, *terms), make)
        assert total is not None
        return self.code.op("add nsw", total, index.const) if index.const else total

    def _added(
        self, depth: int, total: Reg | None, terms: Sequence[tuple[tuple[Atom, ...], int]]
    ) -> Reg:
        with self._outside(depth):
            products = [self._product(atoms, coeff) for atoms, coeff in terms]
            products.sort(key=lambda reg: reg.width)
            return reduce(partial(self._op, "add nsw"), (*filter(None, (total,)), *products))

    def _product(self, monomial: tuple[Atom, ...], coeff: int) -> Reg:
        atoms = sorted(((self._depth((atom,)), atom) for atom in monomial), key=_first)
        product: Reg | None = None
        for count, (depth, atom) in enumerate(atoms, 1):
            key = ("product", tuple(a for _, a in atoms[:count]))
            product = self.code.remember(key, partial(self._times, depth, product, atom))
        assert product is not None
        return self.code.op("mul nsw", product, coeff) if coeff != 1 else product

    def _times(self, depth: int, product: Reg | None, atom: Atom) -> Reg:
        with self._outside(depth):
            factor = self._atom(atom)
            return factor if product is None else self._op("mul nsw", product, factor)

    def _alike(self, a: Reg, b: Reg) -> tuple[Reg, Reg]:
        width = max(a.width, b.width)
        return self.code.splat(a, width), self.code.splat(b, width)

    def _op(self, opcode: str, a: Reg, b: Reg) -> Reg:
        return self.code.op(opcode, *self._alike(a, b))

    def _atom(self, atom: Atom) -> Reg:
        match atom:
            case Var():
                return self.values[atom.name]
            case Quotient():
                return self._divide(atom.num, atom.den, "div")
            case Remainder():
                return self._divide(atom.num, atom.den, "rem")
            case Extremum():
                a, b = self._alike(self.emit(atom.a), self.emit(atom.b))
                return self.code.intrinsic(f"s{atom.which}", a, b)

    def _divide(self, num: Index, den: Index, what: str) -> Reg:
        low, least = bounds(num)[0], bounds(den)[0]
        by = self.emit(den)
        if least is None or least < 1:  # computed ahead of the loop that does not run then
            by = self.code.intrinsic("smax", by, 1)
        a, b = self._alike(self.emit(num), by)
        if low is not None and low >= 0:
            return self.code.op(f"u{what}", a, b)
        return self._floor(a, b, what)

    def _floor(self, a: Reg, b: Reg, what: str) -> Reg:
        """Division towards minus infinity by a positive divisor, through the remainder's sign."""
        code = self.code
        rest = code.op("srem", a, b)
        below = code.compare("icmp slt", rest, 0)
        if what == "rem":
            return code.op("add", rest, code.select(below, b, 0))
        quotient = code.op("sdiv", a, b)
        return code.op("add", quotient, code.convert("sext", below, "i64"))


def constant(index: Index | None) -> int | None:
    """The value of a constant index, else None."""
    return None if index is None else as_int(index)
