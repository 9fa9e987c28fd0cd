"""Products of tiles as Gluon, for Hopper: one warp copies, warpgroups multiply.

    NAME           makes a ring of shared buffers, each with a barrier `full` and one `empty`
    NAME_copy      one warp: for each unit and step waits for `empty`, starts two copies to `full`
    NAME_multiply  warpgroups: wait for `full`, multiply out of the ring, signal `empty`; after the
                   steps of a unit what the kernel does with the sums

A program stays for all units u, u + programs, ...: while one unit's results are stored, the ring
fills for the next.
"""

from __future__ import annotations

from math import prod

from tcc.backends.gpu.hopper.boxes import Box
from tcc.backends.gpu.hopper.matrix_shape import MatrixKernel
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
from tcc.backends.gpu.hopper.tensor_maps import TensorMap, tensor_map
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
    copying, multiplying = _Copies(name, shape, plan), _Products(name, shape, plan, warps)
    parts = [copying.text(), multiplying.text(), _kernel_text(name, shape, plan)]
    text = HEADER + multiplying.functions() + "\n\n".join(parts)
    return GluonText(text, tuple(plan.maps.values()))


# ---- what is shared -----------------------------------------------------------------------------


@record
class _Plan:
    """The ring's length, the maps by the name that the text gives them, and the stored tiles."""

    steps: int
    pointers: dict[TileBuffer, str]
    maps: dict[str, TensorMap]
    tiles: dict[Store, tuple[str, str, Box]]  # the map's name, the tile's

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.maps)


def _planned(shape: MatrixKernel, shared: int) -> _Plan | None:
    buffers = shape.kernel.buffers
    width = shape.a.block.dtype.bytes
    one = (prod(shape.a.box.shape) + prod(shape.b.box.shape)) * width
    boxes = list(shape.boxes)
    while True:
        kept = sum(prod(box.shape) * node.block.dtype.bytes for node, box in boxes)
        fitting = [n for n in _STEPS if n * one + kept + ROOM <= shared]
        if fitting and (fitting[0] > 2 or not boxes):
            break
        if not boxes:
            return None
        boxes.pop()
    writer = Writer((*RESERVED, *_RING))
    maps = {
        f"{s}_map": tensor_map(buffers, o.buffer, o.box)
        for s, o in (("a", shape.a), ("b", shape.b))
    }
    tiles = {}
    for number, (node, box) in enumerate(boxes):
        name = f"out{number}_map"
        maps[name] = tensor_map(buffers, node.buffer, box)
        tiles[node] = (name, f"out{number}", box)
    for name in (*maps, *(tile for _, tile, _ in tiles.values())):
        writer.name(name)
    pointers = {b: writer.name(b.name) for b in buffers}
    return _Plan(fitting[0], pointers, maps, tiles)


def _kernel_text(name: str, shape: MatrixKernel, plan: _Plan) -> str:
    """The kernel itself: shared memory, barriers, and the two parts at once."""
    dtype, steps = type_name(shape.a.block.dtype), plan.steps
    pointers = list(plan.pointers.values())
    lines = ["@gluon.jit", f"def {name}({', '.join([*pointers, *plan.names])}):"]
    for side, operand in (("a", shape.a), ("b", shape.b)):
        whole = shape_text((steps, *operand.box.shape))
        lines.append(
            f"    {side}_ring = tl.allocate_shared_memory({dtype}, {whole}, {side}_map.layout)"
        )
    for node, (map_name, tile, box) in plan.tiles.items():
        of = f"{type_name(node.block.dtype)}, {shape_text(box.shape)}, {map_name}.layout"
        lines.append(f"    {tile} = tl.allocate_shared_memory({of})")
    for barrier in ("full", "empty"):
        of = f"tl.int64, [{steps}, 1], mbarrier.MBarrierLayout()"
        lines.append(f"    {barrier} = tl.allocate_shared_memory({of})")
    tiles = [tile for _, tile, _ in plan.tiles.values()]
    stored = [n for n in plan.names if n not in ("a_map", "b_map")]
    lines += [
        f"    for step in tl.static_range({steps}):",
        "        mbarrier.init(full.index(step), count=1)",
        "        mbarrier.init(empty.index(step), count=1)",
        "    tl.warp_specialize(",
        "        [",
        f"            ({name}_multiply, ({', '.join([*pointers, *stored, *tiles, *_RING])})),",
        f"            ({name}_copy, (a_map, b_map, {', '.join(_RING)})),",
        "        ],",
        "        [1],",
        f"        [{FEW}],",
        "    )",
    ]
    return "\n".join(lines) + "\n"


# ---- the parts ----------------------------------------------------------------------------------


class _Part(WarpPart):
    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan) -> None:
        tiles = [tile for _, tile, _ in plan.tiles.values()]
        super().__init__(
            name, shape.kernel, plan.pointers, plan.steps, (*_RING, *plan.names, *tiles)
        )
        self.shape, self.plan = shape, plan


class _Copies(_Part):
    """The warp that copies."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan) -> None:
        super().__init__(f"{name}_copy", shape, plan)

    def text(self) -> str:
        return self.function(("a_map", "b_map", *_RING))

    def _first(self) -> None:
        self._ring(1)

    def _one(self) -> None:
        writer, loop = self._writer, self.shape.loop
        head, counter = self._head(loop)
        width = self.shape.a.block.dtype.bytes
        size = (prod(self.shape.a.box.shape) + prod(self.shape.b.box.shape)) * width
        with writer.scope() as lines:
            self._indices.bind(loop.var, PyExpr(counter, writer.depth))
            places = [self._place(o.box) for o in (self.shape.a, self.shape.b)]
            writer.line("mbarrier.wait(empty.index(step), phase)")
            writer.line(f"mbarrier.expect(full.index(step), {size})")
            for side, place in zip("ab", places, strict=True):
                target = f"full.index(step), {side}_ring.index(step)"
                writer.line(f"tma.async_load({side}_map, {place}, {target})")
            self._advance()
        writer.block(head, lines)


class _Products(_Part):
    """The warpgroups that multiply, and what becomes of the sums."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan, warps: int) -> None:
        super().__init__(f"{name}_multiply", shape, plan)
        self._warps = warps

    def text(self) -> str:
        tiles = [tile for _, tile, _ in self.plan.tiles.values()]
        stored = [n for n in self.plan.names if n not in ("a_map", "b_map")]
        return self.function((*self._pointers.values(), *stored, *tiles, *_RING))

    def _first(self) -> None:
        self._layout(self._warps, self.shape.columns)
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
        size = shape_text(contract.out.shape)
        acc = writer.define(contract.out.name, f"tl.zeros({size}, tl.float32, layout)")
        head, counter = self._head(loop)
        with writer.scope() as lines:
            writer.line("mbarrier.wait(full.index(step), phase)")
            a, b = (
                seen(f"{side}_ring.index(step)", operand.box)
                for side, operand in (("a", self.shape.a), ("b", self.shape.b))
            )
            writer.line(f"{acc.text} = warpgroup_mma({a}, {b}, {acc.text}, is_async=True)")
            self._wait(acc, 1)
            writer.line(f"mbarrier.arrive(empty.index(before), pred={counter} > {loop.start.key})")
            writer.line("before = step")
            self._advance()
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
        name, tile, box = self.plan.tiles[node]
        line("tma.store_wait(0)")
        line(f"{seen(tile, box)}.store({self._blocks[node.block].text})")
        line("fence_async_shared()")
        line(f"tma.async_store({name}, {self._place(box)}, {tile})")

    def _last(self) -> None:
        if self.plan.tiles:
            self._writer.line("tma.store_wait(0)")
