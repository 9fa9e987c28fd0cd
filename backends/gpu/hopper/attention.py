"""Attention as Gluon, for Hopper: one warp copies, two warpgroups have half of the rows each.

    NAME         makes a buffer for each half's queries and rings for keys and values
    NAME_copy    one warp: queries of both halves, then step by step keys and values
    NAME_attend  a warpgroup: products straight from the rings, the rest in registers

Nothing but the copies couples the warpgroups, so that one multiplies while the other has its
exponentials made.  A program stays for all units u, u + programs, ...
"""

from __future__ import annotations

from math import prod

from tcc.backends.gpu.hopper.attention_shape import HALF, AttentionKernel, Side
from tcc.backends.gpu.hopper.part import (
    FEW,
    HEADER,
    RESERVED,
    ROOM,
    GluonText,
    WarpPart,
    seen,
    shape_text,
)
from tcc.backends.gpu.hopper.tensor_maps import tensor_map
from tcc.backends.gpu.triton.dtypes import literal_text, type_name
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.ir.expr.scalar import Const
from tcc.ir.index import free_vars
from tcc.ir.tile import Block, Compute, Contract, Loop, Reduce, Relayout, Stmt, TileBuffer

WARPS = 4  # of a warpgroup
_STEPS = (4, 3, 2)
_REGISTERS = 240  # of a lane that multiplies
_MAPS = ("q_map", "k_map", "v_map")
_SHARED = (
    "q_ring", "k_ring", "v_ring", "q_full", "q_empty", "k_full", "k_empty", "v_full", "v_empty",
)  # fmt: skip


def attention_source(shape: AttentionKernel, name: str, *, shared: int) -> GluonText | None:
    """The kernel as the Gluon function `name` for `WARPS` warps, to which it adds others.

    The launch is a grid of as many programs as the device holds at once.  None where two steps
    do not fit in `shared` bytes of memory.
    """
    width = shape.queries.load.out.dtype.bytes
    queries = 2 * prod(shape.queries.box.shape) * width
    one = sum(prod(side.box.shape) * width for side in (shape.keys, shape.values))
    steps = next((n for n in _STEPS if n * one + queries + ROOM <= shared), None)
    if steps is None:
        return None
    writer = Writer((*RESERVED, *_MAPS, *_SHARED))
    pointers = {b: writer.name(b.name) for b in shape.kernel.buffers}
    copies = _Copies(name, shape, pointers, steps)
    attends = _Attends(name, shape, pointers, steps)
    parts = (copies.text(), attends.text(), _kernel_text(name, shape, pointers, steps))
    buffers = shape.kernel.buffers
    maps = (
        tensor_map(buffers, side.load.buffer, side.box)
        for side in (shape.queries, shape.keys, shape.values)
    )
    return GluonText(HEADER + attends.functions() + "\n\n".join(parts), tuple(maps))


def _kernel_text(
    name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
) -> str:
    """The kernel itself: shared memory, barriers, and the three parts at once."""
    names = tuple(pointers.values())
    dtype = type_name(shape.queries.load.out.dtype)
    lines = ["@gluon.jit", f"def {name}({', '.join((*names, *_MAPS))}):"]
    sides = (("q", 2, shape.queries), ("k", steps, shape.keys), ("v", steps, shape.values))
    for side, count, of in sides:
        whole = shape_text((count, *of.box.shape))
        lines.append(
            f"    {side}_ring = tl.allocate_shared_memory({dtype}, {whole}, {side}_map.layout)"
        )
        for kind in ("full", "empty"):
            barriers = f"tl.int64, [{count}, 1], mbarrier.MBarrierLayout()"
            lines.append(f"    {side}_{kind} = tl.allocate_shared_memory({barriers})")
    lines += [
        "    for half in tl.static_range(2):",
        "        mbarrier.init(q_full.index(half), count=1)",
        "        mbarrier.init(q_empty.index(half), count=1)",
        f"    for step in tl.static_range({steps}):",
    ]
    for side in "kv":
        lines.append(f"        mbarrier.init({side}_full.index(step), count=1)")
        # Both halves read every buffer.
        lines.append(f"        mbarrier.init({side}_empty.index(step), count=2)")
    lines += ["    tl.warp_specialize(", "        ["]
    for half in range(2):
        lines.append(f"            ({name}_attend, ({half}, {', '.join((*names, *_SHARED))})),")
    lines += [
        f"            ({name}_copy, ({', '.join((*_MAPS, *_SHARED))})),",
        "        ],",
        f"        [{WARPS}, 1],",
        f"        [{_REGISTERS}, {FEW}],",
        "    )",
    ]
    return "\n".join(lines) + "\n"


