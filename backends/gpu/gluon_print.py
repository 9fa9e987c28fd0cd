"""Products of tiles as Gluon, for Hopper: one warp copies, warpgroups multiply.

    NAME           makes a ring of shared buffers, each with a barrier `full` and one `empty`
    NAME_copy      one warp: for each unit and step waits for `empty`, starts two copies to `full`
    NAME_multiply  warpgroups: wait for `full`, multiply out of the ring, signal `empty`; after the
                   steps of a unit what the kernel does with the sums

A program stays for all units u, u + programs, ...: while one unit's results are stored, the ring
fills for the next.  Gluon's language goes by the name `tl`, so that the lines of `print.py` are
Gluon too; layouts follow from the accumulator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from tcc.backends.gpu.boxes import Box
from tcc.backends.gpu.dtypes import type_name
from tcc.backends.gpu.indices import Indices, Span, index_type
from tcc.backends.gpu.library import function_text
from tcc.backends.gpu.matrix_shape import MatrixKernel, Operand
from tcc.backends.gpu.print import Printer
from tcc.backends.gpu.tensor_maps import TensorMap, tensor_map
from tcc.backends.gpu.writer import Value, Writer
from tcc.ir.expr import extent
from tcc.ir.index import as_int
from tcc.ir.tile import Loop, Store, TileBuffer

_HEADER = """import triton.language
import triton.experimental.gluon.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


"""
_RESERVED = ("fence_async_shared", "gluon", "mbarrier", "tma", "warpgroup_mma",
             "warpgroup_mma_wait")  # fmt: skip
_RING = ("a_ring", "b_ring", "full", "empty")
_OWN = ("step", "phase", "behind", "before", "layout")
# Bytes of shared memory for barriers and alignment, beside buffers.
_ROOM = 2048
_STEPS = (4, 3, 2)  # buffers of a ring, the most that fit
# Registers of a lane of the copying warp; the others get what is left.
_FEW = 24


@dataclass(frozen=True, slots=True)
class GluonText:
    """A module with a kernel: its parameters are the kernel's buffers, then the `maps`."""

    text: str
    maps: tuple[TensorMap, ...]


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
    text = _HEADER + _functions(multiplying.used) + "\n\n".join(parts)
    return GluonText(text, tuple(plan.maps.values()))


def _functions(names: Iterable[str]) -> str:
    """The library's functions, as Gluon takes them."""
    text = function_text(names).replace("@triton.jit", "@gluon.jit")
    return text.replace("tl.PropagateNan", "triton.language.PropagateNan")


# ---- what is shared -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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
        fitting = [n for n in _STEPS if n * one + kept + _ROOM <= shared]
        if fitting and (fitting[0] > 2 or not boxes):
            break
        if not boxes:
            return None
        boxes.pop()
    writer = Writer((*_RESERVED, *_OWN, *_RING))
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


def _shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _kernel_text(name: str, shape: MatrixKernel, plan: _Plan) -> str:
    """The kernel itself: shared memory, barriers, and the two parts at once."""
    dtype, steps = type_name(shape.a.block.dtype), plan.steps
    pointers = list(plan.pointers.values())
    lines = ["@gluon.jit", f"def {name}({', '.join([*pointers, *plan.names])}):"]
    for side, operand in (("a", shape.a), ("b", shape.b)):
        whole = _shape_text((steps, *operand.box.shape))
        lines.append(
            f"    {side}_ring = tl.allocate_shared_memory({dtype}, {whole}, {side}_map.layout)"
        )
    for node, (map_name, tile, box) in plan.tiles.items():
        of = f"{type_name(node.block.dtype)}, {_shape_text(box.shape)}, {map_name}.layout"
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
        f"        [{_FEW}],",
        "    )",
    ]
    return "\n".join(lines) + "\n"


# ---- the parts ----------------------------------------------------------------------------------


class _Part(Printer):
    """One part: a function of all units, one after the other."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan) -> None:
        tiles = [tile for _, tile, _ in plan.tiles.values()]
        names = (*plan.names, *tiles, *plan.pointers.values())
        super().__init__(name, "ieee", (*_RESERVED, *_RING, *_OWN, *names))
        self.shape, self.plan = shape, plan
        self._pointers = plan.pointers
        self._indices = Indices(self._writer, index_type(shape.kernel), self._used, "layout")

    def lines(self, parameters: Sequence[str]) -> str:
        writer = self._writer
        units = prod(n for v in self.shape.kernel.axes if (n := as_int(extent(v))) is not None)
        self._ring()
        self._unit = writer.name("program")
        with writer.scope() as lines:
            self._units(self.shape.kernel.axes)
            self._one()
        head = f"for {self._unit} in range(tl.program_id(0), {units}, tl.num_programs(0)):"
        writer.block(head, lines)
        self._last()
        body = "\n".join(f"    {line}" for line in writer.lines())
        return f"@gluon.jit\ndef {self._name}({', '.join(parameters)}):\n{body}\n"

    def _ring(self) -> None:
        """Where the ring begins."""
        raise NotImplementedError

    def _one(self) -> None:
        """One unit's lines."""
        raise NotImplementedError

    def _last(self) -> None:
        """What comes after all units."""

    def _advance(self) -> None:
        """To the next buffer; behind the last one the phase of the barriers turns."""
        line = self._writer.line
        line("step += 1")
        line(f"behind = step == {self.plan.steps}")
        line("step = tl.where(behind, 0, step)")
        line("phase = tl.where(behind, phase ^ 1, phase)")

    def _steps(self, loop: Loop) -> tuple[str, str]:
        """The head of the loop over steps, and its counter."""
        counter = self._writer.name(loop.var.name)
        return f"for {counter} in range({loop.start.key}, {loop.stop.key}, {loop.step}):", counter


