"""Chooses among storage orders of the values between kernels by what their kernels would take.

    conv -> conv of one filter     the rule: channels last; row-major, vectors run along rows
    k = x @ w ; q[i, d] * k[j, d]  the rule: row-major; d outside, vectors run along j

Proposed are row-major and each axis innermost that a kernel may run its vectors along; kernels are
priced as they are scheduled on them.
Requires layouts (`assign`), which are the first alternative everywhere: another one has
to save more than prices err by.  Establishes other orders of the same storage dimensions, halos
included, for values that only kernels see.  What is computed from a value point by point lies as it
does, and parts lie as their wholes: such a class of values has one order.  A class costs what the
kernels take that touch it; classes that share kernels are chosen together.

Then a copy, such as one with padding of what a caller gave, becomes the first stage of the kernel
that alone reads it, where that takes less.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from math import inf
from operator import or_
from typing import TypeAlias

from tcc.ir.expr import Expr, Stage, inserted, reads, with_sources
from tcc.ir.expr.scalar import Read, StageRef, read_from
from tcc.ir.graph import Value
from tcc.ir.index import Index, as_int, free_vars, var_of
from tcc.ir.layout import Layout, axis_order
from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.fuse.compose import canonical
from tcc.passes.layout.assign import Kernel, Placed, on_others, operand_reads, pinned_values
from tcc.passes.tile.plan import KernelKey, KernelPlanner, kernel_key
from tcc.record import entity
from tcc.schedule.alternatives import Alternative
from tcc.schedule.open_sizes import Times, mean_share, together

# By how much of its kernels' price, or of the rule's where that is less, another order counts as
# dearer: prices err.
_MARGIN = 0.1
# Seconds of a class's kernels below which nothing is tried.
_LEAST = 1e-5
# Kernels of a graph that are priced with other orders than the rule's.
BUDGET = 256
# Bits of an element that was not rounded: what was counts on its neighbours in storage.
_WHOLE = 32

# The logical axes of a value, outermost in storage first.
Order: TypeAlias = tuple[int, ...]


@entity
class _Class:
    """Values that have one order, the rule's first, and the kernels that touch them."""

    values: tuple[Value, ...]
    orders: tuple[Order, ...]
    kernels: tuple[Kernel, ...]


def choose_layouts(placed: Placed, planner: KernelPlanner, constants: Collection[Value]) -> Placed:
    """`placed` with the orders that its kernels are predicted to be fastest with, and copies made
    by those that read them; without prices, `placed` itself.  `constants` are those of the graph
    and the graphs around it."""
    if not planner.prices_layouts:
        return placed
    prices = _Prices(placed, planner, constants)
    classes = [c for c in _classes(placed) if len(c.orders) > 1]
    rule = {c: prices.total(c.kernels) for c in classes}
    classes = [c for c in classes if rule[c] >= _LEAST]
    # The largest classes are priced before the budget ends.
    options = {c: prices.options(c) for c in sorted(classes, key=lambda c: -rule[c])}
    links = dict(_links(classes, placed.kernels, prices))
    picks = choose_together([options[c] for c in classes], links, 0.0)
    taken = [(found, pick) for found, pick in zip(classes, picks, strict=True) if pick]
    touched = dict.fromkeys(k for found, _ in taken for k in found.kernels)
    # Links know pairs; a kernel may touch three classes.
    if prices.total(touched, *taken) < prices.total(touched):
        changed = (_moved(found, pick, placed.layouts) for found, pick in taken)
        placed = replace(placed, layouts=reduce(or_, changed, dict(placed.layouts)))
        prices = _Prices(placed, planner, constants)
    return prices.joined(placed)


# ---- prices -------------------------------------------------------------------------------------


