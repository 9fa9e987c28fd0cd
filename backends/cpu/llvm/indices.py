"""Index expressions as 64-bit integer code."""

from math import gcd

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
    const,
    free_vars,
    linear_in,
    substitute,
)


class LlvmIndices:
    """Emits indices; equal ones are computed once per dominating place.

    `values` holds the SSA value of each variable in sight, `steps` loop variables as
    `start + step * trip`, which lets the simplifier see what divides them.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.values: dict[str, Reg] = {}
        self.steps: dict[Var, Index] = {}

    def emit(self, index: Index) -> Reg:
        """The value of `index` as an i64."""
        if not index.terms:
            return int_const(index.const)
        return self.code.remember(("index", index), lambda: self._sum(index))

    def lanes(self, index: Index, lane: Var, count: int, width: int) -> Reg:
        """`index` for `lane` = 0 .. count - 1 as a vector of i64; further lanes are free."""
        key = ("lanes", index, lane, count, width)
        return self.code.remember(key, lambda: self._lanes(index, lane, count, width))

    def _lanes(self, index: Index, lane: Var, count: int, width: int) -> Reg:
        code = self.code
        split = linear_in(index, lane)
        if split is None:
            each = [self.emit(substitute(index, {lane: const(n)})) for n in range(count)]
            return code.gather(each, width)
        base = code.splat(self.emit(split[1]), width)
        slope = as_int(split[0])
        if slope is not None:
            return code.op("add", base, lane_consts([slope * n for n in range(width)], "i64"))
        scale = code.splat(self.emit(split[0]), width)
        return code.op("add", base, code.op("mul", scale, lane_consts(range(width), "i64")))

    def sharpen(self, index: Index) -> Index:
        """`index` with loop variables replaced by what is known of them."""
        return substitute(index, self.steps)

    def divisor(self, index: Index) -> int:
        """An integer that divides every value of `index`; 0 for zero."""
        result = abs(index.const)
        for monomial, coeff in index.terms:
            product = abs(coeff)
            for atom in monomial:
                product *= self._atom_divisor(atom)
            result = gcd(result, product)
        return result

    def _atom_divisor(self, atom: Atom) -> int:
        if not isinstance(atom, Var):
            return 1
        step = self.steps.get(atom)
        return atom.divisor if step is None else self.divisor(step)

    def _sum(self, index: Index) -> Reg:
        total: Reg | None = None
        for monomial, coeff in index.terms:
            product = self._product(monomial)
            if coeff != 1:
                product = self.code.op("mul nsw", product, coeff)
            total = product if total is None else self.code.op("add nsw", total, product)
        assert total is not None
        if index.const:
            total = self.code.op("add nsw", total, index.const)
        return total

    def _product(self, monomial: tuple[Atom, ...]) -> Reg:
        product = self._atom(monomial[0])
        for atom in monomial[1:]:
            product = self.code.op("mul nsw", product, self._atom(atom))
        return product

    def _atom(self, atom: Atom) -> Reg:
        match atom:
            case Var():
                return self.values[atom.name]
            case Quotient():
                return self._divide(atom.num, atom.den, "div")
            case Remainder():
                return self._divide(atom.num, atom.den, "rem")
            case Extremum():
                a, b = self.emit(atom.a), self.emit(atom.b)
                return self.code.intrinsic(f"s{atom.which}", a, b)

    def _divide(self, num: Index, den: Index, what: str) -> Reg:
        low = bounds(num)[0]
        a, b = self.emit(num), self.emit(den)
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


def split_lanes(index: Index, lanes: tuple[Var, ...]) -> tuple[Index, tuple[Index | None, ...]]:
    """`(rest, coeffs)` with `index == rest + sum of coeffs * lanes`.

    A lane that `index` is not linear in has the coefficient None and stays in `rest`.
    """
    rest = index
    coeffs: list[Index | None] = []
    for lane in lanes:
        split = linear_in(rest, lane)
        if split is None or any(v in free_vars(split[0]) for v in lanes):
            coeffs.append(None)
        else:
            coeffs.append(split[0])
            rest = split[1]
    return rest, tuple(coeffs)


def constant(index: Index | None) -> int | None:
    """The value of a constant index, else None."""
    return None if index is None else as_int(index)
