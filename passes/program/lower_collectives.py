"""Nodes that the ranks of a comm compute together become instructions of the program."""

from __future__ import annotations

from tcc.errors import InternalError
from tcc.ir.graph import Node
from tcc.ir.index import as_int, const, symbol
from tcc.ir.program import (
    Check,
    Collective,
    CollectiveKind,
    IntOp,
    Let,
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
    """The number of the group of a collective, which is added where it is new."""
    if not attrs.members:
        return -1
    groups = frame.context.groups
    return groups.setdefault(RankGroup(attrs.group, attrs.members), len(groups))


def lower_rank(frame: GraphLowering, node: Node) -> None:
    """The number of this process, from a register to memory."""
    register = frame.registers.fresh()
    frame.out.append(Let(register, IntOp.RANK))
    frame.registers.bind(name := f"rank.{register}", register)
    frame.store_size(symbol(name), frame.define(node.outputs[0]))


def lower_collective(frame: GraphLowering, node: Node) -> None:
    """A start, and a wait behind it; that blocks of open sizes are equal is checked before."""
    attrs: CollectiveAttrs = node.attrs
    kind, (x,), (y,) = collective_kind(node.op.name), node.inputs, node.outputs
    if x is None:
        raise InternalError(f"{node.op.name} has no operand", where=node.loc)
    if kind.sends_blocks and as_int(x.type.shape[0]) is None:
        ranks, first = frame.size(const(attrs.ranks)), frame.size(x.type.shape[0])
        message = f"{node.loc}: axis 0 of {x.name} must be a multiple of the number of ranks"
        frame.out.append(Check(Relation.DIVIDES, ranks, first, message))
    count = element_count((x if kind.receives_blocks else y).type.shape)
    if kind is CollectiveKind.ALL_TO_ALL:
        count = count // attrs.ranks
    start = Collective(
        kind,
        Reduction[attrs.reduction.upper()],
        frame.read(x),
        frame.define(y),
        frame.size(count),
        x.type.dtype,
        attrs.ranks,
        attrs.root,
        group=_group(frame, attrs),
    )
    frame.out += (start, Wait(start.ticket, start.send, start.receive))