class _Prices:
    """What kernels take under the rule's layouts and with some classes moved."""

    def __init__(
        self, placed: Placed, planner: KernelPlanner, constants: Collection[Value]
    ) -> None:
        self._planner, self._constants = planner, constants
        self._layouts = dict(placed.layouts)
        self._keys: set[KernelKey] = set()
        # What all kernels take at each set of sizes.
        self._whole = self._times(placed.kernels)
        self._most = len(self._keys) + BUDGET

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return len(self._keys) >= self._most

    def total(self, kernels: Iterable[Kernel], *moved: tuple[_Class, int]) -> float:
        """Seconds of `kernels` with each class of `moved` in its order of that number; at other
        sets of sizes than the typical one, their share of the whole graph's."""
        return mean_share(self._times(kernels, *moved), self._whole)

    def _times(self, kernels: Iterable[Kernel], *moved: tuple[_Class, int]) -> Times:
        changed = (_moved(found, pick, self._layouts) for found, pick in moved)
        layouts = ChainMap(*changed, self._layouts)
        keys = [kernel_key(k, layouts, self._constants) for k in kernels]
        self._keys.update(keys)
        return together(map(self._planner.times_of, keys))

    def joined(self, placed: Placed) -> Placed:
        """`placed` with copies, as padded ones of inputs, made by the kernels that alone read them
        where that takes less."""
        operands = (v for s in placed.steps if s.kernel for v in s.kernel.operands)
        used = Counter((*pinned_values(placed), *placed.wholes, *operands))
        made: dict[Value, Kernel] = {}
        gone = set()

        def taking(kernel: Kernel) -> Kernel:
            if kernel.condition is not None:
                return kernel
            for first in [made[v] for v in kernel.operands if v in made and used[v] == 1]:
                both = _joined(first, kernel)
                if (
                    both is not None
                    and self._planner.legal(
                        both.expr, [v in self._constants for v in both.operands]
                    )
                    and self.total((both,)) < self.total((first, kernel))
                ):
                    gone.add(first)
                    return taking(both)
            made[kernel.results[0]] = kernel
            return kernel

        steps = placed.with_kernels(taking)
        left = tuple(s for s in steps if s.kernel not in gone)
        return replace(placed, steps=left) if gone else placed

    def options(self, found: _Class) -> tuple[Alternative[_Class, Order], ...]:
        """The orders of a class, and by how much its kernels' time grows."""
        rule = self.total(found.kernels)
        alternatives = [Alternative(found, found.orders[0], 0.0)]
        for n, order in enumerate(found.orders[1:], 1):
            moved = inf if self.spent else self.total(found.kernels, (found, n))
            grown = moved - rule + _MARGIN * min(moved, rule)
            alternatives.append(Alternative(found, order, grown))
        return tuple(alternatives)


def _joined(first: Kernel, reader: Kernel) -> Kernel | None:
    """`reader` with the copy that `first` makes as its first stage; None where that is none, or
    where it fills a border of open size.

    Each element is tested at such a border, which prices do not count: 3x3 convolutions of 64 and
    128 channels took 1.7 and 2.6 times as long so."""
    match first:
        case Kernel(
            Expr(stages=(Stage(monoid=None, body=(Read() as node,)) as copy,)), (source,), (made,)
        ) if node.fill is None or all(as_int(n) is not None for n in source.type.shape):
            number = reader.operands.index(made)
            copy = with_sources(copy, lambda _: number)
            on = on_others(reader, {made: source}, lambda node, _: read_from(node, StageRef(-1)))
            return replace(on, expr=canonical(inserted(on.expr, 0, copy)))
    return None


def _links(
    classes: Sequence[_Class], kernels: Iterable[Kernel], prices: _Prices
) -> Iterator[tuple[tuple[int, int], Link]]:
    """Of the pairs of classes that share some of `kernels`."""
    touching: dict[Kernel, list[int]] = {kernel: [] for kernel in kernels}
    for number, found in enumerate(classes):
        for kernel in found.kernels:
            touching[kernel].append(number)
    shared: dict[tuple[int, int], list[Kernel]] = {}
    for kernel, numbers in touching.items():
        for pair in combinations(numbers, 2):
            shared.setdefault(pair, []).append(kernel)
    for a, b in sorted(shared):
        yield (a, b), _link(classes[a], classes[b], shared[a, b], prices)


def _link(first: _Class, second: _Class, shared: Sequence[Kernel], prices: _Prices) -> Link:
    """What two moved classes take together beyond what each takes alone."""
    known: dict[tuple[int, int], float] = {}

    def beyond(a: int, b: int) -> float:
        if not a or not b:
            return 0.0
        if prices.spent and (a, b) not in known:
            return inf
        if (a, b) not in known:
            both = prices.total(shared, (first, a), (second, b))
            alone = prices.total(shared, (first, a)) + prices.total(shared, (second, b))
            known[a, b] = both - alone + prices.total(shared)
        return known[a, b]

    return beyond


# ---- classes ------------------------------------------------------------------------------------


