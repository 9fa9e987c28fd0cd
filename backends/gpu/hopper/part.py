"""The parts of kernels in Gluon: functions that some of a thread block's warps run.

Gluon's language is imported as `tl`, so that the lines of `print.py` are Gluon too. Blocks of two
axes have the layout `layout`, which each function defines. Blocks of one axis have a slice of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Generic, Protocol, TypeVar

from tcc.backends.artifact.gpu_binaries import TensorMap
from tcc.backends.gpu.hopper.boxes import Box, BoxOperand
from tcc.backends.gpu.triton.dtypes import type_name
from tcc.backends.gpu.triton.indices import TritonIndices, VaryingAxes, index_type
from tcc.backends.gpu.triton.print import Printer
from tcc.backends.gpu.triton.writer import PyExpr
from tcc.frozen import frozen
from tcc.ir.expr import known_extent
from tcc.ir.index import free_vars
from tcc.ir.tile import TileBuffer, TileKernel, TileLoop
from tcc.ir.types import DType
from tcc.zipped import zip_equal

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
# Names that the text of every kernel uses.
RESERVED = tuple(
    "fence_async_shared gluon mbarrier tma warpgroup_mma warpgroup_mma_wait "
    "step phase behind before layout half turn late late_phase".split()
)
# Bytes of shared memory for barriers and alignment, besides the buffers.
ROOM = 2048
# Registers per lane of a warp that copies; the other warps share the remaining registers.
FEW = 24


class HopperKernel(Protocol):
    """A kernel that a Hopper form fits; subclasses add fields for its matmuls and operands."""

    @property
    def kernel(self) -> TileKernel: ...
    @property
    def loop(self) -> TileLoop: ...


Shape = TypeVar("Shape", bound=HopperKernel)


@frozen
class GluonText:
    """The text of a module with a kernel; the kernel's parameters are its buffers, then the
    `maps`."""

    text: str
    maps: tuple[TensorMap, ...]


def allocated(name: str, dtype: str, shape: Sequence[int], layout: str) -> str:
    """Returns the line that allocates a shared buffer."""
    return f"    {name} = tl.allocate_shared_memory({dtype}, {list(shape)}, {layout})"


def ring(name: str, count: int, operand: BoxOperand) -> str:
    """Returns the line that allocates `count` buffers for an operand, in the layout of its map."""
    dtype, shape = type_name(operand.load.out.dtype), (count, *operand.box.shape)
    return allocated(f"{name}_ring", dtype, shape, f"{name}_map.layout")


def barriers(name: str, count: int) -> str:
    """Returns the line that allocates `count` barriers."""
    return allocated(name, "tl.int64", (count, 1), "mbarrier.MBarrierLayout()")


def box_view(buffer: str, box: Box) -> str:
    """Returns the text of a view that shows a shared buffer, which holds a box, as the box's
    block."""
    text = buffer
    if len(box.shape) == 3:
        text += f".reshape({list(box.shape[1:])})"
    return f"{text}.permute((1, 0))" if box.transposed else text


class WarpPart(Printer, ABC, Generic[Shape]):
    """A part of a kernel: a function that loops over the tiles of its thread block.

    `shape` is the recognised kernel, and `parameters` the names of the function's parameters. The
    rings have `steps` buffers.
    """

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
        """Returns the functions that the text calls, as Gluon functions."""
        text = super().functions().replace("@triton.jit", "@gluon.jit")
        return text.replace("tl.PropagateNan", "triton.language.PropagateNan")

    def text(self) -> str:
        """Returns the text of the function."""
        writer, axes = self._writer, self.shape.kernel.axes
        tiles = prod(n for v in axes if (n := known_extent(v)) is not None)
        self._prologue()
        place = self._program = writer.name("program")
        with writer.scope() as lines:
            if not set(axes).isdisjoint(free_vars(self.shape.loop.stop - self.shape.loop.start)):
                self._program = self._mirrored(place, tiles)
            self._bind_axes(axes)
            self._tile()
        head = f"for {place} in range(tl.program_id(0), {tiles}, tl.num_programs(0)):"
        writer.block(head, lines)
        self._epilogue()
        body = "\n".join(f"    {line}" for line in writer.lines())
        return f"@gluon.jit\ndef {self._name}({', '.join(self._parameters)}):\n{body}\n"

    def _mirrored(self, place: str, tiles: int) -> str:
        """Prints lines that reverse the order of tiles in every second round.

        A round is one tile for each thread block. Later tiles of a causal head take more steps, and
        the number of blocks often shares a factor with the number of tiles of a head. So in
        unreversed rounds the same blocks would always get the longer tiles.
        """
        define, count = self._writer.define, "tl.num_programs(0)"
        first = define("first", f"{place} - tl.program_id(0)").text
        last = define("last", f"tl.minimum({first} + {count}, {tiles}) - 1").text
        odd = f"{first} // {count} % 2 == 1"
        return define("tile", f"tl.where({odd}, {first} + {last} - {place}, {place})").text

    @abstractmethod
    def _prologue(self) -> None:
        """Prints the lines before the first tile."""

    @abstractmethod
    def _tile(self) -> None:
        """Prints the lines of one tile."""

    def _epilogue(self) -> None:
        """Prints the lines after the last tile."""

    def _ring(self, phase: int) -> None:
        """Prints the variables with the position in the ring: buffer 0, and phase `phase`.

        A wait on a barrier returns at once if the barrier is not in the given phase. Barriers start
        in phase 0. Warps that fill the ring start with phase 1, so their first waits for empty
        buffers return at once. Warps that read the ring start with phase 0.
        """
        self._writer.line("step = tl.to_tensor(0)")
        self._writer.line(f"phase = tl.to_tensor({phase})")

    def _end_step(self) -> None:
        """Prints lines that move the position to the next buffer of the ring.

        After the last buffer comes buffer 0 again, and then the phase flips.
        """
        line = self._writer.line
        line("step += 1")
        line(f"behind = step == {self.steps}")
        line("step = tl.where(behind, 0, step)")
        line("phase = tl.where(behind, phase ^ 1, phase)")

    def _layout(self, warps: int, columns: int, dtype: DType) -> None:
        """Prints the layout of accumulators, from which all other layouts are derived.

        A matrix instruction takes 256 bits of terms of type `dtype`. Triton has none with 256
        columns of integers.
        """
        columns = min(columns, 256 if dtype.is_float else 128)
        line = self._writer.line
        line("layout: tl.constexpr = tl.NVMMADistributedLayout(")
        shape = [16, columns, 256 // dtype.bits]
        line(f"    version=[3, 0], warps_per_cta=[{warps}, 1], instr_shape={shape}")
        line(")")

    def _bind_counter(self, loop: TileLoop, counter: str) -> None:
        self._indices.bind(loop.var, PyExpr(counter, self._writer.depth))

    def _copy(
        self, operands: Mapping[str, BoxOperand], prefix: str, number: str, phase: str
    ) -> None:
        """Prints copies that fill buffer `number` of the operands' rings.

        The copies first wait until the buffer is empty; `phase` is the text of the phase to wait
        for. The operands share barriers, whose names begin with `prefix`.
        """
        line = self._writer.line
        places = [self._place(operand.box) for operand in operands.values()]
        full = f"{prefix}full.index({number})"
        line(f"mbarrier.wait({prefix}empty.index({number}), {phase})")
        line(f"mbarrier.expect({full}, {sum(operand.bytes for operand in operands.values())})")
        for name, place in zip_equal(operands, places):
            line(f"tma.async_load({name}_map, {place}, {full}, {name}_ring.index({number}))")

    def _place(self, box: Box) -> str:
        return f"[{', '.join(self._indices.value(i).text for i in box.at)}]"

    def _broadcast(self, text: str, shape: Sequence[int], dtype: str, span: VaryingAxes) -> str:
        if not span.ranked:
            return self._full(shape, text, dtype)
        return f"({text}).broadcast_to({list(shape)})"

    def _full(self, shape: Sequence[int], number: str, dtype: str) -> str:
        layout = "layout" if len(shape) == 2 else "tl.SliceLayout(1, layout)"
        return f"tl.full({list(shape)}, {number}, {dtype}, {layout})"
