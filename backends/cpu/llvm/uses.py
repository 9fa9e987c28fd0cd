"""How blocks are wanted in registers: one element at a time, or in words of neighbours."""

from collections.abc import Sequence

from tcc.backends.cpu.llvm.contract import multiplies_words, scalar_operands
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
    walk_statements,
)
from tcc.target import Profile


def wanted_as_scalars(body: Sequence[Stmt]) -> frozenset[Block]:
    """Blocks whose every use in `body` repeats single elements: best loaded as scalars."""
    wanted: dict[Block, bool] = {}
    for node in walk_statements(body):
        scalars = scalar_operands(node) if isinstance(node, Contract) else ()
        for block in _operands(node):
            wanted[block] = wanted.get(block, True) and block in scalars
    return frozenset(block for block, scalar in wanted.items() if scalar)


def wanted_as_words(body: Sequence[Stmt], profile: Profile) -> frozenset[Block]:
    """Loaded blocks that only contractions of words use."""
    statements = list(walk_statements(body))
    loaded = {node.out for node in statements if isinstance(node, Load)}
    joined = [n for n in statements if isinstance(n, Contract) and multiplies_words(n, profile)]
    while True:
        others = [n for n in statements if n not in joined]
        single = {block for n in others for block in _operands(n)}
        free = loaded - single - ({n.a for n in joined} & {n.b for n in joined})
        kept = [n for n in joined if {n.a, n.b} <= free]
        if len(kept) == len(joined):
            return frozenset(block for n in joined for block in (n.a, n.b))
        joined = kept


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
