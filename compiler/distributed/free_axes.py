"""The strategies of host functions, which have no expression: their rows name free axes.

    %values, %places = top_k(%x : f32[8, 100]) {axis=1}     split(0) -> split(0), split(0)

The elements along a free axis are computed independently of one another, so a rank that has a block
of it calls the same function with smaller operands.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tcc.distributed.sharding import WHOLE, Sharding, Split, even, local_type
from tcc.distributed.strategies import Strategy, Wish, can_be_whole, whole
from tcc.ir.graph import Node, types_of
from tcc.ir.op import Axes, Types
from tcc.zipped import zip_equal


def free_strategies(
    node: Node, ranks: int, results: Sequence[Wish], operands: Sequence[Wish]
) -> tuple[Strategy, ...]:
    """Returns the strategies of a node without expression on `ranks` ranks, `whole` first.

    `results` and `operands` are splits that other nodes need or have, as `strategies` takes them.
    """
    types = types_of(node.inputs)
    outputs = [value.type for value in node.outputs]
    strategies = {whole(len(types), len(outputs)): None}
    for axes in node.op.free_axes(types, node.attrs) if node.op.free_axes else ():
        wishes = (*_along(axes.operands, operands), *_along(axes.results, results))
        number = next(n for n, axis in enumerate(axes.results) if axis is not None)
        size = outputs[number].shape[axes.results[number] or 0]
        for split in dict.fromkeys((even(size, ranks), *wishes)):
            strategy = Strategy(_splits(axes.operands, split), _splits(axes.results, split))
            if _has_blocks(types, strategy.operands, ranks) and all(
                can_be_whole(sharding, type.dtype)
                for sharding, type in zip_equal(strategy.results, outputs)
            ):
                strategies[strategy] = None
    return tuple(strategies)


def _along(axes: Axes, wishes: Iterable[Wish]) -> Iterator[Split]:
    """Yields the splits along `axes`, as splits of axis 0."""
    for number, split in wishes:
        if axes[number] == split.axis:
            yield replace(split, axis=0)


def _splits(axes: Axes, split: Split) -> tuple[Sharding, ...]:
    return tuple(WHOLE if axis is None else replace(split, axis=axis) for axis in axes)


def _has_blocks(types: Types, operands: Sequence[Sharding], ranks: int) -> bool:
    """True if every rank can have its block of each operand.

    Integers have no padding: the function might take it for places.
    """
    for type, sharding in zip_equal(types, operands):
        if type is None or not isinstance(sharding, Split):
            continue
        try:
            local_type(type, sharding, ranks)
        except ValueError:
            return False
        if sharding.block and not type.dtype.is_float:
            return False
    return True
