"""Matmuls in Gluon for Hopper: one warp copies, warpgroups multiply.

    NAME           allocates a ring of shared buffers, each with a barrier `full` and one `empty`
    NAME_copy      one warp: for each tile and step waits for `empty`, starts two copies to `full`
    NAME_multiply  warpgroups: wait for `full`, multiply out of the ring, signal `empty`; after the
                   steps of a tile run the kernel's other statements on the accumulator

A step is a K-block. The kernel is persistent: a thread block computes the tiles u, u + blocks, u +
2 blocks, ... While the results of one tile are stored, the ring fills for the next tile.
"""

from math import prod

from tcc.backends.artifact.gpu_binaries import TensorMap
from tcc.backends.gpu.hopper.boxes import Box
from tcc.backends.gpu.hopper.matrix_shape import MatrixKernel
from tcc.backends.gpu.hopper.part import (
    FEW,
    HEADER,
    RESERVED,
    ROOM,
    GluonText,
    WarpPart,
    allocated,
    barriers,
    box_view,
    ring,
)
from tcc.backends.gpu.hopper.tensor_maps import tensor_map
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.frozen import frozen
from tcc.ir.tile import Store, TileBuffer
from tcc.ir.types import F32

_RING = ("a_ring", "b_ring", "full", "empty")
_STEPS = (4, 3, 2)  # candidate numbers of buffers in a ring; the first that fits is used


def gluon_source(shape: MatrixKernel, name: str, *, warps: int, shared: int) -> GluonText | None:
    """Returns the kernel as the Gluon function `name`, in which `warps` warps multiply.

    The grid has as many thread blocks as the device holds at once. Returns None if `shared` bytes
    of shared memory do not hold two steps.
    """
    plan = _planned(shape, shared)
    if plan is None:
        return None
    parameters = ("a_map", "b_map", *_RING)
    copies = _Copies(f"{name}_copy", shape, plan.pointers, plan.steps, parameters)
    matmuls = _Matmuls(f"{name}_multiply", shape, plan, warps)
    parts = [copies.text(), matmuls.text(), _kernel_text(name, shape, plan)]
    text = HEADER + matmuls.functions() + "\n\n".join(parts)
    return GluonText(text, tuple(plan.maps.values()))


# ---- decisions that both parts share -------------------------------------------------------------


