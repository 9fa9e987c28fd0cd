"""Recognises block kernels of two chained products along a walk, as attention has them.

    q = load box;  for j: k = load box, s = q . k, pointwise and totals of rows,
                          v = load box, acc = rounded(p) . v + acc';      pointwise;  stores

Two warpgroups take half of a unit's rows each: `halved` is the kernel of one of them, in which the
variable `half` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tcc.backends.gpu.hopper.boxes import Box, box_of
from tcc.ir.expr import extent
from tcc.ir.expr.scalar import Arg, Cast, Const, substitute_indices
from tcc.ir.index import Index, Var, as_int, free_vars, iterator, substitute
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Guard,
    Load,
    Loop,
    MemorySpace,
    Reduce,
    Relayout,
    Stmt,
    Store,
    TileBuffer,
    TileKernel,
    lanes,
)
from tcc.ir.types import BF16, F16, F32
from tcc.record import record

ROWS = 128  # of a unit: 64 for each warpgroup
HALF = iterator("half", 2)
_WIDTHS = (64, 128)
_NAMES = {"bf16": BF16, "f16": F16}


@record
class Side:
    """A block that the copy engine brings, from the box of its load."""

    load: Load
    box: Box


@record
class AttentionKernel:
    """The kernel of one half: `scores` and `mixed` are its products; `keys` and `values` are loaded
    in the loop, `queries` before it.  `widened` is the statement that casts the values."""

    kernel: TileKernel
    before: tuple[Stmt, ...]
    loop: Loop
    after: tuple[Stmt, ...]
    queries: Side
    keys: Side
    values: Side
    scores: Contract
    mixed: Contract
    widened: Compute | None


def attention_kernel(
    kernel: TileKernel, alignments: Sequence[int], dot: str
) -> AttentionKernel | None:
    """The kernel of one half, or None; products of f32 are rounded as `dot` says."""
    if kernel.sizes or kernel.locals or kernel.in_place:
        return None
    if any(as_int(extent(v)) is None for v in kernel.axes):
        return None
    aligned = {b for b, n in zip(kernel.buffers, alignments, strict=True) if n % 16 == 0}
    halved = _Halves().kernel(kernel)
    loops = [] if halved is None else [n for n in halved.body if isinstance(n, Loop)]
    if halved is None or len(loops) != 1:
        return None
    (loop,) = loops
    place = halved.body.index(loop)
    before, after = halved.body[:place], halved.body[place + 1 :]
    contracts = [n for n in loop.body if isinstance(n, Contract)]
    if len(contracts) != 2:
        return None
    scores, mixed = contracts
    loads = {n.out: n for n in (*before, *loop.body) if isinstance(n, Load)}
    widened = next((n for n in loop.body if isinstance(n, Compute) and n.out is mixed.b), None)
    values = mixed.b if widened is None else _cast_of(widened)
    sides = [_side(loads, b, aligned) for b in (scores.a, scores.b, values)]
    queries, keys, brought = sides
    if queries is None or keys is None or brought is None:
        return None
    if queries.load not in before or keys.load in before or brought.load in before:
        return None
    made = AttentionKernel(
        halved, before, loop, after, queries, keys, brought, scores, mixed, widened
    )
    return made if _fits(made, dot) and _is_printable(made) else None


def _cast_of(node: Compute) -> Block | None:
    plain = isinstance(node.body, Cast) and isinstance(node.body.arg, Arg)
    return node.args[0] if plain and len(node.args) == 1 else None


def _side(
    loads: Mapping[Block, Load], block: Block | None, aligned: set[TileBuffer]
) -> Side | None:
    load = None if block is None else loads.get(block)
    if load is None or load.buffer not in aligned or load.out.dtype not in (BF16, F16):
        return None
    box = box_of(load)
    return None if box is None else Side(load, box)


def _fits(made: AttentionKernel, dot: str) -> bool:
    """Whether both products are of halves, sums of f32, and blocks that warpgroups hold."""
    scores, mixed = made.scores, made.mixed
    dtype = made.queries.load.out.dtype
    if any(s.load.out.dtype is not dtype for s in (made.keys, made.values)):
        return False
    rounded = mixed.a.dtype is dtype or (mixed.a.dtype is F32 and _NAMES.get(dot) is dtype)
    if not rounded or scores.acc.dtype is not F32 or mixed.acc.dtype is not F32:
        return False
    for node in (scores, mixed):
        m, n = node.out_axes if len(node.out_axes) == 2 else ("", "")
        if node.a_axes[0] != m or node.b_axes[-1] != n or node.a_axes[1] != node.b_axes[0]:
            return False
    zero = [n for n in made.loop.body if isinstance(n, Compute) and n.out is scores.acc]
    if not zero or not isinstance(zero[0].body, Const) or zero[0].body.value != 0:
        return False
    wide = (scores.out.shape[1], mixed.out.shape[1])
    return all(n in _WIDTHS for n in wide) and scores.a.shape[1] in _WIDTHS


def _is_printable(made: AttentionKernel) -> bool:
    """Whether every other statement keeps rows where they are."""
    others = [made.queries.load, made.keys.load, made.values.load, made.scores, made.mixed]
    for node in (*made.before, *made.loop.body, *made.after):
        if node not in others and node is not made.widened and not _keeps_rows(node):
            return False
    return any(isinstance(n, Store) for n in made.after)


def _keeps_rows(node: Stmt) -> bool:
    match node:
        case Compute():
            return all(len(block.shape) <= 2 for block in (node.out, *node.args))
        case Reduce():
            return node.axes == (1,) and len(node.blocks) == 1
        case Relayout():
            return _is_column(node.block.shape, node.out.shape)
        case Store():
            return len(node.block.shape) == 2 and not node.indirect
        case Load():
            read_back = node.buffer.scope is MemorySpace.OUTPUT
            return len(node.out.shape) == 2 and not node.indirect and not read_back
        case _:
            return False


def _is_column(source: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Whether a relayout only adds or drops the second axis of one element."""
    return source == (*out, 1) or out == (*source, 1)


