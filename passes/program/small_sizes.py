"""Runs direct sums instead of a fast algorithm where sizes are small.

    transform, products, transform, guard          r = product of the symbolic sizes is at most 17
    where flag: direct                       ->    branch r { direct }
                                                   else { transform, ..., where flag: direct }

A guard is a run-time check at the end of a fast algorithm.  It runs direct sums for values that
the algorithm cannot handle.  The algorithm and the direct sums are priced at the sets of sizes of
`tcc.schedule.open_sizes`.  Between two sets, log(ratio of the times) is interpolated linearly in
log(product of the sizes).  In this example, direct sums are faster for h * w <= 17:

    h x w            128x128   63x63   25x25     8x8     1x1
    fast algorithm    752 us     187      42     4.8     4.2    mostly the transformed weights
    direct sums     2,449 us     594      94      10     0.9    ->   h * w <= 17

Requires a program whose memory is planned. Establishes that its instructions keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp, log, prod

from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, free_vars, substitute
from tcc.ir.program import (
    Allocate,
    Arena,
    Body,
    Branch,
    BufferId,
    CallOp,
    Instr,
    IntOp,
    Launch,
    Let,
    Program,
    Register,
    View,
)
from tcc.ir.program.operands import buffers_of
from tcc.passes.choose.content import site
from tcc.passes.memory.merge_buffers import touched
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.plan import Bound, KernelChooser, KernelKey
from tcc.schedule.alternatives import (
    NO_TIME,
    Alternative,
    Seconds,
    Site,
    number,
)
from tcc.schedule.backend import KernelModel
from tcc.schedule.margins import MARGINS
from tcc.schedule.nest import typical
from tcc.schedule.open_sizes import FALLING, table_sizes
from tcc.zipped import zip_equal


def direct_where_small(lowered: Lowered, planner: KernelChooser) -> Lowered:
    """Returns `lowered` with direct sums where sizes are so small that their price is lower.

    Returns it unchanged if the user has set typical sizes.
    """
    dims = _open_dims(lowered)
    symbols = free_vars(*dims)
    if not planner.prices_layouts or not symbols or any(v.typical is not None for v in symbols):
        return lowered
    sets = ({}, *table_sizes(symbols)[:FALLING])
    products = [prod(typical(substitute(size, sizes)) for size in dims) for sizes in sets]
    model = planner.holding(lowered.weights.size)
    bounds: dict[_Guarded, int] = {}
    for guarded in _guarded_algorithms(lowered):
        fast = _times(lowered, guarded.fast, model, len(sets))
        direct = _times(lowered, guarded.direct, model, len(sets))
        ratios = [number(a) / number(b) for a, b in zip_equal(direct, fast)]
        crossed = crossing(products, ratios)
        if crossed is not None:
            bound = planner.ledger.decide(
                partial(_site, lowered, guarded, planner.keys, tuple(dims)),
                Alternative(0, fast[-1], name="fast"),
                (Alternative(crossed, direct[-1], name=f"direct-up-to-{crossed}"),),
                MARGINS["direct sums of small sizes"],
                lowered.table.locs[_launches(guarded.fast)[0].kernel],
            ).replacement
            bounds.update({guarded: bound} if bound else {})
    return replace(lowered, program=_branched(lowered, bounds)) if bounds else lowered


def _open_dims(lowered: Lowered) -> Mapping[Index, Register]:
    """Returns the symbolic sizes of the inputs, each with the register that holds it.

    Inputs with elements of less than a byte are left out: their sizes in kernels differ from the
    sizes that callers pass.
    """
    ports = zip_equal(lowered.placed.graph.inputs, lowered.program.inputs)
    pairs = (
        pair
        for value, port in ports
        if not port.dtype.is_packed
        for pair in zip_equal(value.shape, port.dims)
    )
    return {size: register for size, register in pairs if as_int(size) is None}


# ---- prices -------------------------------------------------------------------------------------


def crossing(products: Sequence[int], ratios: Sequence[float]) -> int | None:
    """Returns the largest product of sizes for which direct sums are predicted to be faster.

    `ratios[n]` is the time of direct sums, divided by the time of the fast algorithm, for sizes
    whose product is `products[n]`.  The products fall.  Returns None if the last ratio is 1 or
    more.
    """
    if ratios[-1] >= 1:
        return None
    points = zip_equal(map(log, products), map(log, ratios))
    for (small, faster), (large, slower) in pairwise(reversed(list(points))):
        if slower >= 0:
            return round(exp(small - faster * (large - small) / (slower - faster)))
    return products[0]


def _times(lowered: Lowered, body: Body, model: KernelModel, sets: int) -> list[Seconds]:
    """Returns the predicted times of all kernels of `body`, for each of the first `sets` sets of
    sizes.
    """

    def seconds(at: int) -> Seconds:
        bounds = (lowered.table.bounds[launch.kernel] for launch in _launches(body))
        groups = ((b, b.tabulated[at - 1] if at and b.tabulated else b.group) for b in bounds)
        return sum((model.price(group, bound.schedule) for bound, group in groups), NO_TIME)

    return [seconds(at) for at in range(sets)]


def _launches(body: Body) -> list[Launch]:
    return [instr for instr in body if isinstance(instr, Launch)]


def _site(
    lowered: Lowered,
    guarded: _Guarded,
    keys: Mapping[Bound, KernelKey],
    dims: tuple[Index, ...],
) -> Site:
    """Returns the site (the name) of the decision between a fast algorithm and direct sums.

    The name contains the keys of the kernels of the two algorithms.
    """
    parts = (
        tuple(keys[lowered.table.bounds[launch.kernel]] for launch in _launches(body))
        for body in (guarded.fast, guarded.direct)
    )
    return site("small-sizes", dims, *parts)


# ---- guarded algorithms -------------------------------------------------------------------------


@frozen
class _Guarded:
    """A fast algorithm with a guard: the instructions `first` to `last` of a program.

    `prefix` has the instructions that both algorithms need.  `fast` is the fast algorithm, which
    ends with the guard's branch.  `direct` has the direct sums, and the filling of halos.
    """

    first: int
    last: int
    prefix: Body
    fast: Body
    direct: Body


def _guarded_algorithms(lowered: Lowered) -> Iterator[_Guarded]:
    """Yields the fast algorithms that end with a guard and whose intermediate values are used by no
    other instruction.

    A guard is a run-time check, with direct sums for the values that the algorithm cannot handle.
    """
    body = lowered.program.body
    writers = _Writers(lowered)
    for last, instr in enumerate(body):
        match instr:
            case Branch(then=then, otherwise=(), when=-1) if all(
                isinstance(i, Launch | Let) for i in then
            ):
                results = {b for launch in then for b in writers.written(launch)}
                first = last
                while first and writers.is_part(first - 1, last, results | {instr.condition}):
                    first -= 1
                span = body[first:last]
                prefix = tuple(i for i in span if isinstance(i, Let | Allocate))
                parts = tuple(i for i in span if i not in prefix)
                filled = tuple(
                    i for i in parts if isinstance(i, CallOp) and results & {*touched(i)}
                )
                single_writers = all(writers.has_one_writer(b, last) for b in results)
                if single_writers and any(isinstance(i, Launch) for i in parts):
                    yield _Guarded(first, last, prefix, (*parts, instr), (*filled, *then))


class _Writers:
    """Finds which buffers the instructions of a program write, and which instructions use a
    buffer.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._body = lowered.program.body
        self._results = [kernel.results for kernel in lowered.kernels]
        bases = {instr.base for instr in self._body if isinstance(instr, View)}
        buffers = enumerate(lowered.program.buffers)
        self._plain = {n for n, b in buffers if isinstance(b.place, Arena)} - bases
        self._uses: dict[BufferId, list[int]] = {}
        for position, instr in enumerate(self._body):
            for buffer in dict.fromkeys(touched(instr)):
                self._uses.setdefault(buffer, []).append(position)

    def written(self, instr: Instr) -> tuple[BufferId, ...]:
        """Returns the buffers of a launch's results; none for another instruction."""
        if not isinstance(instr, Launch):
            return ()
        return tuple(instr.buffers[n] for n in self._results[instr.kernel])

    def is_part(self, position: int, last: int, needed_results: set[BufferId]) -> bool:
        """Returns True if the instruction at `position` belongs to the algorithm that ends at
        `last`.

        That is so if nothing after position `last` reads its results, except for `needed_results`.
        """
        match self._body[position]:
            case Let() | Allocate():
                return True
            case Launch() as launch:
                results = self.written(launch)
            case CallOp(op="fill_halo") as call:
                results = buffers_of(call)
            case _:
                return False
        return all(b in needed_results or self._dies(b, last) for b in results)

    def has_one_writer(self, buffer: BufferId, last: int) -> bool:
        """Returns True if a single launch writes what a buffer holds at position `last`.

        Otherwise several launches write parts of it, such as the phases of a transposed
        convolution.
        """
        count = 0
        for use in (use for use in reversed(self._uses[buffer]) if use < last):
            instr = self._body[use]
            if isinstance(instr, CallOp):
                # The call fills the buffer's halo, so it writes no element.
                continue
            if buffer not in self.written(instr):
                break
            count += 1
        return count <= 1

    def _dies(self, buffer: BufferId, last: int) -> bool:
        """Returns True if the contents of a buffer are not needed from position `last` on.

        The buffer is then overwritten before it is read, and it is neither an output nor the base
        of a view.
        """
        later = (self._body[use] for use in self._uses[buffer] if use >= last)
        instr = next(later, None) if buffer in self._plain else self._body[last]
        return instr is None or (
            isinstance(instr, Launch)
            and [*instr.buffers].count(buffer) == self.written(instr).count(buffer)
        )


