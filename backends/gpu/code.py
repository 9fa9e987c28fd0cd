"""Compiles block kernels to the images of an artifact, for all architectures of a target."""

from collections.abc import Sequence
from dataclasses import replace

from tcc.backends.artifact.gpu_binaries import BinaryKind, GpuImages, GpuVariant, Platform
from tcc.backends.gpu.compile import Compilers, compile_kernels, requests_for
from tcc.backends.gpu.machine_code import ptx_target
from tcc.backends.gpu.ptxas import needed_driver
from tcc.backends.gpu.source import HOPPER, CompiledKernel, KernelSource, kernel_source
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.tile import TileKernel
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.target import GPUS, GpuProfile, Target
from tcc.zipped import zip_equal


@frozen
class GpuCode:
    """The compiled kernels of a program.

    `listings` are their Triton sources. `kernels[n][m]` is kernel m for architecture n of the
    target.
    """

    images: GpuImages
    listings: tuple[str, ...]
    kernels: tuple[tuple[CompiledKernel, ...], ...]


@frozen
class Job:
    """Kernels to compile, called `names`, for each GPU of the target.

    `alignments` has for each kernel the alignments of its buffers in bytes. f32 matmuls use
    `precision` if all GPUs have matrix units for it, and are exact otherwise. `gluon`: on Hopper,
    matmuls may be written in Gluon.
    """

    kernels: Sequence[TileKernel]
    names: Sequence[str]
    schedules: Sequence[BlockSchedule]
    alignments: Sequence[Sequence[int]]
    target: Target
    precision: str
    gluon: bool

    def sources(self) -> list[KernelSource]:
        """Returns the sources of the kernels, in order."""
        gpus = self.target.gpus
        units = self.precision != "f32" and all(gpu.peak(self.precision) for gpu in gpus)
        dot = self.precision if units else "ieee"
        room = max((gpu.shared for gpu in gpus if self.gluon and gpu.arch == HOPPER), default=0)
        rows = zip_equal(self.kernels, self.names, self.schedules, self.alignments)
        return [
            kernel_source(
                kernel,
                name,
                warps=schedule.warps,
                stages=schedule.stages,
                dot=dot,
                alignments=buffer_alignments,
                gluon=room,
            )
            for kernel, name, schedule, buffer_alignments in rows
        ]


def begin_blocks(job: Job, compilers: Compilers) -> None:
    """Starts compiling the job's kernels in the background."""
    compilers.begin(requests_for(job.sources(), job.target.gpus))


def compile_blocks(
    job: Job, compilers: Compilers, *, allow_host: bool = False, portable: bool = False
) -> GpuCode:
    """Returns the code of the job's kernels.

    `portable`: CUDA targets also get PTX, which newer GPUs can load. Raises what `compile_kernels`
    raises.
    """
    sources, target = job.sources(), job.target
    assembled = [portable_profile(target.gpus)] if portable and target.kind == "cuda" else []
    archs = [gpu.arch for gpu in target.gpus]
    # Compiling for an architecture yields its PTX too. So only PTX for other architectures is
    # additional work.
    extra = [gpu for gpu in assembled if gpu.arch not in archs]
    compiled = compile_kernels(sources, target.gpus, compilers, extra)
    by_arch = tuple(tuple(kernels[n] for kernels in compiled) for n in range(len(archs)))
    rocm = target.kind == "rocm"
    form = BinaryKind.HSACO if rocm else BinaryKind.CUBIN
    variants = []
    for gpu, gpu_kernels in zip_equal(target.gpus, by_arch):
        # The name has a letter (sm_90a) if the code uses features that only this GPU has.
        arch = ptx_target(gpu_kernels[0].assembly) if gpu_kernels else ""
        variants.append(_variant(arch or gpu.arch, form, gpu_kernels))
    for gpu in assembled:
        gpu_kernels = (
            tuple(kernels[-1] for kernels in compiled) if extra else by_arch[archs.index(gpu.arch)]
        )
        texts = _assembly(gpu, sources, gpu_kernels, compilers)
        variants.append(_variant(gpu.arch, BinaryKind.PTX, texts))
    platform = Platform.HIP if rocm else Platform.CUDA
    images = GpuImages(platform, tuple(variants), allow_host)
    listings = tuple(
        source.text if source.hopper is None else source.hopper.text + "\n\n" + source.text
        for source in sources
    )
    return GpuCode(images, listings, by_arch)


def _assembly(
    gpu: GpuProfile,
    sources: Sequence[KernelSource],
    compiled: Sequence[CompiledKernel],
    compilers: Compilers,
) -> list[CompiledKernel]:
    """Returns the kernels as PTX for `gpu`.

    Kernels that need more shared memory than `gpu` has are compiled again, with fewer pipeline
    stages.
    """
    large = [n for n, kernel in enumerate(compiled) if kernel.shared > gpu.shared]
    recompiled = compile_kernels([sources[n] for n in large], (), compilers, [gpu]) if large else ()
    fitting = dict(zip_equal(large, recompiled))
    kernels = [fitting[n][0] if n in fitting else kernel for n, kernel in enumerate(compiled)]
    return [replace(kernel, image=kernel.assembly.encode()) for kernel in kernels]


def portable_profile(gpus: Sequence[GpuProfile]) -> GpuProfile:
    """Returns the profile for PTX that GPUs newer than the listed ones can load.

    From sm_90 on, Triton uses instructions that only one architecture has. So the profile is the
    newest listed architecture before sm_90; if there is none, it is sm_80. The profile's shared
    memory is that of the smallest CUDA GPU, so that a kernel that does not fit it uses fewer
    pipeline stages.
    """
    older = [gpu for gpu in gpus if _number(gpu) < 90]
    cuda = [gpu for gpu in GPUS.values() if gpu.kind == "cuda"]
    newest = max(older, key=_number, default=min(cuda, key=_number))
    return replace(newest, shared=min(gpu.shared for gpu in cuda))


def _number(gpu: GpuProfile) -> int:
    """Returns the number of the architecture: 90 for sm_90."""
    return int(gpu.arch.removeprefix("sm_"))


def _variant(arch: str, form: BinaryKind, kernels: Sequence[CompiledKernel]) -> GpuVariant:
    """Returns the variant with these kernels; `needs` is the oldest driver that loads all of
    them."""
    for code in kernels:
        if code.scratch:
            raise InternalError(
                f"the kernel {code.symbol} needs {code.scratch} bytes of scratch for {code.arch}",
                why="a launch gives none",
            )
    cubin = form is BinaryKind.CUBIN
    needs = "ROCm 6"
    # major versions of drivers have three digits, so their texts sort like numbers
    if form is not BinaryKind.HSACO:
        needs = max((needed_driver(k.assembly, cubin=cubin) for k in kernels), default="")
    return GpuVariant(arch, form, tuple(kernels), needs)
