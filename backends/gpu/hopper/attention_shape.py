"""Recognises block kernels with two chained matmuls in a streaming loop, as attention has them.

    q = load box;  for j: k = load box, s = q . k, pointwise and reductions of rows,
                          v = load box, acc = rounded(p) . v + acc';      pointwise;  stores

Two warpgroups compute half of a tile's rows each. `halved` is the kernel of one warpgroup; the
variable `half` is the number of the warpgroup.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from tcc.backends.gpu.hopper.boxes import BoxOperand, aligned_buffers, around_loop, operand_of
from tcc.frozen import frozen
from tcc.ir.expr.scalar import Arg, Cast, Const, Scalar, substitute_indices
from tcc.ir.index import Index, Substitution, Var, free_vars, iterator, substitute
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Guard,
    Load,
    MemorySpace,
    Reduce,
    Relayout,
    Stmt,
    Store,
    TileKernel,
    TileLoop,
    defined_blocks,
    lanes,
    used_blocks,
    walk_statements,
)
from tcc.ir.types import BF16, F16, F32
from tcc.zipped import zip_equal

ROWS = 128  # rows of a tile: 64 for each warpgroup
HALF = iterator("half", 2)
_WIDTHS = (64, 128)
_NAMES = {"bf16": BF16, "f16": F16}


@frozen
class AttentionKernel:
    """A kernel that computes half of the rows.

    `scores` and `mixed` are its two matmuls. `keys` and `values` are loaded in `loop`, `queries`
    before it. `before` and `after` are the statements around the loop. The other statements of an
    iteration are `shares` and `rescaling`. The statements `shares` compute the lhs of `mixed`: the
    exponentials of the scores, which weigh the values. The statements `rescaling` rescale the
    accumulator of the previous iterations.
    """

    kernel: TileKernel
    before: tuple[Stmt, ...]
    loop: TileLoop
    after: tuple[Stmt, ...]
    queries: BoxOperand
    keys: BoxOperand
    values: BoxOperand
    scores: Contract
    mixed: Contract
    shares: tuple[Stmt, ...]
    rescaling: tuple[Stmt, ...]


def attention_kernel(
    kernel: TileKernel, alignments: Sequence[int], dot: str
) -> AttentionKernel | None:
    """Returns the kernel for half of the rows, or None if `kernel` is no attention.

    f32 operands are rounded to the type `dot`.
    """
    halved = _Halves().kernel(kernel)
    parts = None if halved is None else around_loop(halved)
    if halved is None or parts is None:
        return None
    before, loop, after = parts
    contracts = [n for n in loop.body if isinstance(n, Contract)]
    if len(contracts) != 2:
        return None
    scores, mixed = contracts
    loads: dict[Block | None, Load]
    loads = {n.out: n for n in (*before, *loop.body) if isinstance(n, Load)}
    widened = next((n for n in loop.body if isinstance(n, Compute) and n.out is mixed.b), None)
    values = mixed.b if widened is None else _cast_of(widened)
    aligned = aligned_buffers(kernel, alignments)
    operands = (scores.a, scores.b, values)
    queries, keys, value_operand = (operand_of(loads.get(block), aligned) for block in operands)
    if queries is None or keys is None or value_operand is None:
        return None
    if queries.load not in before or keys.load in before or value_operand.load in before:
        return None
    zeros = _zeros(loop.body, scores.acc)
    printed = (keys.load, value_operand.load, scores, mixed, widened, zeros)
    other_nodes = [n for n in loop.body if n not in printed]
    split = _split(loop, mixed, other_nodes)
    if split is None or zeros is None:
        return None
    # The accumulator of the second matmul has to be zero before the first iteration.
    starts = zip_equal(loop.inits, loop.yields)
    if not all(_zeros(before, init) for init, result in starts if result is mixed.out):
        return None
    attention = AttentionKernel(
        halved, before, loop, after, queries, keys, value_operand, scores, mixed, *split
    )
    return attention if _fits(attention, dot) and _is_printable(attention, other_nodes) else None


def _zeros(body: Sequence[Stmt], block: Block) -> Stmt | None:
    """Returns the statement of `body` that fills `block` with zeros, else None."""
    for node in body:
        match node:
            case Compute(body=Const(value=0)) if node.out is block:
                return node
    return None


def _split(
    loop: TileLoop, mixed: Contract, statements: Sequence[Stmt]
) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]] | None:
    """Splits `statements` into those that do and do not depend on the second matmul's accumulator.

    Returns (independent statements, dependent statements). The dependent ones rescale the
    accumulator. Returns None if the lhs of the second matmul depends on the accumulator, or if a
    dependent block other than the matmul's result is carried to the next iteration.
    """
    carried = [c for c, y in zip_equal(loop.carried, loop.yields) if y is mixed.out]
    dependent = set(carried)
    shares: list[Stmt] = []
    rescaling: list[Stmt] = []
    for node in statements:
        if dependent.isdisjoint(used_blocks(node)):
            shares.append(node)
        else:
            rescaling.append(node)
            dependent.update(defined_blocks(node))
    if len(carried) != 1 or mixed.acc not in dependent or mixed.a in dependent:
        return None
    if not dependent.isdisjoint(loop.yields):
        return None
    return tuple(shares), tuple(rescaling)


def _cast_of(node: Compute) -> Block | None:
    match node:
        case Compute(body=Cast(arg=Arg()), args=(block,)):
            return block
    return None


def _fits(attention: AttentionKernel, dot: str) -> bool:
    """True if both matmuls have bf16 or f16 operands, f32 accumulators and supported sizes."""
    scores, mixed = attention.scores, attention.mixed
    dtypes = {
        operand.load.out.dtype for operand in (attention.queries, attention.keys, attention.values)
    }
    rounded = _NAMES.get(dot) if mixed.a.dtype is F32 else mixed.a.dtype
    if dtypes not in ({BF16}, {F16}) or rounded not in dtypes:
        return False
    if any(node.acc.dtype is not F32 or len(node.out_axes) != 2 for node in (scores, mixed)):
        return False
    sizes = (scores.out.shape[1], mixed.out.shape[1], scores.a.shape[1])
    return all(size in _WIDTHS for size in sizes)


def _is_printable(attention: AttentionKernel, other_nodes: Sequence[Stmt]) -> bool:
    """True if all statements except the matmuls and box loads can be printed, and one stores.

    `other_nodes` are such statements inside the loop. A statement can be printed if no element
    moves to another row, because the lanes of a warp hold complete rows.
    """
    nodes = (*attention.before, *other_nodes, *attention.after)
    stores = any(isinstance(node, Store) for node in attention.after)
    return stores and all(node is attention.queries.load or _keeps_rows(node) for node in nodes)


def _keeps_rows(node: Stmt) -> bool:
    match node:
        case Compute():
            return all(len(block.shape) <= 2 for block in (node.out, *node.args))
        case Reduce():
            return node.axes == (1,) and len(node.blocks) == 1
        case Relayout():
            # Only reshapes that add or drop a second axis of one element leave rows in place.
            source, out = node.block.shape, node.out.shape
            return source == (*out, 1) or out == (*source, 1)
        case Store():
            return len(node.block.shape) == 2 and not node.indirect
        case Load():
            read_back = node.buffer.scope is MemorySpace.OUTPUT
            return len(node.out.shape) == 2 and not node.indirect and not read_back
        case _:
            return False


# ---- one half of the rows -----------------------------------------------------------------------


class _Halves:
    """Rewrites a kernel so that it computes half of its rows."""

    def __init__(self) -> None:
        self._blocks: dict[Block, Block] = {}
        self._full_blocks: set[Block] = set()
        self._refused = False

    def kernel(self, kernel: TileKernel) -> TileKernel | None:
        contracts = [n for n in walk_statements(kernel.body) if isinstance(n, Contract)]
        if not contracts or any(c.out.shape[0] != ROWS for c in contracts):
            return None
        self._full_blocks = {c.b for c in contracts}
        # The rhs of a matmul is not halved, nor are the blocks from which it is computed.
        for node in walk_statements(kernel.body):
            if isinstance(node, Compute) and node.out in self._full_blocks:
                self._full_blocks |= set(node.args)
        body = tuple(map(self._statement, kernel.body))
        return None if self._refused else replace(kernel, body=body)

    def _block(self, block: Block) -> Block:
        if block in self._full_blocks or not block.shape or block.shape[0] == 1:
            return block
        if block.shape[0] != ROWS:
            self._refused = True
            return block
        if block not in self._blocks:
            shape = (ROWS // 2, *block.shape[1:])
            self._blocks[block] = Block(block.name, block.dtype, shape)
        return self._blocks[block]

    def _lanes(self, block: Block) -> dict[Var, Index]:
        if self._block(block) is block:
            return {}
        lane, half_lane = lanes(block.shape)[0], lanes(self._block(block).shape)[0]
        return {free_vars(lane)[0]: half_lane + HALF * (ROWS // 2)}

    def _statement(self, node: Stmt) -> Stmt:
        match node:
            case Load() | Compute():
                mapping = self._lanes(node.out)
            case Store():
                mapping = self._lanes(node.block)
            case Contract() | Reduce() | Relayout() | TileLoop():
                mapping = {}
            case _:
                self._refused = True
                return node
        rewritten = {f.name: self._rewritten(getattr(node, f.name), mapping) for f in fields(node)}
        return replace(node, **rewritten)

    def _rewritten(self, value: Any, mapping: Substitution) -> Any:
        """Returns the value of a statement's field, rewritten for half of the rows.

        Blocks get half of the rows. In indices, `mapping` replaces the lane variables.
        """
        match value:
            case Block():
                return self._block(value)
            case Index():
                return substitute(value, mapping)
            case Guard():
                return Guard(substitute(value.index, mapping), value.extent)
            case tuple():
                return tuple(self._rewritten(part, mapping) for part in value)
        if isinstance(value, Stmt):
            return self._statement(value)
        return substitute_indices(value, mapping) if isinstance(value, Scalar) else value
