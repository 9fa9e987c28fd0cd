"""How blocks are wanted in registers: one element at a time, or in pairs of neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tcc.backends.cpu.contract import multiplies_pairs, scalar_operands
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
    for node in every(body):
        scalars = scalar_operands(node) if isinstance(node, Contract) else ()
        for block in _operands(node):
            wanted[block] = wanted.get(block, True) and block in scalars
    return frozenset(block for block, scalar in wanted.items() if scalar)


def wanted_as_pairs(body: Sequence[Stmt]) -> frozenset[Block]:
    """Loaded blocks of bf16 that only contractions of pairs use."""
    statements = list(every(body))
    loaded = {node.out for node in statements if isinstance(node, Load)}
    paired = [n for n in statements if isinstance(n, Contract) and multiplies_pairs(n)]
    while True:
        others = [n for n in statements if n not in paired]
        single = {block for n in others for block in _operands(n)}
        free = loaded - single - ({n.a for n in paired} & {n.b for n in paired})
        kept = [n for n in paired if {n.a, n.b} <= free]
        if len(kept) == len(paired):
            return frozenset(block for n in paired for block in (n.a, n.b))
        paired = kept


def every(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """All statements of `body`, outer ones before what they hold."""
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from every(node.body)
        elif isinstance(node, If):
            yield from every(node.then)
            yield from every(node.otherwise)


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
