"""Block kernels to the images of an artifact: all kernels for all architectures of a target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tcc.backends.gpu.compile import compile_kernels
from tcc.backends.gpu.source import HOPPER, CompiledKernel, ParameterKind, kernel_source
from tcc.backends.gpu.tensor_maps import TensorMap
from tcc.backends.images import (
    Form,
    GpuImages,
    GpuKernel,
    GpuVariant,
    ImageMap,
    Param,
    Platform,
)
from tcc.ir.tile import TileKernel
from tcc.ir.types import DTYPES
from tcc.schedule.blocks import BlockSchedule
from tcc.target import GpuProfile, Target

_PARAMS = {
    ParameterKind.POINTER: Param.POINTER,
    ParameterKind.INT64: Param.INT64,
    ParameterKind.NULLPTR: Param.NULL,
    ParameterKind.TENSOR_MAP: Param.TENSOR_MAP,
}


@dataclass(frozen=True, slots=True)
class GpuCode:
    """The kernels of a program, compiled.

    `listings` are their Triton sources; `kernels` what each became, by architecture of the target,
    then by kernel.
    """

    images: GpuImages
    listings: tuple[str, ...]
    kernels: tuple[tuple[CompiledKernel, ...], ...]


def compile_blocks(
    kernels: Sequence[TileKernel],
    names: Sequence[str],
    schedules: Sequence[BlockSchedule],
    alignments: Sequence[Sequence[int]],
    target: Target,
    *,
    precision: str,
    allow_host: bool,
    gluon: bool,
    jobs: int,
) -> GpuCode:
    """Code of each kernel for each of the target's GPUs, by up to `jobs` processes.

    `alignments` are those of the kernels' buffers.  Products of f32 are exact where `precision` is
    f32, else its own.  `gluon`: Hopper's products of halves may be in Gluon.  Raises what
    `compile_kernels` raises.
    """
    dot = "ieee" if precision == "f32" else precision
    room = max((gpu.shared for gpu in target.gpus if gluon and gpu.arch == HOPPER), default=0)
    sources = [
        kernel_source(
            kernel, name, warps=s.warps, stages=s.stages, dot=dot, alignments=aligned, gluon=room
        )
        for kernel, name, s, aligned in zip(kernels, names, schedules, alignments, strict=True)
    ]
    made = compile_kernels(sources, target.gpus, jobs)
    by_arch = tuple(tuple(each[n] for each in made) for n in range(len(target.gpus)))
    platform = Platform.HIP if target.kind == "rocm" else Platform.CUDA
    variants = tuple(map(_variant, target.gpus, by_arch))
    listings = tuple(
        s.text if s.hopper is None else s.hopper.text + "\n\n" + s.text for s in sources
    )
    return GpuCode(GpuImages(platform, variants, allow_host), listings, by_arch)


def _variant(gpu: GpuProfile, kernels: Sequence[CompiledKernel]) -> GpuVariant:
    form = Form.HSACO if gpu.kind == "rocm" else Form.CUBIN
    return GpuVariant(_exact_arch(gpu, kernels), form, tuple(map(_kernel, kernels)))


def _kernel(made: CompiledKernel) -> GpuKernel:
    params = tuple(_PARAMS[p] for p in made.parameters)
    maps = tuple(map(_map, made.maps))
    return GpuKernel(
        made.symbol, made.image, made.shared, made.warps, made.warp_size, params, maps, made.stays
    )


def _map(made: TensorMap) -> ImageMap:
    width = DTYPES[made.dtype].bytes
    strides = tuple(width * n for n in made.strides[:-1])
    return ImageMap(made.buffer, made.dtype, made.sizes, strides, made.box, made.swizzle)


def _exact_arch(gpu: GpuProfile, kernels: Sequence[CompiledKernel]) -> str:
    """The architecture with its letter (sm_90a) where code uses what only that very one has."""
    if gpu.kind == "rocm" or not kernels:
        return gpu.arch
    found = re.search(r"^\.target (sm_\w+)", kernels[0].assembly, re.MULTILINE)
    return found[1] if found else gpu.arch
