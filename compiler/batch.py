"""Changes the batch of a model with fixed sizes, where every node computes samples independently.

    x : f32[1, 3, 224, 224]  ->  x : f32[4, 3, 224, 224]

The samples of the larger batch are like ranks that divide it: `tcc.distributed.strategies` proves
for each node that a block of its result along one axis follows from blocks of its operands by the
node of the original model. Constants and all attributes but target shapes stay, so each block of
the result has the values that the original model computes for its block of the inputs.
"""

from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from tcc.distributed.free_axes import free_strategies
from tcc.distributed.offers import expr_of
from tcc.distributed.sharding import WHOLE, Sharding, Split, Whole, local_type
from tcc.distributed.strategies import Strategy, strategies
from tcc.errors import UserError
from tcc.frontends import Called, load_called
from tcc.frozen import entity
from tcc.ir.graph import Graph, Node, Value, types_of, uses
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import result_types
from tcc.ops.shapes import replaced
from tcc.options import Options
from tcc.zipped import zip_equal

_HINT = "export the model with a symbolic batch; then one artifact serves every batch"


def load_batched(model: Any, options: Options) -> Called:
    """Returns `load_called` of a model for the options, with the batch that they name.

    Raises UserError for a model that cannot be read or used, and as `with_batch` does.
    """
    graph, form = load_called(
        model,
        dict(options.inputs),
        allow_pickle=options.allow_pickle,
        budgets=options.budgets,
        symbols=dict(options.buckets),
    )
    return (graph if options.batch is None else with_batch(graph, options.batch)), form


def with_batch(graph: Graph, batch: int) -> Graph:
    """Returns `graph` for `batch` samples along the first axis of its inputs.

    The model's own batch is the size of the first axis of its first input. Other inputs whose first
    axis has that size carry samples too. Raises UserError for a batch that is symbolic or that does
    not divide `batch`, and for a model with a node that mixes samples, whose name it says.
    """
    sizes = [value.shape[0] for value in graph.inputs if value.shape]
    samples = as_int(sizes[0]) if sizes else None
    if not samples:
        raise UserError(
            "the model has no fixed batch",
            where=f"--batch {batch}",
            why="the first axis of its first input is symbolic, or missing",
            hint="fix a symbolic size with --input NAME=SHAPE",
        )
    copies, remainder = divmod(batch, samples)
    if remainder:
        raise UserError(
            "the batch is no multiple of the model's",
            where=f"--batch {batch}",
            why=f"the model takes {samples} samples",
            hint=_HINT,
        )
    return _Batched(graph, samples, copies).graph() if copies > 1 else graph


@entity
class _Batched:
    """The values of a graph for `_copies` times its `_samples`, and the axis of the samples.

    `_splits` has the axis by the new value.
    """

    _graph: Graph
    _samples: int
    _copies: int
    _values: dict[Value, Value] = field(default_factory=dict)
    _splits: dict[Value, Sharding] = field(default_factory=dict)

    def graph(self) -> Graph:
        for value in self._graph.inputs:
            if value.shape and as_int(value.shape[0]) == self._samples:
                self._set(value, Split(0), self._scaled(value.shape, 0))
        nodes = tuple(map(self._node, self._graph.nodes))
        inputs, outputs = (
            tuple(self._values.get(v, v) for v in values)
            for values in (self._graph.inputs, self._graph.outputs)
        )
        aliases = tuple(
            (self._values.get(a, a), self._values.get(b, b)) for a, b in self._graph.aliases
        )
        return replace(self._graph, inputs=inputs, outputs=outputs, nodes=nodes, aliases=aliases)

    def _scaled(self, shape: tuple[Index, ...], axis: int) -> tuple[Index, ...]:
        return replaced(shape, axis, shape[axis] * const(self._copies))

    def _set(self, value: Value, sharding: Sharding, shape: tuple[Index, ...]) -> None:
        new = Value(value.name, replace(value.type, shape=shape))
        self._values[value], self._splits[new] = new, sharding

    def _node(self, node: Node) -> Node:
        if not any(value in self._values for value in uses(node)):
            return node
        inputs = tuple(v and self._values.get(v, v) for v in node.inputs)
        for attrs in self._attributes(node):
            try:
                types = result_types(node.op, types_of(inputs), attrs, node.loc)
            except UserError:
                continue
            outputs = tuple(map(Value, [v.name for v in node.outputs], types))
            new = replace(node, attrs=attrs, inputs=inputs, outputs=outputs)
            strategy = self._strategy(node, new)
            if strategy is not None:
                self._values.update(zip_equal(node.outputs, outputs))
                self._splits.update(zip_equal(outputs, strategy.results))
                return new
        raise UserError(
            "the batch of the model cannot be changed",
            where=node.loc,
            why=f"nothing proves that {node.op.name} computes each sample by itself",
            hint=_HINT,
        )

    def _attributes(self, node: Node) -> Iterator[Any]:
        """Yields the node's attributes, then attributes in which a target shape has more samples
        along one of its axes."""
        yield node.attrs
        shape = node.result.shape
        names = fields(node.attrs) if is_dataclass(node.attrs) else ()
        targets = [item.name for item in names if getattr(node.attrs, item.name) == shape]
        for axis in range(len(shape) if targets else 0):
            yield replace(node.attrs, **dict.fromkeys(targets, self._scaled(shape, axis)))

    def _strategy(self, node: Node, new: Node) -> Strategy | None:
        """Returns the strategy in which each block of samples is computed as by the old `node`."""
        operands = tuple(WHOLE if v is None else self._splits.get(v, WHOLE) for v in new.inputs)
        wishes = tuple((n, s) for n, s in enumerate(operands) if isinstance(s, Split))
        expr = expr_of(new)
        offers = (
            free_strategies(new, self._copies, (), wishes)
            if expr is None
            else strategies(expr, self._copies, (), wishes)
        )
        for strategy in offers:
            if strategy.operands == operands and not strategy.reduced and strategy.rows is None:
                pairs = zip_equal(node.outputs, new.outputs, strategy.results)
                if all(self._is_block(*pair) for pair in pairs):
                    return strategy
        return None

    def _is_block(self, old: Value, new: Value, sharding: Sharding) -> bool:
        """True if a block of `new` under `sharding` has the type of `old`."""
        if isinstance(sharding, Whole):
            return new.type == old.type
        if not isinstance(sharding, Split) or sharding.block or sharding.copies > 1:
            return False
        try:
            return local_type(new.type, sharding, self._copies) == old.type
        except ValueError:
            return False
