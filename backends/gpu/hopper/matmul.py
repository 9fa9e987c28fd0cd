"""Products of tiles as Gluon, for Hopper: one warp copies, warpgroups multiply.

    NAME           makes a ring of shared buffers, each with a barrier `full` and one `empty`
    NAME_copy      one warp: for each unit and step waits for `empty`, starts two copies to `full`
    NAME_multiply  warpgroups: wait for `full`, multiply out of the ring, signal `empty`; after the
                   steps of a unit what the kernel does with the sums

A program stays for all units u, u + programs, ...: while one unit's results are stored, the ring
fills for the next.
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
    ring,
    seen,
)
from tcc.backends.gpu.hopper.tensor_maps import tensor_map
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.ir.tile import Store, TileBuffer
from tcc.record import record

_RING = ("a_ring", "b_ring", "full", "empty")
_STEPS = (4, 3, 2)  # buffers of a ring, the most that fit


def gluon_source(shape: MatrixKernel, name: str, *, warps: int, shared: int) -> GluonText | None:
    """The kernel as the Gluon function `name` for `warps` that multiply.

    The launch is a grid of as many programs as the device holds at once.  None where two steps
    do not fit in `shared` bytes of memory.
    """
    plan = _planned(shape, shared)
    if plan is None:
        return None
    given = ("a_map", "b_map", *_RING)
    copying = _Copies(f"{name}_copy", shape, plan.pointers, plan.steps, given)
    multiplying = _Products(f"{name}_multiply", shape, plan, warps)
    parts = [copying.text(), multiplying.text(), _kernel_text(name, shape, plan)]
    text = HEADER + multiplying.functions() + "\n\n".join(parts)
    return GluonText(text, tuple(plan.maps.values()))


# ---- what is shared -----------------------------------------------------------------------------


@record
class _Plan:
    """The ring's length, the maps by the name that the text gives them, and the name and the box of
    each tile that is stored by its map."""

    steps: int
    pointers: dict[TileBuffer, str]
    maps: dict[str, TensorMap]
    tiles: dict[Store, tuple[str, Box]]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What the warpgroups are given."""
        tiles = [tile for tile, _ in self.tiles.values()]
        return (*self.pointers.values(), *(f"{tile}_map" for tile in tiles), *tiles, *_RING)


def _planned(shape: MatrixKernel, shared: int) -> _Plan | None:
    buffers, boxes = shape.kernel.buffers, list(shape.boxes)
    while True:
        kept = sum(prod(box.shape) * node.block.dtype.bytes for node, box in boxes)
        one = shape.a.bytes + shape.b.bytes
        fitting = [n for n in _STEPS if n * one + kept + ROOM <= shared]
        if fitting and (fitting[0] > 2 or not boxes):
            break
        if not boxes:
            return None
        boxes.pop()
    maps = {
        f"{s}_map": tensor_map(buffers, o.load.buffer, o.box)
        for s, o in (("a", shape.a), ("b", shape.b))
    }
    tiles = {}
    for number, (node, box) in enumerate(boxes):
        maps[f"out{number}_map"] = tensor_map(buffers, node.buffer, box)
        tiles[node] = (f"out{number}", box)
    writer = Writer((*RESERVED, *_RING, *maps, *(tile for tile, _ in tiles.values())))
    pointers = {b: writer.name(b.name) for b in buffers}
    return _Plan(fitting[0], pointers, maps, tiles)


def _kernel_text(name: str, shape: MatrixKernel, plan: _Plan) -> str:
    """The kernel itself: shared memory, barriers, and the two parts at once."""
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


# ---- the parts ----------------------------------------------------------------------------------


class _Copies(WarpPart[MatrixKernel]):
    """The warp that copies."""

    def _first(self) -> None:
        self._ring(1)

    def _one(self) -> None:
        loop, sides = self.shape.loop, {"a": self.shape.a, "b": self.shape.b}
        head, counter = self._head(loop)
        with self._writer.scope() as lines:
            self._bind_counter(loop, counter)
            self._copy(sides, "", "step", "phase")
            self._end_step()
        self._writer.block(head, lines)


class _Products(WarpPart[MatrixKernel]):
    """The warpgroups that multiply, and what becomes of the sums."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan, warps: int) -> None:
        super().__init__(name, shape, plan.pointers, plan.steps, plan.parameters)
        self.plan, self._warps = plan, warps

    def _first(self) -> None:
        self._layout(self._warps, self.shape.contract.out.shape[1])
        self._ring(0)
        self._writer.line("before = tl.to_tensor(0)")

    def _one(self) -> None:
        self._product()
        for node in self.shape.after:
            if isinstance(node, Store) and node in self.plan.tiles:
                self._copy_out(node)
            else:
                self._statement(node)

    def _product(self) -> None:
        """The buffer of a step is free when the product of the next one has begun."""
        writer, loop, contract = self._writer, self.shape.loop, self.shape.contract
        zeros = f"tl.zeros({list(contract.out.shape)}, tl.float32, layout)"
        acc = writer.define(contract.out.name, zeros)
        head, counter = self._head(loop)
        with writer.scope() as lines:
            writer.line("mbarrier.wait(full.index(step), phase)")
            a = seen("a_ring.index(step)", self.shape.a.box)
            b = seen("b_ring.index(step)", self.shape.b.box)
            writer.line(f"{acc.text} = warpgroup_mma({a}, {b}, {acc.text}, is_async=True)")
            self._wait(acc, 1)
            writer.line(f"mbarrier.arrive(empty.index(before), pred={counter} > {loop.start.key})")
            writer.line("before = step")
            self._end_step()
        writer.block(head, lines)
        self._wait(acc, 0)
        writer.line("mbarrier.arrive(empty.index(before))")
        (result,) = loop.results
        self._blocks[result] = acc

    def _wait(self, acc: PyExpr, left: int) -> None:
        deps = f"num_outstanding={left}, deps=({acc.text},)"
        self._writer.line(f"{acc.text} = warpgroup_mma_wait({deps})")

    def _copy_out(self, node: Store) -> None:
        """Through shared memory; the copy before may still read it."""
        line = self._writer.line
        tile, box = self.plan.tiles[node]
        line("tma.store_wait(0)")
        line(f"{seen(tile, box)}.store({self._blocks[node.block].text})")
        line("fence_async_shared()")
        line(f"tma.async_store({tile}_map, {self._place(box)}, {tile})")

    def _last(self) -> None:
        if self.plan.tiles:
            self._writer.line("tma.store_wait(0)")