def _classes(placed: Placed) -> list[_Class]:
    """The values whose order is ours to choose, in the order in which kernels store them."""
    kernels = placed.kernels
    fixed = pinned_values(placed)
    made = dict.fromkeys((*(v for k in kernels for v in k.results), *placed.wholes.values()))
    orders = {v: _order_of(v, placed.layouts[v]) for v in made if v not in fixed}
    heads: dict[Value, Value] = {v: v for v in made}
    for a, b in (*placed.wholes.items(), *_followers(kernels, orders)):
        heads[_head(heads, b)] = _head(heads, a)
    classes: dict[Value, list[Value]] = {}
    for value in made:
        classes.setdefault(_head(heads, value), []).append(value)
    touching: dict[Value, dict[Kernel, None]] = {}
    for kernel in kernels:
        for value in (*kernel.operands, *kernel.results):
            if value in heads:
                touching.setdefault(_head(heads, value), {})[kernel] = None
    found = []
    for head, values in classes.items():
        order = orders.get(values[0])
        if order is not None and all(orders.get(v) == order for v in values):
            touched = tuple(touching.get(head, ()))
            proposed = _proposed(values, touched, placed.layouts)
            found.append(_Class(tuple(values), proposed, touched))
    return found


def _head(heads: Mapping[Value, Value], value: Value) -> Value:
    while heads[value] is not value:
        value = heads[value]
    return value


def _order_of(value: Value, where: Layout) -> Order | None:
    """The order of a value's axes in storage; None where its dimensions are not its axes."""
    if len(where.sizes) != value.type.rank or value.type.dtype.bits < _WHOLE:
        return None
    return axis_order(where)


def _followers(
    kernels: Sequence[Kernel], orders: Mapping[Value, Order | None]
) -> Iterator[tuple[Value, Value]]:
    """Values of equal shape and order of which a kernel computes one from the other point by
    point."""
    for kernel in kernels:
        for result, out in zip(kernel.results, kernel.expr.outputs, strict=True):
            stage = kernel.expr.stages[out.stage]
            for node in reads(stage):
                if not isinstance(node.source, int):
                    continue
                operand = kernel.operands[node.source]
                same = operand.type.shape == result.type.shape
                order = orders.get(operand)
                if not same or order is None or order != orders.get(result):
                    continue
                if all(var_of(i) is v for i, v in zip(node.indices, stage.iters, strict=True)):
                    yield operand, result


def _proposed(
    values: Sequence[Value], kernels: Sequence[Kernel], layouts: Mapping[Value, Layout]
) -> tuple[Order, ...]:
    """Orders for a class: the rule's; row-major; and, if neither has it there, each axis innermost
    along which one of the kernels may run vectors.  Axes of one element lie anywhere."""
    shape = values[0].type.shape
    rule = _order_of(values[0], layouts[values[0]])
    assert rule is not None
    own = set(values)
    wanted = {axis for k in kernels for axis in _vector_axes(k, own, layouts)}
    inner = [(*(n for n in rule if n != axis), axis) for axis in sorted(wanted)]
    distinct: dict[Order, Order] = {}
    for order in (rule, tuple(range(len(rule)))):
        distinct.setdefault(_moving(shape, order), order)
    for order in inner:
        moving = _moving(shape, order)
        if all(moving[-1:] != known[-1:] for known in distinct):
            distinct[moving] = order
    return tuple(distinct.values())


def _moving(shape: Sequence[Index], order: Order) -> Order:
    """`order` without the axes of one element."""
    return tuple(n for n in order if as_int(shape[n]) != 1)


def _vector_axes(
    kernel: Kernel, values: Collection[Value], layouts: Mapping[Value, Layout]
) -> set[int]:
    """The axes of `values` that a stage's last loop walks, or a loop along which neighbours of
    another value of the kernel lie."""
    stages = kernel.expr.stages
    touched = [
        (value, [set(free_vars(i)) for i in node.indices])
        for _, node, value in operand_reads(kernel)
    ]
    made = zip(kernel.results, kernel.expr.outputs, strict=True)
    touched += [(v, [{i} for i in stages[out.stage].iters]) for v, out in made]
    along = {stage.iters[-1] for stage in stages if stage.iters}
    for value, places in touched:
        order = _order_of(value, layouts[value]) if value in layouts else None
        inner = _moving(value.type.shape, order or ())
        if value not in values and inner:
            along |= places[inner[-1]]
    own = (places for value, places in touched if value in values)
    return {axis for places in own for axis, loops in enumerate(places) if loops & along}


def _moved(found: _Class, pick: int, layouts: Mapping[Value, Layout]) -> dict[Value, Layout]:
    """The layouts of a class in its order number `pick`."""
    return {v: _ordered(v, layouts[v], found.orders[pick]) for v in found.values}


def _ordered(value: Value, where: Layout, order: Order) -> Layout:
    """`where` with its dimensions in another order, each with its halo."""
    before = _order_of(value, where)
    assert before is not None
    dims = [before.index(axis) for axis in order]
    return replace(
        where,
        sizes=tuple(where.sizes[d] for d in dims),
        indices=tuple(where.indices[d] for d in dims),
    )
