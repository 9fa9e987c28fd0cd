"""Chooses the storage order of values between kernels, by the prices of the kernels.

    kernels                          order by the rule of assign    cheaper order
    conv -> conv of one filter       channels last                  row-major: vectors along rows
    k = x @ w ; q[i, d] * k[j, d]    row-major                      d outermost: vectors along j

Requires layouts.  The layout that `assign` chose by its rule is the first alternative for each
value.  Other alternatives are row-major order, and orders with an axis innermost along which a
kernel may run its vectors.  Kernels are priced as they would be scheduled.  Another order than the
rule's must save more than the error of prices.  Establishes other orders of the same storage
dimensions, with their halos, for values that only kernels see.

If a value is computed point by point from another value, the two have the same order.  The parts of
a value have its order.  A class is a set of values that must have one order.  The price of a class
is the price of the kernels that read or write its values.  Classes that share kernels are chosen
together.

Afterwards, a copy may become the first stage of the only kernel that reads it, if that takes less
time.  An example is a copy that pads a caller's input.
"""

from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any, TypeAlias

from tcc.frozen import entity
from tcc.ir.expr import Expr, Stage, inserted, reads, with_sources
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import Read, StageRef, read_from
from tcc.ir.graph import Graph, Value
from tcc.ir.index import Index, as_int, free_vars, var_of
from tcc.ir.layout import Layout, axis_order
from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.choose.content import site
from tcc.passes.choose.together import forced_numbers, numbered, settle_all
from tcc.passes.layout.assign import Kernel, Placed, on_others, operand_reads, pinned_values
from tcc.passes.tile.plan import KernelChooser, KernelKey, kernel_key
from tcc.schedule.alternatives import (
    IMPOSSIBLE,
    NO_TIME,
    Alternative,
    Seconds,
    cheapest_first,
    lower,
    saves,
)
from tcc.schedule.margins import MARGINS
from tcc.schedule.open_sizes import Times, mean_share, together
from tcc.zipped import zip_equal

# Prices have errors, so _MARGIN * min(price of the order, price of the rule's order) is added to
# the price of each order but the rule's.
_MARGIN = MARGINS["storage order"].saves
# A class keeps the rule's order if its kernels take fewer seconds.
_LEAST = Seconds(1e-5)
# The most kernels of a graph that are priced with other orders than the rule's.
BUDGET = 256
# Values whose elements have fewer bits keep their order, because they are rounded, and rounding
# depends on neighbours in storage.
_WHOLE = 32

# The logical axes of a value, in the order of storage, outermost first.
Order: TypeAlias = tuple[int, ...]


@entity
class _Class:
    """A class: values that must have one storage order.

    `orders` are the possible orders, the rule's order first.  `kernels` read or write the values.
    """

    values: tuple[Value, ...]
    orders: tuple[Order, ...]
    kernels: tuple[Kernel, ...]


def choose_layouts(
    placed: Placed, planner: KernelChooser, outer: Mapping[Value, Graph] | None = None
) -> Placed:
    """Returns `placed` with the cheapest storage orders, and with copies merged into their readers.

    Returns `placed` itself if the planner has no prices of layouts.  If the graph is a loop's body,
    `outer` maps the constants of the graphs around it to those graphs.
    """
    if not planner.prices_layouts:
        return placed
    constants = placed.visible(outer)
    prices = _Prices(placed, planner, constants)
    classes = [c for c in _classes(placed) if len(c.orders) > 1]
    rule = {c: prices.total(c.kernels) for c in classes}
    classes = [c for c in classes if not saves(rule[c], _LEAST)]
    # Classes with the most expensive kernels come first, because the budget may run out.
    options = {c: prices.options(c) for c in cheapest_first(classes, lambda c: -rule[c])}
    links = dict(_links(classes, placed.kernels, prices))
    places, ledger = [options[c] for c in classes], planner.ledger
    sites = numbered(ledger, "order", lambda: [prices.content(c) for c in classes])
    forced = forced_numbers(ledger, sites, places)
    picks = choose_together(places, links, 0.0, forced)
    moves = [(class_, pick) for class_, pick in zip_equal(classes, picks) if pick]
    kernels = dict.fromkeys(k for class_, _ in moves for k in class_.kernels)
    # Links have prices for pairs of classes, but a kernel may have values of three classes. So the
    # moves are taken only if all of them together save time.
    if not saves(prices.total(kernels, *moves), prices.total(kernels)):
        picks = tuple(forced.get(place, 0) for place in range(len(classes)))
        moves = [(class_, pick) for class_, pick in zip_equal(classes, picks) if pick]
    choices = [options_[pick] for options_, pick in zip_equal(places, picks)]
    settle_all(ledger, sites, places, choices, [class_.values[0].name for class_ in classes])
    if moves:
        changed = (_layouts_in_order(class_, pick, placed.layouts) for class_, pick in moves)
        placed = replace(placed, layouts=reduce(or_, changed, dict(placed.layouts)))
        prices = _Prices(placed, planner, constants)
    return prices.with_merged_copies(placed)


