"""Lowers the numbers that random nodes read: the run's seed, stream numbers and trip numbers.

    %s = run_seed()      r0 = seed() ; launch store(r0) -> s

A stream number tells the random nodes of a model apart, and a trip number the iterations of a loop.
All ranks take the seed of rank 0.  Each number is stored from a register and is not a part of any
kernel, so that equal layers share kernels.
"""

from __future__ import annotations

from tcc.ir.graph import Node, walk_nodes
from tcc.ir.index import const, symbol
from tcc.ir.program import BufferId, Collective, CollectiveKind, IntOp, Reduction, Wait
from tcc.ir.types import I64
from tcc.passes.program.lower_collectives import COLLECTIVES
from tcc.passes.program.lower_graph import GraphLowering

_LEAST = -(1 << 63)


def _store(frame: GraphLowering, op: IntOp, target: BufferId, value: int = 0) -> None:
    """Emits `op` of `value`, and stores the integer result in the buffer `target`."""
    register = frame.computed(op, value)
    frame.registers.bind(name := f"random.{register}", register)
    frame.store_size(symbol(name, _LEAST), target)


def lower_run_seed(frame: GraphLowering, node: Node) -> None:
    """Emits the store of the run's seed.

    Each rank of a comm draws a seed, so all ranks take the seed of rank 0.
    """
    top = frame if frame.top is None else frame.top
    if not any(n.op.name in COLLECTIVES for n in walk_nodes(top.placed.graph)):
        return _store(frame, IntOp.SEED, frame.define(node.result))
    mine = frame.temporary(const(I64.bytes), "seed")
    _store(frame, IntOp.SEED, mine)
    target, one = frame.define(node.result), (frame.size(1),)
    kind, reduction = CollectiveKind.BROADCAST, Reduction.SUM
    start = Collective(kind, reduction, mine, target, one, I64, 0)
    frame.out += (start, Wait(start.ticket, mine, target))


def lower_stream_number(frame: GraphLowering, node: Node) -> None:
    _store(frame, IntOp.CONST, frame.define(node.result), node.attrs.number)


def lower_trip_number(frame: GraphLowering, node: Node) -> None:
    frame.store_size(frame.trip, frame.define(node.result))
