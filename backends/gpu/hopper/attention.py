"""Attention as Gluon, for Hopper: one warp copies, two warpgroups have half of the rows each.

    NAME         makes a buffer for each half's queries and rings for keys and values
    NAME_copy    one warp: queries of both halves, then step by step keys and values
    NAME_attend  a warpgroup: products straight from the rings, the rest in registers

Nothing but the copies couples the warpgroups, so that one multiplies while the other has its
exponentials made.  Within a warpgroup the values of one step are multiplied beside the scores of
the next, and while the shares of these are made (FlashAttention-3, Shah et al. 2024, section 3.2).
A program stays for all units u, u + programs, ...
"""

from collections.abc import Sequence

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
from tcc.ir.index import bounds, free_vars
from tcc.ir.tile import Block, Contract, Loop, Reduce, Relayout, Stmt, TileBuffer

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
        if node is self.shape.queries.load:
            self._writer.line("mbarrier.wait(q_full.index(half), turn)")
        else:
            super()._statement(node)

    def _loop(self, node: Loop) -> None:
        writer = self._writer
        names = [
            writer.define(block.name, self._blocks[init].text).text
            for block, init in zip(node.carried, node.inits, strict=True)
        ]
        least, _ = bounds(node.stop - node.start)
        if least is not None and least > 0:
            self._steps(node, names)
        else:
            start, stop = (self._indices.value(i).text for i in (node.start, node.stop))
            with writer.scope() as lines:
                self._steps(node, names)
            writer.block(f"if {start} < {stop}:", lines)
        for block, name in zip(node.results, names, strict=True):
            self._blocks[block] = PyExpr(name, writer.depth)

    def _steps(self, node: Loop, names: Sequence[str]) -> None:
        """Prints the first step's shares; then for each step the matmul of the step before and its
        own shares; then the last step's matmul.

        The first step does not rescale the accumulator, which is zero: a product of zeros and the
        rescaling factor would be copied in registers between the matmul's fence and the matmul,
        where the instruction set forbids it.
        """
        writer, line, mixed = self._writer, self._writer.line, self.shape.mixed
        at = node.yields.index(mixed.out)
        zeros = node.inits[at]
        yields = [mixed.acc if y is mixed.out else y for y in node.yields]
        first_yields = [zeros if y is mixed.out else y for y in node.yields]
        start, second, stop = (
            self._indices.value(i).text for i in (node.start, node.start + node.step, node.stop)
        )
        inits = [self._blocks[init] for init in node.inits]
        self._blocks.update(zip(node.carried, inits, strict=True))
        self._bind_counter(node, writer.define(node.var.name, start).text)
        self._end_product(self._scores(), "k", "step", running=0)
        self._body(self.shape.shares)
        left = writer.define("left", self._shares()).text
        line(f"{', '.join(names)} = {', '.join(self._blocks[y].text for y in first_yields)}")
        self._late_step()
        counter = writer.name(node.var.name)
        with writer.scope() as lines:
            self._bind_counter(node, counter)
            for block, name in zip(node.carried, names, strict=True):
                self._blocks[block] = PyExpr(name, writer.depth)
            scores, sums = self._scores(), self._mixed(left, names[at])
            self._end_product(scores, "k", "step", running=1)
            self._body(self.shape.shares)
            more = self._shares()
            self._end_product(sums, "v", "late", running=0)
            self._blocks[node.carried[at]] = sums
            self._body(self.shape.rescaling)
            line(f"{left} = {more}")
            line(f"{', '.join(names)} = {', '.join(self._blocks[y].text for y in yields)}")
            self._late_step()
        writer.block(f"for {counter} in range({second}, {stop}, {node.step}):", lines)
        sums = self._mixed(left, names[at])
        self._end_product(sums, "v", "late", running=0)
        line(f"{names[at]} = {sums.text}")

    def _late_step(self) -> None:
        """The values of this step are taken in the next one."""
        self._writer.line("late, late_phase = step, phase")
        self._end_step()

    def _scores(self) -> PyExpr:
        """Begins the product of queries and keys."""
        node, keys = self.shape.scores, self.shape.keys.box
        self._writer.line("mbarrier.wait(k_full.index(step), phase)")
        queries = seen("q_ring.index(half)", self.shape.queries.box)
        zeros = self._full(node.out.shape, "0.0", "tl.float32")
        out = self._product(node, queries, seen("k_ring.index(step)", keys), zeros)
        self._blocks[node.out] = out
        return out

    def _mixed(self, left: str, sums: str) -> PyExpr:
        """Begins the product of the shares and values of the step before."""
        self._writer.line("mbarrier.wait(v_full.index(late), late_phase)")
        right = seen("v_ring.index(late)", self.shape.values.box)
        return self._product(self.shape.mixed, left, right, sums)

    def _product(self, node: Contract, left: str, right: str, sums: str) -> PyExpr:
        text = f"warpgroup_mma({left}, {right}, {sums}, is_async=True)"
        return self._writer.define(node.out.name, text)

    def _end_product(self, out: PyExpr, side: str, at: str, *, running: int) -> None:
        """Waits for a product, while so many that began later go on, and gives its buffer back."""
        wait = f"warpgroup_mma_wait(num_outstanding={running}, deps=({out.text},))"
        self._writer.line(f"{out.text} = {wait}")
        self._writer.line(f"mbarrier.arrive({side}_empty.index({at}))")

    def _shares(self) -> str:
        """The rounded shares as the left side of a product."""
        dtype = type_name(self.shape.values.load.out.dtype)
        rows = f"({self._blocks[self.shape.mixed.a].text}).to({dtype})"
        return f"tl.convert_layout({rows}, tl.DotOperandLayout(0, layout, 2))"

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
