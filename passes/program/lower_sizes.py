"""Lowers indices to registers, which hold integers of the run.

n*64 + 1      r3 = mul r0 r1 ; r4 = add r3 r2        with r0 = n, r1 = 64, r2 = 1

An equal index, quotient, remainder, minimum or maximum is computed once.
"""

from __future__ import annotations

from copy import copy

from tcc.errors import InternalError
from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    Quotient,
    Remainder,
    Var,
    const,
    free_vars,
    of_atom,
)
from tcc.ir.program import Instr, IntOp, Let, Register
from tcc.ir.program.arithmetic import require_register


class SizeRegisters:
    """Allocates registers, and records which registers of this scope hold which sizes.

    A body has an inner scope (`inner`), in which the sizes of the enclosing scope are visible.  Its
    registers are not visible after the body, because the body may not have run.
    """

    def __init__(self) -> None:
        self._counter = [0]
        self._known: dict[Index, Register] = {}
        self._sizes: dict[str, Register] = {}
        self._late: set[str] = set()
        # The formulas that symbols stand for, and the symbols that occur in each formula.
        self._formulas: dict[str, Index] = {}
        self._sources: dict[str, frozenset[str]] = {}

    @property
    def count(self) -> int:
        return self._counter[0]

    def inner(self) -> SizeRegisters:
        inner = SizeRegisters()
        # All scopes count their registers together.
        facts = {name: copy(value) for name, value in vars(self).items()}
        vars(inner).update(facts, _counter=self._counter)
        return inner

    def fresh(self) -> Register:
        self._counter[0] += 1
        return self._counter[0] - 1

    def bind(self, name: str, register: Register, *, late: bool = False) -> None:
        """Declares that `register` holds the size symbol `name` from here on.

        A `late` size depends on data, so it is not known when a run starts.
        """
        self._sizes[name] = register
        if late:
            self._late.add(name)
            self._known = {i: r for i, r in self._known.items() if name not in self._symbols(i)}

    def define(self, name: str, formula: Index) -> None:
        """Declares that the size symbol `name` stands for `formula`.

        The formula is computed where it is first needed.
        """
        self._formulas[name] = formula
        self._sources[name] = self._symbols(formula)

    def is_late(self, index: Index) -> bool:
        """Returns True if `index` depends on a data-dependent size."""
        return not self._late.isdisjoint(self._symbols(index))

    def _symbols(self, index: Index) -> frozenset[str]:
        """Returns the symbols of `index`, and the symbols in their formulas."""
        names = frozenset(v.name for v in free_vars(index))
        return names.union(*(self._sources[name] for name in names if name in self._sources))

    def bound(self, name: str) -> bool:
        return name in self._sizes or name in self._formulas

    def load(self, index: Index, out: list[Instr]) -> Register:
        """Returns the register that holds `index`.

        Appends the instructions that compute it to `out`, if there are any.  Raises InternalError
        for a size symbol that is not bound.
        """
        register = self._known.get(index)
        if register is not None:
            return register
        acc: Register | None = None
        for monomial, coeff in index.terms:
            term = self._product(monomial, coeff, out)
            acc = term if acc is None else self._op(IntOp.ADD, acc, term, out)
        if acc is None or index.const:
            constant = self._constant(index.const, out)
            acc = constant if acc is None else self._op(IntOp.ADD, acc, constant, out)
        self._known[index] = acc
        return acc

    def _product(self, monomial: tuple[Atom, ...], coeff: int, out: list[Instr]) -> Register:
        register: Register | None = None if coeff == 1 else self._constant(coeff, out)
        for atom in monomial:
            factor = self._atom(atom, out)
            register = factor if register is None else self._op(IntOp.MUL, register, factor, out)
        assert register is not None
        return register

    def _atom(self, atom: Atom, out: list[Instr]) -> Register:
        if isinstance(atom, Var):
            return self._symbol(atom.name, out)
        index = of_atom(atom)
        if index not in self._known:
            match atom:
                case Quotient():
                    op, a, b = IntOp.FLOORDIV, atom.num, atom.den
                case Remainder():
                    op, a, b = IntOp.MOD, atom.num, atom.den
                case Extremum():
                    op = IntOp.MIN if atom.which == "min" else IntOp.MAX
                    a, b = atom.a, atom.b
            self._known[index] = self._op(op, self.load(a, out), self.load(b, out), out)
        return self._known[index]

    def _symbol(self, name: str, out: list[Instr]) -> Register:
        if name in self._sizes:
            return self._sizes[name]
        if name not in self._formulas:
            raise InternalError(f"size {name} is used before it is known")
        # A formula needs only formulas that were defined earlier, so that order computes all of
        # them.
        for part in self._formulas:
            if part in self._sources[name]:
                self.load(self._formulas[part], out)
        return self.load(self._formulas[name], out)

    def _op(self, op: IntOp, a: Register, b: Register, out: list[Instr]) -> Register:
        target = self.fresh()
        out.append(Let(target, op, a, b))
        return target

    def _constant(self, value: int, out: list[Instr]) -> Register:
        register = self._known.get(const(value))
        if register is None:
            require_register(value)
            register = self.fresh()
            out.append(Let(register, IntOp.CONST, value))
            self._known[const(value)] = register
        return register
