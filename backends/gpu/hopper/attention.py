"""Attention as Gluon, for Hopper: one warp copies, two warpgroups have half of the rows each.

    NAME         makes a buffer for each half's queries and rings for keys and values
    NAME_copy    one warp: queries of both halves, then step by step keys and values
    NAME_attend  a warpgroup: products straight from the rings, the rest in registers

Nothing but the copies couples the warpgroups, so that one multiplies while the other has its
exponentials made.  A program stays for all units u, u + programs, ...
"""

from tcc.backends.gpu.hopper.attention_shape import HALF, AttentionKernel
from tcc.backends.gpu.hopper.part import (
    FEW,
    HEADER,
    RESERVED,
    ROOM,
    GluonText,
    WarpPart,
    barriers,
    ring,
    seen,
)
from tcc.backends.gpu.hopper.tensor_maps import tensor_map
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.ir.index import free_vars
from tcc.ir.tile import Block, Contract, Load, Reduce, Relayout, Stmt, TileBuffer

WARPS = 4  # of a warpgroup
_STEPS = (4, 3, 2)
_REGISTERS = 240  # of a lane that multiplies
_MAPS = ("q_map", "k_map", "v_map")
_SHARED = tuple("q_ring k_ring v_ring q_full q_empty k_full k_empty v_full v_empty".split())


def attention_source(shape: AttentionKernel, name: str, *, shared: int) -> GluonText | None:
    """The kernel as the Gluon function `name` for `WARPS` warps, to which it adds others.

    The launch is a grid of as many programs as the device holds at once.  None where two steps
    do not fit in `shared` bytes of memory.
    """
    one, queries = shape.keys.bytes + shape.values.bytes, 2 * shape.queries.bytes
    steps = next((n for n in _STEPS if n * one + queries + ROOM <= shared), None)
    if steps is None:
        return None
    buffers, writer = shape.kernel.buffers, Writer((*RESERVED, *_MAPS, *_SHARED))
    pointers = {b: writer.name(b.name) for b in buffers}
    copies = _Copies(f"{name}_copy", shape, pointers, steps, (*_MAPS, *_SHARED))
    attends = _Attends(f"{name}_attend", shape, pointers, steps)
    parts = (copies.text(), attends.text(), _kernel_text(name, shape, pointers, steps))
    sides = (shape.queries, shape.keys, shape.values)
    maps = tuple(tensor_map(buffers, side.load.buffer, side.box) for side in sides)
    return GluonText(HEADER + attends.functions() + "\n\n".join(parts), maps)


def _kernel_text(
    name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
) -> str:
    """The kernel itself: shared memory, barriers, and the three parts at once."""
    names = tuple(pointers.values())
    lines = ["@gluon.jit", f"def {name}({', '.join((*names, *_MAPS))}):"]
    sides = (("q", 2, shape.queries), ("k", steps, shape.keys), ("v", steps, shape.values))
    for side, count, of in sides:
        full, empty = (barriers(f"{side}_{kind}", count) for kind in ("full", "empty"))
        lines += [ring(side, count, of), full, empty]
    # Both halves read every buffer of keys and values.
    return (
        "\n".join(lines)
        + f"""
    for half in tl.static_range(2):
        mbarrier.init(q_full.index(half), count=1)
        mbarrier.init(q_empty.index(half), count=1)
    for step in tl.static_range({steps}):
        mbarrier.init(k_full.index(step), count=1)
        mbarrier.init(k_empty.index(step), count=2)
        mbarrier.init(v_full.index(step), count=1)
        mbarrier.init(v_empty.index(step), count=2)
    tl.warp_specialize(
        [
            ({name}_attend, (0, {", ".join((*names, *_SHARED))})),
            ({name}_attend, (1, {", ".join((*names, *_SHARED))})),
            ({name}_copy, ({", ".join((*_MAPS, *_SHARED))})),
        ],
        [{WARPS}, 1],
        [{_REGISTERS}, {FEW}],
    )
"""
    )


class _Copies(WarpPart[AttentionKernel]):
    """The warp that copies."""

    def _first(self) -> None:
        self._ring(1)
        self._writer.line("turn = tl.to_tensor(1)")

    def _one(self) -> None:
        shape, writer, loop = self.shape, self._writer, self.shape.loop
        for half in range(2):
            self._indices.bind(free_vars(HALF)[0], PyExpr(str(half)))
            self._copy({"q": shape.queries}, "q_", str(half), "turn")
        writer.line("turn = turn ^ 1")
        head, counter = self._head(loop)
        with writer.scope() as lines:
            self._bind_counter(loop, counter)
            self._copy({"k": shape.keys}, "k_", "step", "phase")
            self._copy({"v": shape.values}, "v_", "step", "phase")
            self._end_step()
        writer.block(head, lines)


class _Attends(WarpPart[AttentionKernel]):
    """A warpgroup with half of the rows."""

    def __init__(
        self, name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
    ) -> None:
        given = ("half: tl.constexpr", *pointers.values(), *_SHARED)
        super().__init__(name, shape, pointers, steps, given)
        self._rows: dict[Block, PyExpr] = {}  # totals of rows as one axis
        self._halves = {shape.mixed.a}

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
        waits = {
            shape.queries.load: "q_full.index(half), turn",
            shape.keys.load: "k_full.index(step), phase",
            shape.values.load: "v_full.index(step), phase",
        }
        if isinstance(node, Load) and node in waits:
            self._writer.line(f"mbarrier.wait({waits[node]})")
        elif node is not shape.widened:
            super()._statement(node)

    def _contract(self, node: Contract) -> None:
        line, shape = self._writer.line, self.shape
        first = node is shape.scores
        side, box = ("k", shape.keys.box) if first else ("v", shape.values.box)
        if first:
            left = seen("q_ring.index(half)", shape.queries.box)
        else:
            dtype = type_name(shape.values.load.out.dtype)
            rows = f"({self._blocks[node.a].text}).to({dtype})"
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