# ---- prices -------------------------------------------------------------------------------------


class _Prices:
    """Prices kernels with the layouts of the rule, where some classes have other storage orders."""

    def __init__(
        self, placed: Placed, planner: KernelChooser, constants: Collection[Value]
    ) -> None:
        self._planner, self._constants = planner, constants
        self._layouts = dict(placed.layouts)
        self._keys: set[KernelKey] = set()
        # The total time of all kernels at each set of sizes.
        self._base = self._times(placed.kernels)
        self._limit = len(self._keys) + BUDGET

    @property
    def spent(self) -> bool:
        """Returns True if as many kernels have been priced as the budget allows."""
        return len(self._keys) >= self._limit

    def total(self, kernels: Iterable[Kernel], *moves: tuple[_Class, int]) -> Seconds:
        """Returns the price of `kernels`, with the classes of `moves` in other orders.

        A move is (class, index of the new order in `class.orders`).  The price is the kernels' mean
        share of the graph's time, over all sets of sizes, multiplied by the graph's seconds at
        typical sizes.
        """
        return mean_share(self._times(kernels, *moves), self._base)

    def _times(self, kernels: Iterable[Kernel], *moves: tuple[_Class, int]) -> Times:
        changed = (_layouts_in_order(class_, pick, self._layouts) for class_, pick in moves)
        layouts = ChainMap(*changed, self._layouts)
        keys = [kernel_key(k, layouts, self._constants) for k in kernels]
        self._keys.update(keys)
        return together(map(self._planner.times_of, keys))

    def with_merged_copies(self, placed: Placed) -> Placed:
        """Returns `placed` with copies merged into their only readers, where that takes less time.

        An example is the copy that pads an input.
        """
        operands = (v for s in placed.steps if s.kernel for v in s.kernel.operands)
        uses = Counter((*pinned_values(placed), *placed.containers, *operands))
        producers: dict[Value, Kernel] = {}
        merged = set()

        def taking(kernel: Kernel) -> Kernel:
            if kernel.condition is not None:
                return kernel
            for first in [producers[v] for v in kernel.operands if v in producers and uses[v] == 1]:
                joint = _joined(first, kernel)
                if joint is not None and self._joins(first, kernel, joint):
                    merged.add(first)
                    return taking(joint)
            producers[kernel.results[0]] = kernel
            return kernel

        remaining = tuple(s for s in placed.with_kernels(taking) if s.kernel not in merged)
        return replace(placed, steps=remaining) if merged else placed

    def _joins(self, first: Kernel, reader: Kernel, joint: Kernel) -> bool:
        """Returns True if `joint` can replace both kernels, and if the decision is to do so."""
        if not self._planner.legal(joint.expr, [v in self._constants for v in joint.operands]):
            return False
        return not self._planner.ledger.either(
            lambda: site("copy", self._key(first), self._key(reader)),
            ("apart", [self.total((first, reader))]),
            ("joined", lambda: [self.total((joint,))]),
            place=first.loc,
        )

    def _key(self, kernel: Kernel) -> KernelKey:
        return kernel_key(kernel, self._layouts, self._constants)

    def content(self, class_: _Class) -> tuple[Any, ...]:
        """Returns (orders, kernels, places), the key of a class in the site of a decision.

        `orders` are the possible storage orders of the class's values, and `kernels` are the keys
        of the kernels that read or write the values. `places` has for each kernel the positions of
        the values among its operands and results.
        """
        members = set(class_.values)
        places = tuple(
            tuple(n for n, v in enumerate((*k.operands, *k.results)) if v in members)
            for k in class_.kernels
        )
        return class_.orders, tuple(map(self._key, class_.kernels)), places

    def options(self, class_: _Class) -> tuple[Alternative[Order], ...]:
        """Returns the orders of a class, each with its seconds minus those of the rule's order.

        The seconds are negative if an order saves time.  They include a margin for the error of
        prices.
        """
        rule = self.total(class_.kernels)
        alternatives = [Alternative(class_.orders[0], NO_TIME)]
        for n, order in enumerate(class_.orders[1:], 1):
            price = IMPOSSIBLE if self.spent else self.total(class_.kernels, (class_, n))
            grown = price - rule + _MARGIN * lower(price, rule)
            alternatives.append(Alternative(order, grown))
        return tuple(alternatives)


