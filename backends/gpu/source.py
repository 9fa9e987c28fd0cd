"""The requests to the GPU worker processes, and their answers."""

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
from tcc.frozen import frozen
from tcc.ir.index import bounds
from tcc.ir.tile import TileBuffer, TileKernel
from tcc.ir.types import element_count
from tcc.zipped import zip_equal

# The architecture for which kernels may be written in Gluon.
HOPPER = "sm_90"
ALIGNED = 16  # bytes of the widest load of a lane


@frozen
class Parameter:
    """A kernel parameter: its type as Triton spells it, and guarantees for its value.

    `divisor` divides the address or the number. A `narrow` buffer has less than 2**31 bytes.
    """

    type: str
    divisor: int
    narrow: bool


@frozen
class KernelSource:
    """A module with the Triton function `name`, and how to compile it.

    `warps` warps run each program instance. `stages` is the largest number of pipeline stages for
    the loads of a loop. `maps` are the tensor maps (TMA descriptors) that a launch passes; they are
    the last parameters of the function. `hopper` is the same kernel in Gluon, for sm_90 alone. It
    is persistent: an instance computes many tiles, so a launch has as many instances as the device
    holds at once.
    """

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    warps: int
    stages: int
    maps: tuple[TensorMap, ...] = ()
    hopper: KernelSource | None = None


@frozen
class CompiledKernel(GpuKernel):
    """A kernel's code for one architecture; `image` is PTX if only assembly was requested.

    `assembly` is its PTX or AMD assembly. `stages` is the number of pipeline stages, which is less
    than requested if shared memory is short. `registers` and `private` (bytes) are what a lane uses
    according to the machine code; they are 0 for PTX. `scratch` is extra memory in bytes, which no
    launch provides.
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
    """Returns the source of a block kernel.

    `dot` says how the f32 operands of a Contract are multiplied: "ieee", "tf32", or after rounding
    to "bf16" or "f16". `alignments` are the guaranteed alignments of the kernel's buffers in bytes;
    None means the alignments that the buffers state. `gluon` is the shared memory in bytes for a
    kernel in Gluon; 0 means that Gluon is not used. Raises UserError for a function that GPUs lack.
    """
    text = triton_source(kernel, name, dot=dot)
    aligned = alignments or [b.align for b in kernel.buffers]
    pointers = tuple(
        Parameter(pointer_type(b.dtype), align, _is_narrow(b))
        for b, align in zip_equal(kernel.buffers, aligned)
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
    gluon: GluonText | None = None
    if (matmul := matrix_kernel(kernel, aligned, dot)) is not None:
        gluon = gluon_source(matmul, name, warps=warps, shared=shared)
    elif (attention := attention_kernel(kernel, aligned, dot)) is not None:
        gluon, warps = attention_source(attention, name, shared=shared), WARPS
    if gluon is None:
        return None
    maps = tuple(Parameter(map_type(m), 1, False) for m in gluon.maps)
    return KernelSource(name, gluon.text, (*pointers, *maps), warps, 1, gluon.maps)


def _is_narrow(buffer: TileBuffer) -> bool:
    count = bounds(element_count(buffer.sizes))[1]
    return count is not None and count * buffer.dtype.bytes < 2**31


def launch_parameters(source: KernelSource) -> tuple[Param, ...]:
    """Returns the kinds of a launch's parameters, in order.

    They are the buffers, the sizes or tensor maps, and Triton's two scratch areas. The sizes and
    strides of each tensor map follow it; no kernel reads them.
    """
    kinds = [
        Param.POINTER if p.type.startswith("*") else Param.INT64
        for p in source.parameters[: len(source.parameters) - len(source.maps)]
    ]
    for tensor_map in source.maps:
        kinds += [Param.TENSOR_MAP, *[Param.NULL] * (2 * len(tensor_map.sizes))]
    return (*kinds, Param.NULL, Param.NULL)