class _Copies(_Part):
    """The warp that copies."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan) -> None:
        super().__init__(f"{name}_copy", shape, plan)

    def text(self) -> str:
        return self.lines(("a_map", "b_map", *_RING))

    def _ring(self) -> None:
        self._writer.line("step = tl.to_tensor(0)")
        self._writer.line("phase = tl.to_tensor(1)")

    def _one(self) -> None:
        writer, loop = self._writer, self.shape.loop
        head, counter = self._steps(loop)
        width = self.shape.a.block.dtype.bytes
        size = (prod(self.shape.a.box.shape) + prod(self.shape.b.box.shape)) * width
        with writer.scope() as lines:
            self._indices.bind(loop.var, Value(counter, writer.depth))
            places = [self._place(o.box) for o in (self.shape.a, self.shape.b)]
            writer.line("mbarrier.wait(empty.index(step), phase)")
            writer.line(f"mbarrier.expect(full.index(step), {size})")
            for side, place in zip("ab", places, strict=True):
                target = f"full.index(step), {side}_ring.index(step)"
                writer.line(f"tma.async_load({side}_map, {place}, {target})")
            self._advance()
        writer.block(head, lines)

    def _place(self, box: Box) -> str:
        return f"[{', '.join(self._indices.value(i).text for i in box.at)}]"


class _Products(_Part):
    """The warpgroups that multiply, and what becomes of the sums."""

    def __init__(self, name: str, shape: MatrixKernel, plan: _Plan, warps: int) -> None:
        super().__init__(f"{name}_multiply", shape, plan)
        self._warps = warps

    @property
    def used(self) -> dict[str, None]:
        """Functions of the library that the text calls."""
        return self._used

    def text(self) -> str:
        tiles = [tile for _, tile, _ in self.plan.tiles.values()]
        stored = [n for n in self.plan.names if n not in ("a_map", "b_map")]
        return self.lines((*self._pointers.values(), *stored, *tiles, *_RING))

    def _ring(self) -> None:
        line = self._writer.line
        line("layout: tl.constexpr = tl.NVMMADistributedLayout(")
        line(
            f"    version=[3, 0], warps_per_cta=[{self._warps}, 1], "
            f"instr_shape=[16, {self.shape.columns}, 16]"
        )
        line(")")
        line("step = tl.to_tensor(0)")
        line("phase = tl.to_tensor(0)")
        line("before = tl.to_tensor(0)")

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
        size = _shape_text(contract.out.shape)
        acc = writer.define(contract.out.name, f"tl.zeros({size}, tl.float32, layout)")
        head, counter = self._steps(loop)
        with writer.scope() as lines:
            writer.line("mbarrier.wait(full.index(step), phase)")
            a, b = (_operand(side, o) for side, o in zip("ab", self._operands, strict=True))
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

    @property
    def _operands(self) -> tuple[Operand, Operand]:
        return self.shape.a, self.shape.b

    def _wait(self, acc: Value, left: int) -> None:
        deps = f"num_outstanding={left}, deps=({acc.text},)"
        self._writer.line(f"{acc.text} = warpgroup_mma_wait({deps})")

    def _copy_out(self, node: Store) -> None:
        """Through shared memory; the copy before may still read it."""
        line = self._writer.line
        name, tile, box = self.plan.tiles[node]
        place = ", ".join(self._indices.value(i).text for i in box.at)
        view = tile if len(box.shape) == 2 else f"{tile}.reshape({_shape_text(box.shape[1:])})"
        line("tma.store_wait(0)")
        line(f"{view}.store({self._blocks[node.block].text})")
        line("fence_async_shared()")
        line(f"tma.async_store({name}, [{place}], {tile})")

    def _last(self) -> None:
        if self.plan.tiles:
            self._writer.line("tma.store_wait(0)")

    def _broadcast(self, text: str, shape: Sequence[int], dtype: str, span: Span) -> str:
        if not span.ranked:
            return f"tl.full({_shape_text(shape)}, {text}, {dtype})"
        return f"({text}).broadcast_to({_shape_text(shape)})"


def _operand(side: str, operand: Operand) -> str:
    text, box = f"{side}_ring.index(step)", operand.box
    if len(box.shape) == 3:
        text += f".reshape({_shape_text(box.shape[1:])})"
    return f"{text}.permute((1, 0))" if box.turned else text
