"""Encodes how much memory, and which sizes, the kernels of a variant need in a launch.

The table is stored next to the code and not in the program, so that no byte of a program can change
the memory that a kernel touches. The runtime checks each launch against it (`runtime/src/needs.c`).
The table is a sequence of integers with seven bits in each byte, the lowest bits first. The lowest
bit of an integer is its sign. The table starts with the bytes of scratch. For each kernel follow:

    counts:       number of sizes, number of instructions, number of buffers
    sizes:        least value, greatest value, divisor            for each size
    instructions: IntOp, a, b                                     for each instruction
    amounts:      number of tiles, then bytes of each buffer

The first registers hold the sizes. Instruction n computes register `number of sizes + n`, from
earlier registers or constants `a` and `b`. An amount is `4 * value + 2 * is_register + is_written`.
If `is_register` is 1, `value` is the number of a register, otherwise it is the amount itself.
`is_written` is 1 for a buffer that the kernel writes.
"""

from collections.abc import Iterable, Sequence

from tcc.ir.expr import extent
from tcc.ir.index import (
    Atom,
    Index,
    Quotient,
    Remainder,
    Var,
    Vars,
    as_int,
    bounds,
    const,
    free_vars,
    of_atom,
    substitute,
)
from tcc.ir.program import Instr, Let
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import element_count
from tcc.passes.program.lower_sizes import SizeRegisters

# The greatest value that a register can hold.
_MOST = 2**63 - 1


def encode_needs(kernels: Sequence[TileKernel], scratch: int) -> bytes:
    """Returns the table of `kernels`, which are in the program's order.

    Each kernel needs at most `scratch` bytes of private memory per thread.
    """
    numbers = [scratch]
    for kernel in kernels:
        numbers += _needs(kernel)
    return b"".join(map(_digits, numbers))


def _needs(kernel: TileKernel) -> list[int]:
    registers, lets = SizeRegisters(), list[Instr]()
    for var in kernel.sizes:
        registers.bind(var.name, registers.fresh())

    def number(index: Index) -> int:
        index = _at_least(index, kernel.sizes)
        value = as_int(index)
        return 4 * registers.load(index, lets) + 2 if value is None else 4 * value

    units = number(element_count(tuple(map(extent, kernel.axes))))
    sizes = [
        number(element_count(b.sizes) * b.dtype.bytes) + (b.scope is MemorySpace.OUTPUT)
        for b in kernel.buffers
    ]
    facts = [(v.lo, _MOST if v.hi is None else v.hi, v.divisor) for v in kernel.sizes]
    steps = [(let.op.value, let.a, let.b) for let in lets if isinstance(let, Let)]
    numbers = (number for row in (*facts, *steps) for number in row)
    return [len(facts), len(steps), len(sizes), *numbers, units, *sizes]


def _at_least(size: Index, sizes: Vars) -> Index:
    """Returns a lower bound of an extent or of a size in bytes, as a formula over `sizes` alone.

    `sizes` are the size arguments of the kernel. Other variables of the formula are replaced by
    their smallest values, because the kernel does not receive them. Its accesses stay inside the
    buffer for every value of these variables, so they stay inside a buffer of the smallest size.
    """
    other_vars = [v for v in free_vars(size) if v not in sizes]
    dependent = [
        term
        for term in size.terms
        if any(v in free_vars(of_atom(a)) for a in term[0] for v in other_vars)
    ]
    rising = _all_rise(dependent)
    return substitute(size, {v: const(max(v.lo, 0)) for v in other_vars}) if rising else const(0)


def _all_rise(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> bool:
    """True if no term decreases when one of its variables increases."""
    return all(coeff > 0 and all(map(_rises, atoms)) for atoms, coeff in terms)


def _rises(atom: Atom) -> bool:
    """True if an atom is not negative and does not decrease when one of its variables increases."""
    lower = bounds(of_atom(atom))[0]
    if lower is None or lower < 0 or isinstance(atom, Remainder):
        return False
    if isinstance(atom, Quotient):
        return as_int(atom.den) is not None and _all_rise(atom.num.terms)
    return isinstance(atom, Var) or _all_rise((*atom.a.terms, *atom.b.terms))


def _digits(number: int) -> bytes:
    """Returns the bytes of an integer; the highest bit is set in all but the last."""
    value = 2 * number if number >= 0 else -2 * number - 1
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes((*digits, value))