@frozen
class _Plan:
    """Decisions that both parts of the kernel share.

    `steps` is the number of buffers in a ring. `pointers` are the names of the kernel's buffers in
    the text, and `maps` the tensor maps by their names in the text. `tiles` has the name and the
    box of each result that a tensor map stores.
    """

    steps: int
    pointers: dict[TileBuffer, str]
    maps: dict[str, TensorMap]
    tiles: dict[Store, tuple[str, Box]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters of the warpgroups' function."""
        tiles = [tile for tile, _ in self.tiles.values()]
        return (*self.pointers.values(), *(f"{tile}_map" for tile in tiles), *tiles, *_RING)


def _planned(shape: MatrixKernel, shared: int) -> _Plan | None:
    buffers, boxes = shape.kernel.buffers, list(shape.boxes)
    while True:
        stored_bytes = sum(prod(box.shape) * node.block.dtype.bytes for node, box in boxes)
        step_bytes = shape.a.bytes + shape.b.bytes
        fitting = [n for n in _STEPS if n * step_bytes + stored_bytes + ROOM <= shared]
        if fitting and (fitting[0] > 2 or not boxes):
            break
        if not boxes:
            return None
        boxes.pop()
    maps = {
        f"{name}_map": tensor_map(buffers, operand.load.buffer, operand.box)
        for name, operand in (("a", shape.a), ("b", shape.b))
    }
    tiles = {}
    for number, (node, box) in enumerate(boxes):
        maps[f"out{number}_map"] = tensor_map(buffers, node.buffer, box)
        tiles[node] = (f"out{number}", box)
    writer = Writer((*RESERVED, *_RING, *maps, *(tile for tile, _ in tiles.values())))
    pointers = {b: writer.name(b.name) for b in buffers}
    return _Plan(fitting[0], pointers, maps, tiles)


def _kernel_text(name: str, shape: MatrixKernel, plan: _Plan) -> str:
    """Returns the main function: it allocates shared memory and barriers, and starts the two
    parts."""
    return "\n".join(
        (
            "@gluon.jit",
            f"def {name}({', '.join([*plan.pointers.values(), *plan.maps])}):",
            ring("a", plan.steps, shape.a),
            ring("b", plan.steps, shape.b),
            *(
                allocated(tile, type_name(node.block.dtype), box.shape, f"{tile}_map.layout")
                for node, (tile, box) in plan.tiles.items()
            ),
            barriers("full", plan.steps),
            barriers("empty", plan.steps),
            f"""\
    for step in tl.static_range({plan.steps}):
        mbarrier.init(full.index(step), count=1)
        mbarrier.init(empty.index(step), count=1)
    tl.warp_specialize(
        [
            ({name}_multiply, ({", ".join(plan.parameters)})),
            ({name}_copy, (a_map, b_map, {", ".join(_RING)})),
        ],
        [1],
        [{FEW}],
    )
""",
        )
    )


# ---- the two parts -------------------------------------------------------------------------------


class _Copies(WarpPart[MatrixKernel]):
    """The warp that copies from global to shared memory."""

    def _prologue(self) -> None:
        self._ring(1)

    def _tile(self) -> None:
        loop, operands = self.shape.loop, {"a": self.shape.a, "b": self.shape.b}
        head, counter = self._head(loop)
        with self._writer.scope() as lines:
            self._bind_counter(loop, counter)
            self._copy(operands, "", "step", "phase")
            self._end_step()
        self._writer.block(head, lines)


class _Matmuls(WarpPart[MatrixKernel]):
    """The warpgroups that multiply, and that run the statements after the loop."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan, warps: int) -> None:
        super().__init__(name, shape, plan.pointers, plan.steps, plan.parameters)
        self.plan, self._warps = plan, warps

    def _prologue(self) -> None:
        contract = self.shape.contract
        self._layout(self._warps, contract.out.shape[1], contract.a.dtype)
        self._ring(0)
        self._writer.line("before = tl.to_tensor(0)")

    def _tile(self) -> None:
        self._matmul()
        for node in self.shape.after:
            if isinstance(node, Store) and node in self.plan.tiles:
                self._copy_out(node)
            else:
                self._statement(node)

    def _matmul(self) -> None:
        """Prints the loop of matmuls.

        A step's buffer is released once the next matmul has started.
        """
        writer, loop, contract = self._writer, self.shape.loop, self.shape.contract
        sums = type_name(contract.acc.dtype)
        zeros = f"tl.zeros({list(contract.out.shape)}, {sums}, layout)"
        options = 'precision="tf32", ' if contract.a.dtype is F32 else ""
        acc = writer.define(contract.out.name, zeros)
        head, counter = self._head(loop)
        with writer.scope() as lines:
            writer.line("mbarrier.wait(full.index(step), phase)")
            a = box_view("a_ring.index(step)", self.shape.a.box)
            b = box_view("b_ring.index(step)", self.shape.b.box)
            writer.line(f"{acc.text} = warpgroup_mma({a}, {b}, {acc.text}, {options}is_async=True)")
            self._wait(acc, 1)
            writer.line(f"mbarrier.arrive(empty.index(before), pred={counter} > {loop.start.key})")
            writer.line("before = step")
            self._end_step()
        writer.block(head, lines)
        self._wait(acc, 0)
        writer.line("mbarrier.arrive(empty.index(before))")
        (result,) = loop.results
        self._blocks[result] = acc

    def _wait(self, acc: PyExpr, running: int) -> None:
        deps = f"num_outstanding={running}, deps=({acc.text},)"
        self._writer.line(f"{acc.text} = warpgroup_mma_wait({deps})")

    def _copy_out(self, node: Store) -> None:
        """Stores a block through shared memory.

        It first waits for the previous copy, which may still read that memory.
        """
        line = self._writer.line
        tile, box = self.plan.tiles[node]
        line("tma.store_wait(0)")
        line(f"{box_view(tile, box)}.store({self._blocks[node.block].text})")
        line("fence_async_shared()")
        line(f"tma.async_store({tile}_map, {self._place(box)}, {tile})")

    def _epilogue(self) -> None:
        if self.plan.tiles:
            self._writer.line("tma.store_wait(0)")
