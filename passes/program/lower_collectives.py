"""Lowers collectives, which the ranks of a comm compute together, to instructions."""

from __future__ import annotations

from tcc.ir.graph import Node
from tcc.ir.index import as_int, const, symbol
from tcc.ir.program import (
    Collective,
    CollectiveKind,
    IntOp,
    RankGroup,
    Reduction,
    Relation,
    Wait,
)
from tcc.ir.types import element_count
from tcc.ops.collective import CollectiveAttrs, collective_kind
from tcc.passes.program.lower_graph import GraphLowering

COLLECTIVES = frozenset({"rank", *(kind.name.lower() for kind in CollectiveKind)})


def _group(frame: GraphLowering, attrs: CollectiveAttrs) -> int:
    """Returns the index of a collective's group of ranks in the program's table; -1 for all ranks.

    Adds a new group to the table.
    """
    if not attrs.members:
        return -1
    groups = frame.context.groups
    return groups.setdefault(RankGroup(attrs.group, attrs.members), len(groups))


def lower_rank(frame: GraphLowering, node: Node) -> None:
    """Emits the store of this rank's number to the node's result."""
    register = frame.computed(IntOp.RANK)
    frame.registers.bind(name := f"rank.{register}", register)
    frame.store_size(symbol(name), frame.define(node.result))


def lower_collective(frame: GraphLowering, node: Node) -> None:
    """Emits the start of a collective and its wait.

    First emits checks that no block has a negative size, and that the blocks are all rows of the
    operand.
    """
    attrs: CollectiveAttrs = node.attrs
    kind, (x,), (y,) = collective_kind(node.op.name), node.inputs, node.outputs
    assert x is not None
    first, *inner_dims = x.shape or (const(1),)
    blocks = attrs.ranks if kind.sends_blocks else 1
    rows = attrs.rows or (first // blocks,) * blocks
    for n in dict.fromkeys(attrs.rows):
        if as_int(n) is None:
            message = f"{node.loc}: a block has less than no rows"
            frame.check(Relation.LE, frame.size(0), frame.size(n), message)
    due = sum(rows[:blocks], const(0))
    if as_int(due - first) != 0:
        message = f"{node.loc}: the blocks for {attrs.ranks} ranks must be all rows of {x.name}"
        frame.check(Relation.EQ, frame.size(due), frame.size(first), message)
    if len({*rows}) == 1:
        rows = rows[:1]
    start = Collective(
        kind,
        Reduction[attrs.reduction.upper()],
        frame.read(x),
        frame.define(y),
        tuple(frame.size(element_count((n, *inner_dims))) for n in rows),
        x.dtype,
        attrs.ranks,
        attrs.root,
        group=_group(frame, attrs),
    )
    frame.out += (start, Wait(start.ticket, start.send, start.receive))
