"""Runs direct sums in place of a fast algorithm where sizes are small.

    transform, products, transform, guard          r = product of the open sizes is at most 17
    where flag: direct                       ->    branch r { direct }
                                                   else { transform, ..., where flag: direct }

A guarded algorithm has direct sums at hand, for values that it cannot take.  Both are priced at the
sets of sizes of `tcc.schedule.open_sizes`; between two sets the logarithm of the ratio of their
times runs straight over the logarithm of the product of the sizes:

    h x w            128x128   63x63   25x25     8x8     1x1
    fast algorithm    752 us     187      42     4.8     4.2    transformed weights take most of it
    direct sums     2,449 us     594      94      10     0.9    ->   h * w <= 17

Requires a program whose memory is planned.  Establishes that its instructions keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, prod

from tcc.ir.graph import Graph
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
from tcc.passes.memory.merge_buffers import touched
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.plan import KernelPlanner
from tcc.record import record
from tcc.schedule.backend import KernelModel
from tcc.schedule.nest import typical
from tcc.schedule.open_sizes import FALLING, table_sizes

# The part of its time that direct sums have to save at the smallest sizes: prices err.
_LEAST = 0.1


def direct_where_small(lowered: Lowered, planner: KernelPlanner) -> Lowered:
    """`lowered` with direct sums at sizes at which they are priced less than fast algorithms; as it
    is where the user gives typical sizes."""
    dims = open_dims(lowered.placed.graph)
    symbols = free_vars(*dims)
    if not planner.prices_layouts or not symbols or any(v.typical is not None for v in symbols):
        return lowered
    sets = ({}, *table_sizes(symbols)[:FALLING])
    products = [prod(typical(substitute(size, sizes)) for size in dims) for sizes in sets]
    model = planner.holding(lowered.weights.size)
    chosen: dict[_Site, int] = {}
    for site in _sites(lowered):
        most = crossing(products, _ratios(lowered, site, model, len(sets)))
        if most is not None:
            chosen[site] = most
    return replace(lowered, program=_branched(lowered, chosen)) if chosen else lowered


def open_dims(graph: Graph) -> tuple[Index, ...]:
    """The distinct sizes of the inputs that are not known."""
    sizes = (size for value in graph.inputs for size in value.type.shape)
    return tuple(dict.fromkeys(size for size in sizes if as_int(size) is None))


# ---- prices -------------------------------------------------------------------------------------


def crossing(products: Sequence[int], ratios: Sequence[float]) -> int | None:
    """The product of sizes up to which ratios of times stay below 1; None where the last one is
    near 1.

    `ratios` belong to `products`, which fall.
    """
    if ratios[-1] > 1 - _LEAST:
        return None
    points = zip(map(log, products), map(log, ratios), strict=True)
    for (small, faster), (large, slower) in pairwise(reversed(list(points))):
        if slower >= 0:
            return round(exp(small - faster * (large - small) / (slower - faster)))
    return products[0]


def _ratios(lowered: Lowered, site: _Site, model: KernelModel, sets: int) -> list[float]:
    """The times of a site's direct sums over those of its fast algorithm, at so many `sets`."""

    def seconds(body: Body, at: int) -> float:
        bounds = (lowered.table.bounds[i.kernel] for i in body if isinstance(i, Launch))
        groups = ((b, b.tabulated[at - 1] if at and b.tabulated else b.group) for b in bounds)
        return sum(model.price(group, bound.schedule) for bound, group in groups)

    return [seconds(site.direct, n) / seconds(site.fast, n) for n in range(sets)]


# ---- sites --------------------------------------------------------------------------------------


@record
class _Site:
    """The instructions `first` to `last` of a program, which end with a guard's branch.

    `moved` come before both algorithms; `fast` ends with that branch.  `direct` are the direct sums
    and what they need.
    """

    first: int
    last: int
    moved: Body
    fast: Body
    direct: Body