class _Copies(WarpPart):
    """The warp that copies."""

    def __init__(
        self, name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
    ) -> None:
        super().__init__(f"{name}_copy", shape.kernel, pointers, steps, (*_MAPS, *_SHARED))
        self.shape = shape

    def text(self) -> str:
        return self.function((*_MAPS, *_SHARED))

    def _first(self) -> None:
        self._ring(1)
        self._writer.line("turn = tl.to_tensor(1)")

    def _one(self) -> None:
        writer, loop = self._writer, self.shape.loop
        for half in range(2):
            self._indices.bind(free_vars(HALF)[0], PyExpr(str(half)))
            self._copy("q", str(half), "turn", self.shape.queries)
        writer.line("turn = turn ^ 1")
        head, counter = self._head(loop)
        with writer.scope() as lines:
            self._indices.bind(loop.var, PyExpr(counter, writer.depth))
            self._copy("k", "step", "phase", self.shape.keys)
            self._copy("v", "step", "phase", self.shape.values)
            self._advance()
        writer.block(head, lines)

    def _copy(self, side: str, at: str, phase: str, of: Side) -> None:
        line = self._writer.line
        size = prod(of.box.shape) * of.load.out.dtype.bytes
        place = self._place(of.box)
        line(f"mbarrier.wait({side}_empty.index({at}), {phase})")
        line(f"mbarrier.expect({side}_full.index({at}), {size})")
        target = f"{side}_full.index({at}), {side}_ring.index({at})"
        line(f"tma.async_load({side}_map, {place}, {target})")


class _Attends(WarpPart):
    """A warpgroup with half of the rows."""

    def __init__(
        self, name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
    ) -> None:
        super().__init__(f"{name}_attend", shape.kernel, pointers, steps, (*_MAPS, *_SHARED))
        self.shape = shape
        self._rows: dict[Block, PyExpr] = {}  # totals of rows as one axis
        self._dtype = type_name(shape.queries.load.out.dtype)
        self._halves = {shape.mixed.a}

    def text(self) -> str:
        return self.function(("half: tl.constexpr", *self._pointers.values(), *_SHARED))

    def _first(self) -> None:
        columns = min(self.shape.scores.out.shape[1], self.shape.mixed.out.shape[1])
        self._layout(WARPS, columns)
        self._ring(0)
        self._writer.line("turn = tl.to_tensor(0)")
        self._indices.bind(free_vars(HALF)[0], PyExpr("half"))

    def _one(self) -> None:
        line = self._writer.line
        self._body(self.shape.before)
        self._statement(self.shape.loop)
        line("mbarrier.arrive(q_empty.index(half))")
        line("turn = turn ^ 1")
        self._body(self.shape.after)

    def _statement(self, node: Stmt) -> None:
        shape = self.shape
        if node is shape.queries.load:
            self._writer.line("mbarrier.wait(q_full.index(half), turn)")
        elif node is shape.keys.load or node is shape.values.load:
            side = "k" if node is shape.keys.load else "v"
            self._writer.line(f"mbarrier.wait({side}_full.index(step), phase)")
        elif node is not shape.widened:
            super()._statement(node)

    def _contract(self, node: Contract) -> None:
        line, shape = self._writer.line, self.shape
        first = node is shape.scores
        side, box = ("k", shape.keys.box) if first else ("v", shape.values.box)
        if first:
            left = seen("q_ring.index(half)", shape.queries.box)
        else:
            rows = f"({self._blocks[node.a].text}).to({self._dtype})"
            layout = "tl.DotOperandLayout(0, layout, 2)"
            left = self._writer.define("left", f"tl.convert_layout({rows}, {layout})").text
        acc = self._blocks[node.acc].text
        right = seen(f"{side}_ring.index(step)", box)
        out = self._writer.define(
            node.out.name, f"warpgroup_mma({left}, {right}, {acc}, is_async=True)"
        )
        line(f"{out.text} = warpgroup_mma_wait(num_outstanding=0, deps=({out.text},))")
        line(f"mbarrier.arrive({side}_empty.index(step))")
        self._blocks[node.out] = out

    def _loop(self, node: Loop) -> None:
        writer = self._writer
        names = []
        for block, init in zip(node.carried, node.inits, strict=True):
            names.append(writer.define(block.name, self._blocks[init].text).text)
        head, counter = self._head(node)
        with writer.scope() as lines:
            self._indices.bind(node.var, PyExpr(counter, writer.depth))
            for block, name in zip(node.carried, names, strict=True):
                self._blocks[block] = PyExpr(name, writer.depth)
            self._body(node.body)
            yields = ", ".join(self._blocks[b].text for b in node.yields)
            writer.line(f"{', '.join(names)} = {yields}")
            self._advance()
        writer.block(head, lines)
        for block, name in zip(node.results, names, strict=True):
            self._blocks[block] = PyExpr(name, writer.depth)

    def _compute(self, node: Compute) -> None:
        shape, body = node.out.shape, node.body
        if not isinstance(body, Const):
            super()._compute(node)
            return
        number = literal_text(body.value, body.dtype)
        of = f"{shape_text(shape)}, {number}, {type_name(body.dtype)}, {self._layout_of(shape)}"
        self._define(node.out, f"tl.full({of})")

    def _reduce(self, node: Reduce) -> None:
        """Along the columns; the result has one axis, and is seen as a column where it is read."""
        (block,), (out,) = node.blocks, node.outs
        text = self._reduced(node, self._blocks[block], 1).replace(", keep_dims=True", "")
        row = self._writer.define(out.name, text)
        self._rows[out] = row
        self._blocks[out] = PyExpr(f"{row.text}[:, None]", row.depth)

    def _relayout(self, node: Relayout) -> None:
        source = self._blocks[node.block]
        if len(node.out.shape) == 2:
            self._blocks[node.out] = PyExpr(f"{source.operand}[:, None]", source.depth)
        elif node.block in self._rows:
            self._blocks[node.out] = self._rows[node.block]
        else:
            self._define(node.out, f"tl.sum({source.text}, 1)")
