"""Converters of com.microsoft's collectives over all ranks of a run.

ONNX Runtime has one group, of all ranks: `group_size` is its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.frontends.onnx.context import Converter, NodeContext, Results, named
from tcc.frontends.operand import Operand, Refusal


def _operand(ctx: NodeContext, *supported: str) -> Operand:
    """Returns the only input.

    All ranks take part: a node may state the number of ranks, but may not select some of them.
    """
    unsupported = sorted({a.name for a in ctx.node.attribute} - {*supported})
    if unsupported or len(ctx.inputs) != 1:
        raise Refusal(f"{len(ctx.inputs)} inputs and attributes {unsupported} are not supported")
    return ctx.input(0)


def _all_reduce(ctx: NodeContext) -> Results:
    return _operand(ctx).all_reduce()


def _all_gather(ctx: NodeContext, *, group_size: int = 1) -> Results:
    """Gathers all ranks' operands along `axis`, which is moved to the front and back."""
    x = _operand(ctx, "axis", "group_size")
    axis = ctx.axis_of("axis", x.rank, 1)
    return x.moved(axis, 0).all_gather(ranks=group_size).moved(0, axis)


def _all_to_all(ctx: NodeContext, *, group_size: int = 1) -> Results:
    return _operand(ctx, "group_size").all_to_all(ranks=group_size)


CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        **named(_all_reduce, _all_gather, _all_to_all),
    }
)
