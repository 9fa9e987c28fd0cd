"""Which blocks are used only one element at a time, repeated over the lanes of a vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tcc.backends.cpu.contract import scalar_operands
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Loop,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
)


def wanted_as_scalars(body: Sequence[Stmt]) -> frozenset[Block]:
    """Blocks whose every use in `body` repeats single elements: best loaded as scalars."""
    wanted: dict[Block, bool] = {}
    for node in _every(body):
        scalars = scalar_operands(node) if isinstance(node, Contract) else ()
        for block in _operands(node):
            wanted[block] = wanted.get(block, True) and block in scalars
    return frozenset(block for block, scalar in wanted.items() if scalar)


def _every(body: Sequence[Stmt]) -> Iterator[Stmt]:
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from _every(node.body)
        elif isinstance(node, If):
            yield from _every(node.then)
            yield from _every(node.otherwise)


def _operands(node: Stmt) -> tuple[Block, ...]:
    """The blocks that a statement itself uses."""
    match node:
        case Contract():
            return node.acc, node.a, node.b
        case Loop():
            return *node.inits, *node.yields
        case Compute():
            return node.args
        case Reduce():
            return node.blocks
        case Broadcast() | Relayout():
            return (node.block,)
        case Store():
            return (node.block, *(block for _, block in node.indirect))
        case Load() | Prefetch():
            return tuple(block for _, block in node.indirect)
        case If() | Sync():
            return ()