def _joined(first: Kernel, reader: Kernel) -> Kernel | None:
    """Returns a kernel whose first stage is the copy `first`, and whose other stages are `reader`.

    Returns None if `first` is not a copy, or pads a value of symbolic size.  With symbolic sizes,
    each element would be tested, which prices do not count: 3x3 convolutions of 64 and 128 channels
    took 1.7 and 2.6 times as long.
    """
    match first:
        case Kernel(
            Expr(stages=(Stage(monoid=None, body=(Read() as node,)) as copy,)), (source,), (copied,)
        ) if node.fill is None or all(as_int(n) is not None for n in source.shape):
            number = reader.operands.index(copied)
            copy = with_sources(copy, lambda _: number)
            merged = on_others(
                reader, {copied: source}, lambda node, _: read_from(node, StageRef(-1))
            )
            return replace(merged, expr=canonical(inserted(merged.expr, 0, copy)))
    return None


def _links(
    classes: Sequence[_Class], kernels: Iterable[Kernel], prices: _Prices
) -> Iterator[tuple[tuple[int, int], Link]]:
    """Yields ((a, b), link) for each pair of classes whose values one of `kernels` accesses.

    a < b are the indices of the classes in `classes`, and `link` is a function as `_link` returns
    it.
    """
    touching: dict[Kernel, list[int]] = {kernel: [] for kernel in kernels}
    for number, class_ in enumerate(classes):
        for kernel in class_.kernels:
            touching[kernel].append(number)
    shared: dict[tuple[int, int], list[Kernel]] = {}
    for kernel, numbers in touching.items():
        for pair in combinations(numbers, 2):
            shared.setdefault(pair, []).append(kernel)
    for a, b in sorted(shared):
        yield (a, b), _link(classes[a], classes[b], shared[a, b], prices)


def _link(first: _Class, second: _Class, shared: Sequence[Kernel], prices: _Prices) -> Link:
    """Returns the function link(i, j), for the indices of an order of `first` and of `second`.

    link(i, j) = price(i, j) - price(i, 0) - price(0, j) + price(0, 0), where price(i, j) is the
    price of the `shared` kernels with order i of `first` and order j of `second`.  Order 0 is the
    rule's order.
    """
    extra: dict[tuple[int, int], Seconds] = {}

    def beyond(a: int, b: int) -> Seconds:
        if not a or not b:
            return NO_TIME
        if prices.spent and (a, b) not in extra:
            return IMPOSSIBLE
        if (a, b) not in extra:
            joint = prices.total(shared, (first, a), (second, b))
            separate = prices.total(shared, (first, a)) + prices.total(shared, (second, b))
            extra[a, b] = joint - separate + prices.total(shared)
        return extra[a, b]

    return beyond


# ---- classes ------------------------------------------------------------------------------------


def _classes(placed: Placed) -> list[_Class]:
    """Returns the classes whose storage order may change, in the order of the kernels that store
    them."""
    kernels = placed.kernels
    fixed = pinned_values(placed)
    kernel_values = dict.fromkeys(
        (*(v for k in kernels for v in k.results), *placed.containers.values())
    )
    orders = {v: _order_of(v, placed.layouts[v]) for v in kernel_values if v not in fixed}
    heads: dict[Value, Value] = {v: v for v in kernel_values}
    for a, b in (*placed.containers.items(), *_followers(kernels, orders)):
        heads[_head(heads, b)] = _head(heads, a)
    members: dict[Value, list[Value]] = {}
    for value in kernel_values:
        members.setdefault(_head(heads, value), []).append(value)
    touching: dict[Value, dict[Kernel, None]] = {}
    for kernel in kernels:
        for value in (*kernel.operands, *kernel.results):
            if value in heads:
                touching.setdefault(_head(heads, value), {})[kernel] = None
    layout_classes = []
    for head, values in members.items():
        order = orders.get(values[0])
        if order is not None and all(orders.get(v) == order for v in values):
            touched = tuple(touching.get(head, ()))
            proposed = _proposed(values, touched, placed.layouts)
            layout_classes.append(_Class(tuple(values), proposed, touched))
    return layout_classes


