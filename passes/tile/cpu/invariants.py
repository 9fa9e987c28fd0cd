"""Moves costly values that are equal in every iteration of a loop to a place before the loop.

    for j: y[j] = x[j] - log(s)        ->        l = log(s) ; for j: y[j] = x[j] - l

LLVM moves single instructions, but not a function such as log, which is many instructions.
"""

from collections.abc import Sequence
from dataclasses import replace

from tcc.ir.expr.scalar import index_values, walk
from tcc.ir.index import Var, free_vars
from tcc.ir.tile import (
    Block,
    Compute,
    If,
    Load,
    Relayout,
    Stmt,
    Stmts,
    Store,
    TileBuffer,
    TileLoop,
    defined_blocks,
    used_blocks,
    walk_statements,
)
from tcc.schedule.nest import costly


def hoisted(body: Sequence[Stmt]) -> Stmts:
    """Returns `body` with costly invariant values moved before their loops."""
    stmts: Stmts = []
    for node in body:
        match node:
            case TileLoop():
                before, inside = _split(replace(node, body=tuple(hoisted(node.body))))
                stmts += [*before, inside]
            case If():
                then, otherwise = (tuple(hoisted(b)) for b in (node.then, node.otherwise))
                stmts.append(replace(node, then=then, otherwise=otherwise))
            case _:
                stmts.append(node)
    return stmts


def _split(loop: TileLoop) -> tuple[Stmts, TileLoop]:
    """Returns the costly invariant statements of a loop, and the loop without them."""
    stored_buffers = {n.buffer for n in walk_statements(loop.body) if isinstance(n, Store)}
    varies = {*loop.carried}
    fixed: dict[Block, Stmt] = {}
    for node in loop.body:
        if _is_fixed(node, loop.var, stored_buffers) and varies.isdisjoint(used_blocks(node)):
            fixed.update(dict.fromkeys(defined_blocks(node), node))
        else:
            varies.update(*(defined_blocks(n) for n in walk_statements((node,))))
    hoisted_stmts: set[Stmt] = set()
    waiting = [n for n in fixed.values() if _is_costly(n)]
    while waiting:
        node = waiting.pop()
        hoisted_stmts.add(node)
        waiting += [fixed[b] for b in used_blocks(node) if b in fixed]
    inside = tuple(n for n in loop.body if n not in hoisted_stmts)
    return [n for n in loop.body if n in hoisted_stmts], replace(loop, body=inside)


def _is_costly(node: Stmt) -> bool:
    return isinstance(node, Compute) and any(map(costly, walk(node.body)))


def _is_fixed(node: Stmt, var: Var, stored_buffers: set[TileBuffer]) -> bool:
    """Returns True if a statement does the same in each iteration, apart from its operands.

    So if its operands are equal in all iterations, its results are too.
    """
    match node:
        case Compute():
            return var not in free_vars(*index_values(node.body))
        case Relayout():
            return True
        case Load():
            guards = (i for g in node.guards for i in (g.index, g.extent))
            return node.buffer not in stored_buffers and var not in free_vars(
                *node.indices, *guards
            )
        case _:
            return False
