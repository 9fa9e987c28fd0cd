"""What is asked of the workers, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence

from tcc.backends.artifact.gpu_binaries import GpuKernel, Param, TensorMap
from tcc.backends.gpu.hopper.attention import WARPS, attention_source
from tcc.backends.gpu.hopper.attention_shape import attention_kernel
from tcc.backends.gpu.hopper.matmul import gluon_source
from tcc.backends.gpu.hopper.matrix_shape import matrix_kernel
from tcc.backends.gpu.hopper.part import GluonText
from tcc.backends.gpu.hopper.tensor_maps import map_type
from tcc.backends.gpu.triton.dtypes import pointer_type
from tcc.backends.gpu.triton.print import triton_source
from tcc.ir.index import bounds
from tcc.ir.tile import TileBuffer, TileKernel
from tcc.ir.types import element_count
from tcc.record import record

# The architecture that kernels in Gluon are for.
HOPPER = "sm_90"
ALIGNED = 16  # bytes: what the widest load of a lane takes


@record
class Parameter:
    """One parameter: its type in Triton's words, and what is promised of its value.

    `divisor` divides the address or the number, as far as it is a power of two up to 16; `narrow`
    buffers have less than 2**31 bytes.
    """

    type: str
    divisor: int
    narrow: bool


@record
class KernelSource:
    """A module with the Triton function `name`, and how to compile it.

    `warps` run one program; `stages` is how deep loads of loops are pipelined, at most.  `maps`
    follow the other parameters.  `hopper` is the kernel in Gluon, for sm_90 alone: it stays for
    all units, so that a launch has as many programs as the device holds at once.
    """

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    warps: int
    stages: int
    maps: tuple[TensorMap, ...] = ()
    hopper: KernelSource | None = None


@record
class CompiledKernel(GpuKernel):
    """A kernel's code for one architecture; `image` is PTX where that was asked for.

    `assembly` is its PTX or AMD assembly.  `stages` is how deep loads are pipelined: fewer than
    asked for where shared memory is short.  `registers` and `private` bytes of a lane are those
    that machine code states, of PTX 0.  `scratch` is memory beside the buffers, in bytes, which no
    launch gives.
    """

    arch: str
    assembly: str
    stages: int
    registers: int
    private: int
    scratch: int = 0


def kernel_source(
    kernel: TileKernel,
    name: str,
    *,
    warps: int,
    stages: int,
    dot: str,
    alignments: Sequence[int] | None = None,
    gluon: int = 0,
) -> KernelSource:
    """The source of a block kernel; see `triton_source` for `dot` and for what is raised.

    `alignments` are those of its buffers in bytes; None: what the buffers say.  `gluon` is the
    shared memory that a kernel in Gluon may take beside it, where its shape has one.
    """
    text = triton_source(kernel, name, dot=dot)
    aligned = alignments or [b.align for b in kernel.buffers]
    pointers = tuple(
        Parameter(pointer_type(b.dtype), align, _is_narrow(b))
        for b, align in zip(kernel.buffers, aligned, strict=True)
    )
    sizes = (Parameter("i64", v.divisor, False) for v in kernel.sizes)
    hopper = _hopper(kernel, name, pointers, dot, warps, gluon) if gluon else None
    return KernelSource(name, text, (*pointers, *sizes), warps, stages, hopper=hopper)


def _hopper(
    kernel: TileKernel,
    name: str,
    pointers: tuple[Parameter, ...],
    dot: str,
    warps: int,
    shared: int,
) -> KernelSource | None:
    aligned = [p.divisor for p in pointers]
    made: GluonText | None = None
    if (product := matrix_kernel(kernel, aligned)) is not None:
        made = gluon_source(product, name, warps=warps, shared=shared)
    elif (attention := attention_kernel(kernel, aligned, dot)) is not None:
        made, warps = attention_source(attention, name, shared=shared), WARPS
    if made is None:
        return None
    maps = tuple(Parameter(map_type(m), 1, False) for m in made.maps)
    return KernelSource(name, made.text, (*pointers, *maps), warps, 1, made.maps)


def _is_narrow(buffer: TileBuffer) -> bool:
    count = bounds(element_count(buffer.sizes))[1]
    return count is not None and count * buffer.dtype.bytes < 2**31


def launch_parameters(source: KernelSource) -> tuple[Param, ...]:
    """What a launch of the kernel passes: its buffers, its sizes or tensor maps, Triton's two
    scratch areas.

    Behind each map come its sizes and strides once more, which no kernel here reads.
    """
    kinds = [
        Param.POINTER if p.type.startswith("*") else Param.INT64
        for p in source.parameters[: len(source.parameters) - len(source.maps)]
    ]
    for each in source.maps:
        kinds += [Param.TENSOR_MAP, *[Param.NULL] * (2 * len(each.sizes))]
    return (*kinds, Param.NULL, Param.NULL)
