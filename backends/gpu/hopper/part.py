"""What kernels in Gluon are made of: functions of one part of a program's warps.

Gluon's language goes by the name `tl`, so that the lines of `print.py` are Gluon too.  Every block
of two axes has the layout `layout`, every row of one axis its slice; each function says which.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Generic, Protocol, TypeVar

from tcc.backends.artifact.gpu_binaries import TensorMap
from tcc.backends.gpu.hopper.boxes import Box, Side
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.indices import TritonIndices, VaryingAxes, index_type
from tcc.backends.gpu.triton.print import Printer
from tcc.backends.gpu.triton.writer import PyExpr
from tcc.ir.expr import known_extent
from tcc.ir.tile import Loop, TileBuffer, TileKernel
from tcc.record import record

HEADER = """import triton.language
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
# Names that the text of every kernel has.
RESERVED = tuple(
    "fence_async_shared gluon mbarrier tma warpgroup_mma warpgroup_mma_wait "
    "step phase behind before layout half turn late late_phase".split()
)
# Bytes of shared memory for barriers and alignment, beside buffers.
ROOM = 2048
# Registers of a lane of a copying warp; the others get what is left.
FEW = 24


class HopperKernel(Protocol):
    """What was recognised of a kernel."""

    @property
    def kernel(self) -> TileKernel: ...


Shape = TypeVar("Shape", bound=HopperKernel)


@record
class GluonText:
    """A module with a kernel: its parameters are the kernel's buffers, then the `maps`."""

    text: str
    maps: tuple[TensorMap, ...]


def allocated(name: str, dtype: str, shape: Sequence[int], layout: str) -> str:
    """A line that makes a shared buffer."""
    return f"    {name} = tl.allocate_shared_memory({dtype}, {list(shape)}, {layout})"


def ring(name: str, count: int, side: Side) -> str:
    """A line that makes so many buffers for a side, of the layout of its map."""
    dtype, shape = type_name(side.load.out.dtype), (count, *side.box.shape)
    return allocated(f"{name}_ring", dtype, shape, f"{name}_map.layout")


def barriers(name: str, count: int) -> str:
    """A line that makes so many barriers."""
    return allocated(name, "tl.int64", (count, 1), "mbarrier.MBarrierLayout()")


def seen(buffer: str, box: Box) -> str:
    """A buffer that holds a box as the block that the box is."""
    text = buffer
    if len(box.shape) == 3:
        text += f".reshape({list(box.shape[1:])})"
    return f"{text}.permute((1, 0))" if box.transposed else text


class WarpPart(Printer, ABC, Generic[Shape]):
    """One part of a kernel of `shape`: a function of `parameters`, which takes all units one after
    the other; the rings have `steps` buffers."""

    _range = "range"

    def __init__(
        self,
        name: str,
        shape: Shape,
        pointers: Mapping[TileBuffer, str],
        steps: int,
        parameters: Sequence[str],
    ) -> None:
        super().__init__(name, "ieee", (*RESERVED, *parameters, *pointers.values()))
        self.shape, self.steps = shape, steps
        self._pointers, self._parameters = dict(pointers), list(parameters)
        index = index_type(shape.kernel)
        self._indices = TritonIndices(self._writer, index, self._used, "layout")

    def functions(self) -> str:
        """As Gluon takes them."""
        text = super().functions().replace("@triton.jit", "@gluon.jit")
        return text.replace("tl.PropagateNan", "triton.language.PropagateNan")

    def text(self) -> str:
        """The function."""
        writer, axes = self._writer, self.shape.kernel.axes
        units = prod(n for v in axes if (n := known_extent(v)) is not None)
        self._first()
        self._unit = writer.name("program")
        with writer.scope() as lines:
            self._units(axes)
            self._one()
        head = f"for {self._unit} in range(tl.program_id(0), {units}, tl.num_programs(0)):"
        writer.block(head, lines)
        self._last()
        body = "\n".join(f"    {line}" for line in writer.lines())
        return f"@gluon.jit\ndef {self._name}({', '.join(self._parameters)}):\n{body}\n"

    @abstractmethod
    def _first(self) -> None:
        """What comes before all units."""

    @abstractmethod
    def _one(self) -> None:
        """One unit's lines."""

    def _last(self) -> None:
        """What comes after all units."""

    def _ring(self, phase: int) -> None:
        """Where the ring begins; those who fill it wait for the phase before the first."""
        self._writer.line("step = tl.to_tensor(0)")
        self._writer.line(f"phase = tl.to_tensor({phase})")

    def _end_step(self) -> None:
        """To the next buffer; behind the last one the phase of the barriers turns."""
        line = self._writer.line
        line("step += 1")
        line(f"behind = step == {self.steps}")
        line("step = tl.where(behind, 0, step)")
        line("phase = tl.where(behind, phase ^ 1, phase)")

    def _layout(self, warps: int, columns: int) -> None:
        """The layout of sums, by which all other blocks go."""
        line = self._writer.line
        line("layout: tl.constexpr = tl.NVMMADistributedLayout(")
        line(f"    version=[3, 0], warps_per_cta=[{warps}, 1], instr_shape=[16, {columns}, 16]")
        line(")")

    def _bind_counter(self, loop: Loop, counter: str) -> None:
        self._indices.bind(loop.var, PyExpr(counter, self._writer.depth))

    def _copy(self, sides: Mapping[str, Side], prefix: str, at: str, phase: str) -> None:
        """Fills the buffers `at` a place of the rings of `sides`, which share the barriers whose
        names begin with `prefix`."""
        line = self._writer.line
        places = [self._place(side.box) for side in sides.values()]
        full = f"{prefix}full.index({at})"
        line(f"mbarrier.wait({prefix}empty.index({at}), {phase})")
        line(f"mbarrier.expect({full}, {sum(side.bytes for side in sides.values())})")
        for name, place in zip(sides, places, strict=True):
            line(f"tma.async_load({name}_map, {place}, {full}, {name}_ring.index({at}))")

    def _place(self, box: Box) -> str:
        return f"[{', '.join(self._indices.value(i).text for i in box.at)}]"

    def _broadcast(self, text: str, shape: Sequence[int], dtype: str, span: VaryingAxes) -> str:
        if not span.ranked:
            return self._full(shape, text, dtype)
        return f"({text}).broadcast_to({list(shape)})"

    def _full(self, shape: Sequence[int], number: str, dtype: str) -> str:
        layout = "layout" if len(shape) == 2 else "tl.SliceLayout(1, layout)"
        return f"tl.full({list(shape)}, {number}, {dtype}, {layout})"
