"""Emits index expressions as 64-bit integer code."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from operator import itemgetter
from typing import TypeAlias

from tcc.backends.cpu.llvm.blocks import Chunk
from tcc.backends.cpu.llvm.text import Code, Reg, ReservedLine, int_const, lane_consts
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
from tcc.zipped import zip_equal

# A pair (place in front of a loop to which invariant code is emitted, SSA values visible there).
_Front: TypeAlias = tuple[ReservedLine, dict[str, Reg]]
_first = itemgetter(0)


def lane_of(chunk: Chunk) -> Index:
    """Returns the variable that numbers the lanes of a chunk."""
    return iterator("lane", chunk.count)


class LlvmIndices:
    """Emits indices; reuses the value of an equal index that dominates the current place.

    `values` holds the SSA value of each visible variable. `steps` maps a loop variable to `start +
    step * trip`, where `trip` is the iteration number. `divisor` uses it to find numbers that
    divide an index.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.values: dict[str, Reg] = {}
        self.steps: dict[Var, Index] = {}
        self._fronts: list[_Front] = []

    def emit(self, index: Index) -> Reg:
        """Returns the value of `index` as i64; it is a vector if a variable is a vector."""
        if not index.terms:
            return int_const(index.const)
        return self.code.remember(("index", index), lambda: self._sum(index))

    def lanes(self, index: Index, chunk: Chunk) -> Reg:
        """Returns `index` for each lane of `chunk`, as a vector of i64.

        Lanes beyond the chunk repeat the last value.
        """
        last = chunk.count - 1
        ramp = lane_consts([min(n, last) for n in range(chunk.width)], "i64")
        self.values[name := f"lane.{chunk.count}.{chunk.width}"] = ramp
        (lane,) = free_vars(lane_of(chunk))
        index = substitute(index, {lane: symbol(name, 0, last)})
        return self.code.splat(self.emit(index), chunk.width)

    def sharpen(self, index: Index) -> Index:
        """Returns `index` with each loop variable expressed by its iteration number."""
        return substitute(index, self.steps)

    def divisor(self, index: Index) -> int:
        """Returns an integer that divides every value of `index`; 0 if all values are zero."""
        return divisor_of(index, self._atom_divisor)

    def _atom_divisor(self, atom: Atom) -> int:
        if not isinstance(atom, Var):
            return 1
        step = self.steps.get(atom)
        return atom.divisor if step is None else self.divisor(step)

    @contextmanager
    def in_loop(self, front: ReservedLine) -> Iterator[None]:
        """While the context is open, loop-invariant indices are emitted to `front`, before the
        loop.

        LLVM does not move invariant code out of a loop whose addresses take many registers. It then
        spills accumulators: blocks of five rows took 1.7 times as long as blocks of six rows.
        """
        self._fronts.append((front, dict(self.values)))
        yield
        self._fronts.pop()

    def _depth(self, atoms: Iterable[Atom]) -> int:
        """Returns the depth of the outermost loop in which all `atoms` are invariant.

        The outermost open loop has depth 0. If no loop qualifies, the result is the number of
        open loops, which stands for the current place.
        """
        names = [v.name for atom in atoms for v in free_vars(of_atom(atom))]
        for depth, (_, values) in enumerate(self._fronts):
            if all(values.get(name) is self.values[name] for name in names):
                return depth
        return len(self._fronts)

    def _outside(self, depth: int) -> AbstractContextManager[None]:
        """Emits the code in the context in front of the loop at `depth` (see `_depth`)."""
        if depth == len(self._fronts):
            return nullcontext()
        return self.code.at_place(self._fronts[depth][0])

    def _sum(self, index: Index) -> Reg:
        """Emits the sum of the terms; each partial sum is emitted in front of all loops in which it
        is invariant."""
        depths = [self._depth(atoms) for atoms, _ in index.terms]
        acc: Reg | None = None
        for depth in sorted({*depths}):
            terms = [t for t, d in zip_equal(index.terms, depths) if d == depth]
            make = partial(self._sum_at, depth, acc, terms)
            acc = self.code.remember(("terms", acc, *terms), make)
        assert acc is not None
        return self.code.op("add nsw", acc, index.const) if index.const else acc

    def _sum_at(
        self, depth: int, acc: Reg | None, terms: Sequence[tuple[tuple[Atom, ...], int]]
    ) -> Reg:
        with self._outside(depth):
            products = [self._product(atoms, coeff) for atoms, coeff in terms]
            products.sort(key=lambda reg: reg.width)
            return reduce(partial(self._op, "add nsw"), (*filter(None, (acc,)), *products))

    def _product(self, monomial: tuple[Atom, ...], coeff: int) -> Reg:
        atoms = sorted(((self._depth((atom,)), atom) for atom in monomial), key=_first)
        factors: Reg | None = None
        for count, (depth, atom) in enumerate(atoms, 1):
            key = ("product", tuple(a for _, a in atoms[:count]))
            factors = self.code.remember(key, partial(self._times, depth, factors, atom))
        assert factors is not None
        return self.code.op("mul nsw", factors, coeff) if coeff != 1 else factors

    def _times(self, depth: int, factors: Reg | None, atom: Atom) -> Reg:
        with self._outside(depth):
            factor = self._atom(atom)
            return factor if factors is None else self._op("mul nsw", factors, factor)

    def _same_width(self, a: Reg, b: Reg) -> tuple[Reg, Reg]:
        width = max(a.width, b.width)
        return self.code.splat(a, width), self.code.splat(b, width)

    def _op(self, opcode: str, a: Reg, b: Reg) -> Reg:
        return self.code.op(opcode, *self._same_width(a, b))

    def _atom(self, atom: Atom) -> Reg:
        match atom:
            case Var():
                return self.values[atom.name]
            case Quotient():
                return self._divide(atom.num, atom.den, "div")
            case Remainder():
                return self._divide(atom.num, atom.den, "rem")
            case Extremum():
                a, b = self._same_width(self.emit(atom.a), self.emit(atom.b))
                return self.code.intrinsic(f"s{atom.which}", a, b)

    def _divide(self, num: Index, den: Index, what: str) -> Reg:
        low, low_den = bounds(num)[0], bounds(den)[0]
        by = self.emit(den)
        # The division may be hoisted out of a loop that runs zero times, where the divisor may be
        # 0. So a divisor below 1 is replaced by 1.
        if low_den is None or low_den < 1:
            by = self.code.intrinsic("smax", by, 1)
        a, b = self._same_width(self.emit(num), by)
        if low is not None and low >= 0:
            return self.code.op(f"u{what}", a, b)
        return self._floor(a, b, what)

    def _floor(self, a: Reg, b: Reg, what: str) -> Reg:
        """Returns the quotient or the remainder of floor division; `b` is positive.

        `what` is "div" for the quotient and "rem" for the remainder. Both are corrected if the
        truncated remainder is negative.
        """
        code = self.code
        remainder = code.op("srem", a, b)
        below = code.compare("icmp slt", remainder, 0)
        if what == "rem":
            return code.op("add", remainder, code.select(below, b, 0))
        quotient = code.op("sdiv", a, b)
        return code.op("add", quotient, code.convert("sext", below, "i64"))


def constant(index: Index | None) -> int | None:
    """Returns the value of a constant index, else None."""
    return None if index is None else as_int(index)