# ---- one half of the rows -----------------------------------------------------------------------


class _Halves:
    """Rewrites a kernel for one half of its rows."""

    def __init__(self) -> None:
        self._blocks: dict[Block, Block] = {}
        self._whole: set[Block] = set()
        self._refused = False

    def kernel(self, kernel: TileKernel) -> TileKernel | None:
        contracts = [n for n in _all(kernel.body) if isinstance(n, Contract)]
        if not contracts or any(c.out.shape[0] != ROWS for c in contracts):
            return None
        self._whole = {c.b for c in contracts}
        for node in _all(kernel.body):  # what a whole block is cast from
            if isinstance(node, Compute) and node.out in self._whole:
                self._whole |= set(node.args)
        body = tuple(map(self._statement, kernel.body))
        return None if self._refused else replace(kernel, body=body)

    def _block(self, block: Block) -> Block:
        if block in self._whole or not block.shape or block.shape[0] == 1:
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
        old, new = lanes(block.shape)[0], lanes(self._block(block).shape)[0]
        return {free_vars(old)[0]: new + HALF * (ROWS // 2)}

    def _statement(self, node: Stmt) -> Stmt:
        match node:
            case Load():
                return self._access(node, node.out)
            case Store():
                return self._access(node, node.block)
            case Compute():
                body = substitute_indices(node.body, self._lanes(node.out))
                return Compute(self._block(node.out), body, tuple(map(self._block, node.args)))
            case Contract():
                return replace(
                    node,
                    out=self._block(node.out),
                    acc=self._block(node.acc),
                    a=self._block(node.a),
                )
            case Reduce():
                outs, blocks = (tuple(map(self._block, g)) for g in (node.outs, node.blocks))
                return replace(node, outs=outs, blocks=blocks)
            case Relayout():
                return replace(node, out=self._block(node.out), block=self._block(node.block))
            case Loop():
                return replace(
                    node,
                    inits=tuple(map(self._block, node.inits)),
                    carried=tuple(map(self._block, node.carried)),
                    body=tuple(map(self._statement, node.body)),
                    yields=tuple(map(self._block, node.yields)),
                    results=tuple(map(self._block, node.results)),
                )
            case _:
                self._refused = True
                return node

    def _access(self, node: Load | Store, block: Block) -> Load | Store:
        at = self._lanes(block)
        guards = tuple(Guard(substitute(g.index, at), g.extent) for g in node.guards)
        indices = tuple(substitute(i, at) for i in node.indices)
        if isinstance(node, Load):
            return replace(node, out=self._block(block), indices=indices, guards=guards)
        return replace(node, block=self._block(block), indices=indices, guards=guards)


def _all(body: Sequence[Stmt]) -> Iterator[Stmt]:
    for node in body:
        yield node
        if isinstance(node, Loop):
            yield from _all(node.body)