def _head(heads: Mapping[Value, Value], value: Value) -> Value:
    while heads[value] is not value:
        value = heads[value]
    return value


def _order_of(value: Value, where: Layout) -> Order | None:
    """Returns the order of a value's axes in storage; None if it cannot be changed.

    It cannot be changed if a storage dimension is not an axis, or if elements have fewer bits than
    `_WHOLE`.
    """
    if len(where.sizes) != value.rank or value.dtype.bits < _WHOLE:
        return None
    return axis_order(where)


def _followers(
    kernels: Sequence[Kernel], orders: Mapping[Value, Order | None]
) -> Iterator[tuple[Value, Value]]:
    """Yields (operand, result) where a kernel reads an operand at the indices of its result.

    The two have equal shapes and storage orders.
    """
    for kernel in kernels:
        for result, out in zip_equal(kernel.results, kernel.expr.outputs):
            stage = kernel.expr.stages[out.stage]
            for node in reads(stage):
                if not isinstance(node.source, int):
                    continue
                operand = kernel.operands[node.source]
                same_shape = operand.shape == result.shape
                order = orders.get(operand)
                if not same_shape or order is None or order != orders.get(result):
                    continue
                if all(var_of(i) is v for i, v in zip_equal(node.indices, stage.iters)):
                    yield operand, result


def _proposed(
    values: Sequence[Value], kernels: Sequence[Kernel], layouts: Mapping[Value, Layout]
) -> tuple[Order, ...]:
    """Returns the possible orders of a class, without duplicates.

    They are the rule's order, row-major order, and orders with another axis innermost, for each
    axis along which a kernel may run vectors.  Orders that differ only in axes of length 1 are
    equal.
    """
    shape = values[0].shape
    rule = _order_of(values[0], layouts[values[0]])
    assert rule is not None
    members = set(values)
    vector_axes = {axis for k in kernels for axis in _vector_axes(k, members, layouts)}
    inner = [(*(n for n in rule if n != axis), axis) for axis in sorted(vector_axes)]
    distinct: dict[Order, Order] = {}
    for order in (rule, tuple(range(len(rule)))):
        distinct.setdefault(_moving(shape, order), order)
    for order in inner:
        moving = _moving(shape, order)
        if all(moving[-1:] != other[-1:] for other in distinct):
            distinct[moving] = order
    return tuple(distinct.values())


def _moving(shape: Sequence[Index], order: Order) -> Order:
    """Returns `order` without the axes of length 1."""
    return tuple(n for n in order if as_int(shape[n]) != 1)


def _vector_axes(
    kernel: Kernel, values: Collection[Value], layouts: Mapping[Value, Layout]
) -> set[int]:
    """Returns the axes of `values` along which a kernel may run its vectors.

    The axis is indexed by a stage's last loop, or by a loop along which another value of the kernel
    is contiguous.
    """
    stages = kernel.expr.stages
    touched = [
        (value, [set(free_vars(i)) for i in node.indices])
        for _, node, value in operand_reads(kernel)
    ]
    results = zip_equal(kernel.results, kernel.expr.outputs)
    touched += [(v, [{i} for i in stages[out.stage].iters]) for v, out in results]
    along = {stage.iters[-1] for stage in stages if stage.iters}
    for value, places in touched:
        order = _order_of(value, layouts[value]) if value in layouts else None
        inner = _moving(value.shape, order or ())
        if value not in values and inner:
            along |= places[inner[-1]]
    places_of_class = (places for value, places in touched if value in values)
    return {
        axis for places in places_of_class for axis, loops in enumerate(places) if loops & along
    }


def _layouts_in_order(
    class_: _Class, pick: int, layouts: Mapping[Value, Layout]
) -> dict[Value, Layout]:
    """Returns the layouts of a class's values in the order `class_.orders[pick]`."""
    return {v: _ordered(v, layouts[v], class_.orders[pick]) for v in class_.values}


def _ordered(value: Value, where: Layout, order: Order) -> Layout:
    """Returns the layout `where` of a value with its dimensions in another order, each with its
    halo."""
    before = _order_of(value, where)
    assert before is not None
    dims = [before.index(axis) for axis in order]
    return replace(
        where,
        sizes=tuple(where.sizes[d] for d in dims),
        indices=tuple(where.indices[d] for d in dims),
    )
