"""Compacts values to the elements that will still be read, where the most memory is live.

    a = f(x) ; b = g(a) ; y = h(x[::2, ::2])
      ->  a = f(x) ; k = x[::2, ::2] ; b = g(a) ; y = h(k)      k lies where x began

Requires layouts.  Establishes that a value whose last reader skips elements is compacted in place
after its other readers, if that lowers the peak of live memory.  For example, the shortcut of a
residual network then does not hold its whole operand while the main branch runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from math import gcd, prod

from tcc.frozen import frozen
from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Read, Scalar, read
from tcc.ir.graph import Value, symbols_in
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
from tcc.ir.types import element_count
from tcc.passes.fuse.node_kinds import seen_by_others
from tcc.passes.layout.assign import Kernel, Placed, ProgramStep, copy_of, on_others, operand_reads
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal

# A value is compacted only if it keeps at most one in this many elements. Otherwise the copy takes
# more time than the memory is worth.
_PART = 4


@frozen
class _Life:
    """The numbers of the steps that compute or read a value, and its bytes at typical sizes."""

    steps: tuple[int, ...]
    size: int


def compacted(placed: Placed) -> Placed:
    """Returns `placed` with values compacted, one after the other, while that lowers the memory
    peak."""
    while changed := _compacted_once(placed):
        placed = changed
    return placed


def _compacted_once(placed: Placed) -> Placed | None:
    """Returns `placed` with a single value compacted; None if that lowers the peak for no value."""
    lives = _lives(placed)
    live = _live_bytes(placed, lives) if lives else []
    if not live:
        return None
    peak = max(live)
    peak_step = live.index(peak)
    for value, life in lives.items():
        *earlier, last = life.steps
        if (
            len(earlier) < 2
            or not earlier[-1] < peak_step <= last
            or placed.steps[earlier[-1]].every
        ):
            continue
        kernel = placed.steps[last].kernel
        every = None if kernel is None or kernel.condition else _every(kernel, value)
        if every is None or prod(every) < _PART:
            continue
        changed = _with_part(placed, value, every, earlier[-1], last)
        if changed is not None and max(_live_bytes(changed, _lives(changed))) < peak:
            return changed
    return None


# ---- live values --------------------------------------------------------------------------------


def _lives(placed: Placed) -> dict[Value, _Life]:
    """Returns the lives of values that only kernels use, and whose sizes do not depend on data."""
    steps: dict[Value, list[int]] = {}
    excluded = {*seen_by_others(placed.graph), *placed.containers, *placed.containers.values()}
    for number, step in enumerate(placed.steps):
        if step.kernel is not None:
            for value in dict.fromkeys((*step.kernel.results, *step.kernel.operands)):
                steps.setdefault(value, []).append(number)
    symbols = symbols_in(placed.graph.inputs)
    lives: dict[Value, _Life] = {}
    for value, touched in steps.items():
        if value in placed.graph.constants or value in excluded or value not in placed.layouts:
            continue
        count = element_count(placed.layouts[value].sizes)
        if set(free_vars(count)) <= symbols:
            size = typical(count) * value.dtype.bytes
            lives[value] = _Life(tuple(touched), size)
    return lives


def _live_bytes(placed: Placed, lives: Mapping[Value, _Life]) -> list[int]:
    """Returns the bytes that are live at each step.

    A result that overwrites an operand counts from the next step on.
    """
    changes = [0] * (len(placed.steps) + 1)
    for value, life in lives.items():
        producer = placed.steps[life.steps[0]]
        replaces = producer.every or (
            producer.kernel is not None and _replaces(producer.kernel, value, lives)
        )
        first = life.steps[0] + (1 if replaces else 0)
        changes[first] += life.size
        changes[max(first, life.steps[-1] + 1)] -= life.size
    live, bytes_ = [], 0
    for change in changes[:-1]:
        bytes_ += change
        live.append(bytes_)
    return live


def _replaces(kernel: Kernel, result: Value, lives: Mapping[Value, _Life]) -> bool:
    """Returns True if a result can overwrite an operand of the kernel.

    The operand must have the result's size, must not be read later, and must be read in storage
    order.
    """
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
    """Returns True if `indices` are the loops in order; loops of one iteration do not count."""
    return len(loops) == len(indices) and all(
        var_of(i) is v or known_extent(v) == 1 for i, v in zip_equal(indices, loops)
    )


# ---- elements that are read ---------------------------------------------------------------------


def _every(kernel: Kernel, value: Value) -> tuple[int, ...] | None:
    """Returns for each axis of `value` the largest number that divides all indices of a kernel's
    reads.

    For example, it is (1, 2) for reads x[i, 2*j] and x[i, 4*k].  Returns None if the kernel may
    read outside of the value, or at data-dependent indices.
    """
    factors = [0] * value.rank
    for node in (r for _, r, v in operand_reads(kernel) if v is value):
        if node.indirect or node.fill is not None:
            return None
        factors = [gcd(n, _factor(i)) for n, i in zip_equal(factors, node.indices)]
    return tuple(n or 1 for n in factors)


def _factor(index: Index) -> int:
    """Returns a number that divides all values of an index; 0 if the index is always 0."""
    remainder = substitute(index, {v: const(0) for v in free_vars(index) if v.hi == 0})
    factor = 0
    for var in free_vars(remainder):
        linear = linear_in(remainder, var)
        step = None if linear is None else as_int(linear[0])
        if linear is None or step is None:
            return 1
        factor, remainder = gcd(factor, step), linear[1]
    constant = as_int(remainder)
    return 1 if constant is None else gcd(factor, constant)


# ---- compacting ---------------------------------------------------------------------------------


def _with_part(
    placed: Placed, value: Value, every: tuple[int, ...], after: int, last: int
) -> Placed | None:
    """Returns `placed` with a smaller copy of `value`, made after step `after`.

    Step `last` then reads the copy. Along axis d, the copy has the elements at indices that
    `every[d]` divides. Returns None if `value` is stored with gaps.
    """
    shape = tuple(ceildiv(n, k) for n, k in zip_equal(value.shape, every))
    where, kernel = placed.layouts[value], placed.steps[last].kernel
    order = axis_order(where)
    if order is None or kernel is None or where != permuted(value.shape, order):
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
        return tuple(i * n for i, n in zip_equal(at, every))

    return copy_of(source, target, f"{loc} (part)", place)


def _read_part(kernel: Kernel, value: Value, part: Value, every: Sequence[int]) -> Kernel:
    """Returns `kernel` with reads of the compacted `part` in place of reads of `value`."""

    def kept(node: Read, _: Value) -> Scalar:
        at = tuple(i // const(n) for i, n in zip_equal(node.indices, every))
        return read(node.source, at, node.dtype)

    return on_others(kernel, {value: part}, kept)
