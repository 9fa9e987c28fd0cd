"""Prints integer expressions as C text that cannot overflow for variables in their ranges."""

from collections.abc import Callable

from tcc.ir.index import Atom, Extremum, Index, Quotient, Var, bounds, nonnegative, of_atom

_MOST = (1 << 31) - 1


class IndexText:
    """Prints indices; `name` maps a loop variable or size to the name of its C variable."""

    def __init__(self, name: Callable[[Var], str]) -> None:
        self._name = name

    def __call__(self, index: Index) -> str:
        """Returns the C text of an index, which is a sum; as an operand it needs parentheses."""
        wide = "(int64_t)" if _is_wide(index) else ""
        text = ""
        for monomial, coeff in index.terms:
            factors = [self._atom(atom) for atom in monomial]
            if abs(coeff) != 1:
                factors.insert(0, str(abs(coeff)))
            sign = "-" if coeff < 0 else "+"
            text += (f" {sign} " if text else sign.strip("+")) + wide + " * ".join(factors)
        if not text:
            return str(index.const)
        if index.const:
            text += f" {'-' if index.const < 0 else '+'} {abs(index.const)}"
        return text

    def operand(self, index: Index) -> str:
        """Returns the C text of an index, with parentheses if another operator could split it."""
        text = self(index)
        return f"({text})" if " " in text or text.startswith("-") else text

    def _atom(self, atom: Atom) -> str:
        match atom:
            case Var():
                return self._name(atom)
            case Extremum():
                a, b = self.operand(atom.a), self.operand(atom.b)
                return f"({a} {'<' if atom.which == 'min' else '>'} {b} ? {a} : {b})"
        num, den = self.operand(atom.num), self.operand(atom.den)
        # The C compiler may move the division in front of a loop that runs zero times, where the
        # divisor can be 0. So a divisor below 1 is replaced by 1.
        if not nonnegative(atom.den - 1):
            den = f"({den} > 0 ? {den} : 1)"
        quotient = isinstance(atom, Quotient)
        if nonnegative(atom.num):
            return f"({num} {'/' if quotient else '%'} {den})"
        return f"floor_{'div' if quotient else 'mod'}({num}, {den})"

    def guard(self, index: Index, extent: Index) -> str:
        """Returns the C text of the condition `0 <= index < extent`."""
        text = self(index)
        upper = f"{text} < {self(extent)}"
        return upper if nonnegative(index) else f"{text} >= 0 && {upper}"


def _is_wide(index: Index) -> bool:
    """True if a term or a partial sum may need more than 32 bits."""
    magnitude = abs(index.const)
    for monomial, coeff in index.terms:
        size = abs(coeff)
        for atom in monomial:
            low, high = bounds(of_atom(atom))
            if low is None or high is None:
                return True
            size *= max(abs(low), abs(high))
        magnitude += size
    return magnitude > _MOST