def _sites(lowered: Lowered) -> Iterator[_Site]:
    """The guarded algorithms of which nothing else reads a part."""
    body = lowered.program.body
    writers = _Writers(lowered)
    for last, instr in enumerate(body):
        match instr:
            case Branch(then=then, otherwise=(), when=-1) if writers.are_launches(then):
                results = {b for launch in then for b in writers.written(launch)}
                first = last
                while first and writers.is_part(first - 1, last, results | {instr.condition}):
                    first -= 1
                span = body[first:last]
                moved = tuple(i for i in span if isinstance(i, Let | Allocate))
                parts = tuple(i for i in span if i not in moved)
                filled = tuple(
                    i for i in parts if isinstance(i, CallOp) and results & {*touched(i)}
                )
                alone = all(writers.has_one_writer(b, last) for b in results)
                if alone and any(isinstance(i, Launch) for i in parts):
                    yield _Site(first, last, moved, (*parts, instr), (*filled, *then))


class _Writers:
    """What the instructions of a program write, and where that is used."""

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

    def are_launches(self, body: Body) -> bool:
        """Whether a guard's body launches kernels, and computes sizes for these, alone."""
        return all(isinstance(instr, Launch | Let) for instr in body)

    def written(self, instr: Instr) -> tuple[BufferId, ...]:
        """The results of a launch."""
        if not isinstance(instr, Launch):
            return ()
        return tuple(instr.buffers[n] for n in self._results[instr.kernel])

    def is_part(self, position: int, last: int, known: set[BufferId]) -> bool:
        """Whether nothing but the guard at `last` and its algorithm needs an instruction's results,
        those that are `known` left out."""
        match self._body[position]:
            case Let() | Allocate():
                return True
            case Launch() as launch:
                written = self.written(launch)
            case CallOp(op="fill_halo") as call:
                written = buffers_of(call)
            case _:
                return False
        return all(b in known or self._dies(b, last) for b in written)

    def has_one_writer(self, buffer: BufferId, last: int) -> bool:
        """Whether one launch alone writes what a buffer holds at a position: of several, some make
        other parts of it, as other phases of a transposed convolution."""
        count = 0
        for use in (use for use in reversed(self._uses[buffer]) if use < last):
            instr = self._body[use]
            if isinstance(instr, CallOp):
                continue  # fills its border
            if buffer not in self.written(instr):
                break
            count += 1
        return count <= 1

    def _dies(self, buffer: BufferId, last: int) -> bool:
        """Whether neither the guard at a position, nor a caller or a view, nor what stands behind
        reads a buffer before it is written anew."""
        later = (self._body[use] for use in self._uses[buffer] if use >= last)
        instr = next(later, None) if buffer in self._plain else self._body[last]
        return instr is None or (
            isinstance(instr, Launch)
            and [*instr.buffers].count(buffer) == self.written(instr).count(buffer)
        )


# ---- the program --------------------------------------------------------------------------------


def _branched(lowered: Lowered, chosen: Mapping[_Site, int]) -> Program:
    """The program with a branch in place of each site that is chosen, up to its bound."""
    program = lowered.program
    lets, small = _conditions(lowered, sorted(set(chosen.values())))
    body: list[Instr] = []
    at = 0
    for site, most in chosen.items():
        body += (*program.body[at : site.first], *site.moved, *(() if at else lets))
        body.append(Branch(-1, site.direct, site.fast, small[most]))
        at = site.last + 1
    body += program.body[at:]
    return replace(program, registers=program.registers + len(lets), body=tuple(body))


def _conditions(
    lowered: Lowered, bounds: Sequence[int]
) -> tuple[list[Let], Mapping[int, Register]]:
    """What computes, for each of `bounds`, a register that is not 0 where the product of the open
    sizes is at most that."""
    program, graph = lowered.program, lowered.placed.graph
    lets: list[Let] = []

    def let(op: IntOp, a: int, b: int = 0) -> Register:
        lets.append(Let(program.registers + len(lets), op, a, b))
        return lets[-1].target

    ports = zip(graph.inputs, program.inputs, strict=True)
    pairs = (pair for v, port in ports for pair in zip(v.type.shape, port.dims, strict=True))
    registers = dict(pairs)
    # No factor exceeds what is compared, so that no product leaves the range.
    beyond, zero = let(IntOp.CONST, bounds[-1] + 1), let(IntOp.CONST, 0)
    factors = [let(IntOp.MIN, registers[size], beyond) for size in open_dims(graph)]
    product, *others = factors
    for factor in others:
        product = let(IntOp.MIN, let(IntOp.MUL, product, factor), beyond)
    least = {most: let(IntOp.SUB, let(IntOp.CONST, most + 1), product) for most in bounds}
    return lets, {most: let(IntOp.MAX, less, zero) for most, less in least.items()}