# ---- the program --------------------------------------------------------------------------------


def _branched(lowered: Lowered, guard_bounds: Mapping[_Guarded, int]) -> Program:
    """Returns the program with a branch in place of each algorithm of `guard_bounds`.

    The branch runs direct sums up to the algorithm's bound, a product of sizes.
    """
    program = lowered.program
    lets, small = _conditions(lowered, sorted(set(guard_bounds.values())))
    body: list[Instr] = []
    at = 0
    for guarded, bound in guard_bounds.items():
        body += (*program.body[at : guarded.first], *guarded.prefix, *(() if at else lets))
        body.append(Branch(-1, guarded.direct, guarded.fast, small[bound]))
        at = guarded.last + 1
    body += program.body[at:]
    return replace(program, registers=program.registers + len(lets), body=tuple(body))


def _conditions(
    lowered: Lowered, bounds: Sequence[int]
) -> tuple[list[Let], Mapping[int, Register]]:
    """Returns instructions, and a mapping from each bound to the register that they set for it.

    The register is not 0 if the product of the symbolic sizes is at most the bound.
    """
    program = lowered.program
    lets: list[Let] = []

    def let(op: IntOp, a: int, b: int = 0) -> Register:
        lets.append(Let(program.registers + len(lets), op, a, b))
        return lets[-1].target

    # Each size is clamped to the largest bound plus 1, so that their product does not overflow.
    beyond, zero = let(IntOp.CONST, bounds[-1] + 1), let(IntOp.CONST, 0)
    size_product, *more = [let(IntOp.MIN, size, beyond) for size in _open_dims(lowered).values()]
    for factor in more:
        size_product = let(IntOp.MIN, let(IntOp.MUL, size_product, factor), beyond)
    differences = {
        bound: let(IntOp.SUB, let(IntOp.CONST, bound + 1), size_product) for bound in bounds
    }
    return lets, {
        bound: let(IntOp.MAX, difference, zero) for bound, difference in differences.items()
    }
