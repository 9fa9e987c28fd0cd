"""Keeps of a value only what is still read of it, where the most memory is live.

    a = f(x) ; b = g(a) ; y = h(x[::2, ::2])
      ->  a = f(x) ; k = x[::2, ::2] ; b = g(a) ; y = h(k)      k lies where x began

Requires layouts.  Establishes that a value of the arena whose last reader skips elements is
compacted in place once the others are done, if that makes the most that is live at one time less:
so the shortcut of a residual network does not hold all of its operand while the main branch runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from math import gcd, prod

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read, Scalar, read
from tcc.ir.graph import Value
from tcc.ir.index import (
    Index,
    Indices,
    Vars,
    as_int,
    ceildiv,
    const,
    free_vars,
    linear_in,
    substitute,
    var_of,
)
from tcc.ir.layout import axis_order, permuted
from tcc.ir.types import TensorType, element_count
from tcc.passes.fuse.partition import seen_by_others
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep, copy_of, on_others, operand_reads
from tcc.record import record
from tcc.schedule.nest import typical

# Keeping more than a part of this size costs more time than memory is worth.
_PART = 4


@record
class _Life:
    """The steps that make a value and read it, in order; the bytes it takes at typical sizes."""

    steps: tuple[int, ...]
    size: int


def compacted(placed: Placed) -> Placed:
    """`placed` with such values compacted out, as long as that takes less memory."""
    while (found := _thinned_once(placed)) is not None:
        placed = found
    return placed


def _thinned_once(placed: Placed) -> Placed | None:
    lives = _lives(placed)
    live = _live_bytes(placed, lives) if lives else []
    if not live:
        return None
    most = max(live)
    at = live.index(most)
    for value, life in lives.items():
        *earlier, last = life.steps
        if len(earlier) < 2 or not earlier[-1] < at <= last or placed.steps[earlier[-1]].every:
            continue
        kernel = placed.steps[last].kernel
        every = None if kernel is None or kernel.condition else _every(kernel, value)
        if every is None or prod(every) < _PART:
            continue
        found = _with_part(placed, value, every, earlier[-1], last)
        if found is not None and max(_live_bytes(found, _lives(found))) < most:
            return found
    return None


# ---- what is live -------------------------------------------------------------------------------


def _lives(placed: Placed) -> dict[Value, _Life]:
    """Of the values that kernels make for kernels alone, and whose sizes data do not decide."""
    steps: dict[Value, list[int]] = {}
    others = {*seen_by_others(placed.graph), *placed.wholes, *placed.wholes.values()}
    for number, step in enumerate(placed.steps):
        if step.kernel is not None:
            for value in dict.fromkeys((*step.kernel.results, *step.kernel.operands)):
                steps.setdefault(value, []).append(number)
    shapes = (v.type.shape for v in placed.graph.inputs if isinstance(v.type, TensorType))
    symbols = {symbol for shape in shapes for dim in shape for symbol in free_vars(dim)}
    found: dict[Value, _Life] = {}
    for value, touched in steps.items():
        if value in placed.graph.constants or value in others or value not in placed.layouts:
            continue
        count = element_count(placed.layouts[value].sizes)
        if set(free_vars(count)) <= symbols:
            size = typical(count) * value.type.dtype.bytes
            found[value] = _Life(tuple(touched), size)
    return found


def _live_bytes(placed: Placed, lives: Mapping[Value, _Life]) -> list[int]:
    """At each step; what is written over an operand takes no memory beside it."""
    changes = [0] * (len(placed.steps) + 1)
    for value, life in lives.items():
        made = placed.steps[life.steps[0]]
        over = made.every or (made.kernel is not None and _replaces(made.kernel, value, lives))
        first = life.steps[0] + (1 if over else 0)
        changes[first] += life.size
        changes[max(first, life.steps[-1] + 1)] -= life.size
    live, total = [], 0
    for change in changes[:-1]:
        total += change
        live.append(total)
    return live


def _replaces(kernel: Kernel, result: Value, lives: Mapping[Value, _Life]) -> bool:
    """Whether a result has the place of an operand of its size that dies there, read as it lies."""
    number = lives[result].steps[0]
    for operand in kernel.operands:
        life = lives.get(operand)
        if life is None or life.steps[-1] != number or life.size != lives[result].size:
            continue
        at = ((s.iters, r.indices) for s, r, v in operand_reads(kernel) if v is operand)
        if all(starmap(_as_it_lies, at)):
            return True
    return False


def _as_it_lies(loops: Vars, indices: Indices) -> bool:
    return len(loops) == len(indices) and all(
        var_of(i) is v or known_extent(v) == 1 for i, v in zip(indices, loops, strict=True)
    )


# ---- what is read -------------------------------------------------------------------------------


def _every(kernel: Kernel, value: Value) -> tuple[int, ...] | None:
    """Of each axis the largest number whose multiples alone a kernel reads; None where it may look
    beyond the elements."""
    found = [0] * value.type.rank
    for node in (r for _, r, v in operand_reads(kernel) if v is value):
        if node.indirect or node.fill is not None:
            return None
        found = [gcd(n, _factor(i)) for n, i in zip(found, node.indices, strict=True)]
    return tuple(n or 1 for n in found)


def _factor(index: Index) -> int:
    """A number that divides an index; 0 for an index of 0."""
    rest = substitute(index, {v: const(0) for v in free_vars(index) if v.hi == 0})
    factor = 0
    for var in free_vars(rest):
        linear = linear_in(rest, var)
        step = None if linear is None else as_int(linear[0])
        if linear is None or step is None:
            return 1
        factor, rest = gcd(factor, step), linear[1]
    last = as_int(rest)
    return 1 if last is None else gcd(factor, last)


# ---- thinning -----------------------------------------------------------------------------------


def _with_part(
    placed: Placed, value: Value, every: tuple[int, ...], after: int, last: int
) -> Placed | None:
    """`placed` with `value` compacted out behind step `after`; None where its storage has gaps."""
    shape = tuple(ceildiv(n, k) for n, k in zip(value.type.shape, every, strict=True))
    where, kernel = placed.layouts[value], placed.steps[last].kernel
    order = axis_order(where)
    if order is None or kernel is None or where != permuted(value.type.shape, order):
        return None
    part = Value(f"{value.name}.part", replace(value.type, shape=shape))
    steps = list(placed.steps)
    steps[last] = ProgramStep(_read_part(kernel, value, part, every))
    copy = _part(value, part, every, kernel.loc)
    steps.insert(after + 1, ProgramStep(copy, None, tuple(every[axis] for axis in order)))
    layouts = {**placed.layouts, part: permuted(shape, order)}
    return replace(placed, steps=tuple(steps), layouts=layouts)


def _part(source: Value, target: Value, every: Sequence[int], loc: str) -> Kernel:
    def place(at: Indices) -> Indices:
        return tuple(i * n for i, n in zip(at, every, strict=True))

    return copy_of(source, target, f"{loc} (part)", place)


def _read_part(kernel: Kernel, value: Value, part: Value, every: Sequence[int]) -> Kernel:
    """`kernel` on what was kept in place of all."""

    def kept(node: Read, _: Value) -> Scalar:
        at = tuple(i // const(n) for i, n in zip(node.indices, every, strict=True))
        return read(node.source, at, node.dtype)

    return on_others(kernel, {value: part}, kept)
