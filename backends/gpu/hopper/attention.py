"""Attention in Gluon for Hopper: one warp copies, and two warpgroups compute half of the rows each.

    NAME         allocates a buffer for each half's queries and rings for keys and values
    NAME_copy    one warp: copies queries of both halves, then step by step keys and values
    NAME_attend  a warpgroup: matmuls read the rings, everything else is in registers

Each warpgroup waits only for copies, not for the other warpgroup. So one can multiply while the
other computes exponentials. Within a warpgroup, the matmul with the values of one iteration
overlaps the scores and exponentials of the next one (FlashAttention-3, Shah et al. 2024, section
3.2). The kernel is persistent: a thread block computes several tiles, one in each round of all
blocks. `WarpPart` gives their order.
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
    box_view,
    ring,
)
from tcc.backends.gpu.hopper.tensor_maps import tensor_map
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.ir.index import bounds, free_vars
from tcc.ir.tile import Block, Contract, Reduce, Relayout, Stmt, TileBuffer, TileLoop
from tcc.zipped import zip_equal

WARPS = 4  # warps in a warpgroup
_STEPS = (4, 3, 2)
_REGISTERS = 240  # registers per lane in a warpgroup that multiplies
_MAPS = ("q_map", "k_map", "v_map")
_SHARED = tuple("q_ring k_ring v_ring q_full q_empty k_full k_empty v_full v_empty".split())


def attention_source(shape: AttentionKernel, name: str, *, shared: int) -> GluonText | None:
    """Returns the kernel as the Gluon function `name`, or None if it does not fit.

    It does not fit if `shared` bytes of shared memory do not hold two iterations. The function is
    launched with `WARPS` warps and itself starts more. The grid has as many thread blocks as the
    device holds at once.
    """
    step_bytes, query_bytes = shape.keys.bytes + shape.values.bytes, 2 * shape.queries.bytes
    steps = next((n for n in _STEPS if n * step_bytes + query_bytes + ROOM <= shared), None)
    if steps is None:
        return None
    buffers, writer = shape.kernel.buffers, Writer((*RESERVED, *_MAPS, *_SHARED))
    pointers = {b: writer.name(b.name) for b in buffers}
    copies = _Copies(f"{name}_copy", shape, pointers, steps, (*_MAPS, *_SHARED))
    attends = _Attends(f"{name}_attend", shape, pointers, steps)
    parts = (copies.text(), attends.text(), _kernel_text(name, shape, pointers, steps))
    operands = (shape.queries, shape.keys, shape.values)
    maps = tuple(tensor_map(buffers, operand.load.buffer, operand.box) for operand in operands)
    return GluonText(HEADER + attends.functions() + "\n\n".join(parts), maps)


def _kernel_text(
    name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
) -> str:
    """Returns the main function: it allocates shared memory and barriers, and starts the three
    parts."""
    names = tuple(pointers.values())
    lines = ["@gluon.jit", f"def {name}({', '.join((*names, *_MAPS))}):"]
    rings = (("q", 2, shape.queries), ("k", steps, shape.keys), ("v", steps, shape.values))
    for prefix, count, operand in rings:
        full, empty = (barriers(f"{prefix}_{kind}", count) for kind in ("full", "empty"))
        lines += [ring(prefix, count, operand), full, empty]
    # Both warpgroups read each buffer of keys and values, so its `empty` barrier counts to 2.
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
    """The warp that copies from global to shared memory."""

    def _prologue(self) -> None:
        self._ring(1)
        self._writer.line("turn = tl.to_tensor(1)")

    def _tile(self) -> None:
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
    """A warpgroup that computes half of the rows."""

    def __init__(
        self, name: str, shape: AttentionKernel, pointers: dict[TileBuffer, str], steps: int
    ) -> None:
        parameters = ("half: tl.constexpr", *pointers.values(), *_SHARED)
        super().__init__(name, shape, pointers, steps, parameters)
        # Maps a result of a reduction along the columns to its Gluon block, which has only the axis
        # of rows.
        self._rows: dict[Block, PyExpr] = {}
        self._halves = {shape.mixed.a}

    def _prologue(self) -> None:
        columns = min(self.shape.scores.out.shape[1], self.shape.mixed.out.shape[1])
        self._layout(WARPS, columns, self.shape.queries.load.out.dtype)
        self._ring(0)
        self._writer.line("turn = tl.to_tensor(0)")
        self._indices.bind(free_vars(HALF)[0], PyExpr("half"))

    def _tile(self) -> None:
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

    def _steps(self, node: TileLoop, names: Sequence[str]) -> None:
        writer = self._writer
        trips, _ = bounds(node.stop - node.start)
        if trips is not None and trips > 0:
            self._iterations(node, names)
        else:
            start, stop = (self._indices.value(i).text for i in (node.start, node.stop))
            with writer.scope() as lines:
                self._iterations(node, names)
            writer.block(f"if {start} < {stop}:", lines)

    def _iterations(self, node: TileLoop, names: Sequence[str]) -> None:
        """Prints the loop; each iteration's second matmul overlaps the next iteration.

        An iteration has three steps. The first matmul (queries times keys) gives the scores. The
        statements `shares` turn scores into shares, which are the exponentials that weigh the
        values. The second matmul adds shares times values to the accumulator.

        The printed code first computes the shares of iteration 0. The printed loop then computes
        the shares of iteration n and, at the same time, the second matmul of iteration n - 1. The
        second matmul of the last iteration follows the loop.

        Iteration 0 does not rescale the accumulator, because it is zero. Rescaled zeros would be
        copied in registers between the matmul's fence and the matmul, which the instruction set
        forbids.
        """
        writer, line, mixed = self._writer, self._writer.line, self.shape.mixed
        position = node.yields.index(mixed.out)
        zeros = node.inits[position]
        yields = [mixed.acc if y is mixed.out else y for y in node.yields]
        first_yields = [zeros if y is mixed.out else y for y in node.yields]
        start, second_start, stop = (
            self._indices.value(i).text for i in (node.start, node.start + node.step, node.stop)
        )
        inits = [self._blocks[init] for init in node.inits]
        self._blocks.update(zip_equal(node.carried, inits))
        self._bind_counter(node, writer.define(node.var.name, start).text)
        self._end_matmul(self._scores(), "k", "step", running=0)
        self._body(self.shape.shares)
        shares = writer.define("left", self._shares()).text
        line(f"{', '.join(names)} = {', '.join(self._blocks[y].text for y in first_yields)}")
        self._late_step()
        counter = writer.name(node.var.name)
        with writer.scope() as lines:
            self._bind_counter(node, counter)
            for block, name in zip_equal(node.carried, names):
                self._blocks[block] = PyExpr(name, writer.depth)
            scores, sums = self._scores(), self._mixed(shares, names[position])
            self._end_matmul(scores, "k", "step", running=1)
            self._body(self.shape.shares)
            next_shares = self._shares()
            self._end_matmul(sums, "v", "late", running=0)
            self._blocks[node.carried[position]] = sums
            self._body(self.shape.rescaling)
            line(f"{shares} = {next_shares}")
            line(f"{', '.join(names)} = {', '.join(self._blocks[y].text for y in yields)}")
            self._late_step()
        writer.block(f"for {counter} in range({second_start}, {stop}, {node.step}):", lines)
        sums = self._mixed(shares, names[position])
        self._end_matmul(sums, "v", "late", running=0)
        line(f"{names[position]} = {sums.text}")

    def _late_step(self) -> None:
        """Prints lines that remember the buffer with this iteration's values, and end the step.

        The next iteration multiplies these values.
        """
        self._writer.line("late, late_phase = step, phase")
        self._end_step()

    def _scores(self) -> PyExpr:
        """Prints the start of the matmul of queries and keys; returns its result, the scores."""
        node, keys = self.shape.scores, self.shape.keys.box
        self._writer.line("mbarrier.wait(k_full.index(step), phase)")
        queries = box_view("q_ring.index(half)", self.shape.queries.box)
        zeros = self._full(node.out.shape, "0.0", "tl.float32")
        out = self._begin_matmul(node, queries, box_view("k_ring.index(step)", keys), zeros)
        self._blocks[node.out] = out
        return out

    def _mixed(self, shares: str, sums: str) -> PyExpr:
        """Prints the start of the matmul of the previous iteration's shares and values.

        Returns its result, which is the accumulator `sums` plus the product.
        """
        self._writer.line("mbarrier.wait(v_full.index(late), late_phase)")
        right = box_view("v_ring.index(late)", self.shape.values.box)
        return self._begin_matmul(self.shape.mixed, shares, right, sums)

    def _begin_matmul(self, node: Contract, lhs: str, rhs: str, sums: str) -> PyExpr:
        text = f"warpgroup_mma({lhs}, {rhs}, {sums}, is_async=True)"
        return self._writer.define(node.out.name, text)

    def _end_matmul(self, out: PyExpr, prefix: str, at: str, *, running: int) -> None:
        """Prints lines that wait for the matmul with the result `out` and release its rhs buffer.

        `prefix` is the start of the names of the buffer's barriers, and `at` the text of its number
        in the ring. `running` is the number of matmuls that started later; they may continue.
        """
        wait = f"warpgroup_mma_wait(num_outstanding={running}, deps=({out.text},))"
        self._writer.line(f"{out.text} = {wait}")
        self._writer.line(f"mbarrier.arrive({prefix}_empty.index({at}))")

    def _shares(self) -> str:
        """Returns the text of the shares, rounded to the values' type, as the lhs of a matmul."""
        dtype = type_name(self.shape.values.load.out.dtype)
        rows = f"({self._blocks[self.shape.mixed.a].text}).to({dtype})"
        return f"tl.convert_layout({rows}, tl.DotOperandLayout(0, layout, 2))"

    def _reduce(self, node: Reduce) -> None:
        """Prints a reduction of each row.

        The result has an axis of rows only. Other statements read it as a block with one column.
        """
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
