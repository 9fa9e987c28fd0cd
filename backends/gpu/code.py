"""Block kernels to the images of an artifact: all kernels for all architectures of a target."""

from collections.abc import Sequence
from dataclasses import replace

from tcc.backends.artifact.gpu_binaries import BinaryKind, GpuImages, GpuVariant, Platform
from tcc.backends.gpu.compile import Compilers, compile_kernels, requests_for
from tcc.backends.gpu.machine_code import ptx_target
from tcc.backends.gpu.ptxas import needed_driver
from tcc.backends.gpu.source import HOPPER, CompiledKernel, KernelSource, kernel_source
from tcc.errors import InternalError
from tcc.ir.tile import TileKernel
from tcc.record import record
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.target import GPUS, GpuProfile, Target


@record
class GpuCode:
    """The kernels of a program, compiled.

    `listings` are their Triton sources; `kernels` what each became, by architecture of the target,
    then by kernel.
    """

    images: GpuImages
    listings: tuple[str, ...]
    kernels: tuple[tuple[CompiledKernel, ...], ...]


@record
class Job:
    """Kernels that become code under `names` for each of the target's GPUs.

    `alignments` are those of the kernels' buffers.  Products of f32 are those of `precision`
    where all of the GPUs have units for it, else exact.  `gluon`: Hopper's products of halves may
    be in Gluon.
    """

    kernels: Sequence[TileKernel]
    names: Sequence[str]
    schedules: Sequence[BlockSchedule]
    alignments: Sequence[Sequence[int]]
    target: Target
    precision: str
    gluon: bool

    def sources(self) -> list[KernelSource]:
        """What is compiled, in order."""
        gpus = self.target.gpus
        units = self.precision != "f32" and all(gpu.peak(self.precision) for gpu in gpus)
        dot = self.precision if units else "ieee"
        room = max((gpu.shared for gpu in gpus if self.gluon and gpu.arch == HOPPER), default=0)
        rows = zip(self.kernels, self.names, self.schedules, self.alignments, strict=True)
        return [
            kernel_source(
                kernel, name, warps=s.warps, stages=s.stages, dot=dot, alignments=own, gluon=room
            )
            for kernel, name, s, own in rows
        ]


def begin_blocks(job: Job, compilers: Compilers) -> None:
    """Has them compiled while the caller does other things."""
    compilers.begin(requests_for(job.sources(), job.target.gpus))


def compile_blocks(
    job: Job, compilers: Compilers, *, allow_host: bool = False, portable: bool = False
) -> GpuCode:
    """Their code; with `portable` for CUDA also PTX, for newer GPUs.

    Raises what `compile_kernels` raises.
    """
    sources, target = job.sources(), job.target
    assembled = [portable_profile(target.gpus)] if portable and target.kind == "cuda" else []
    listed = [gpu.arch for gpu in target.gpus]
    # what is compiled for a listed architecture has its PTX already
    extra = [gpu for gpu in assembled if gpu.arch not in listed]
    made = compile_kernels(sources, target.gpus, compilers, extra)
    by_arch = tuple(tuple(each[n] for each in made) for n in range(len(listed)))
    rocm = target.kind == "rocm"
    form = BinaryKind.HSACO if rocm else BinaryKind.CUBIN
    variants = [
        _variant(_exact_arch(gpu, own), form, own)
        for gpu, own in zip(target.gpus, by_arch, strict=True)
    ]
    for gpu in assembled:
        own = tuple(each[-1] for each in made) if extra else by_arch[listed.index(gpu.arch)]
        texts = _assembly(gpu, sources, own, compilers)
        variants.append(_variant(gpu.arch, BinaryKind.PTX, texts))
    platform = Platform.HIP if rocm else Platform.CUDA
    images = GpuImages(platform, tuple(variants), allow_host)
    listings = tuple(
        s.text if s.hopper is None else s.hopper.text + "\n\n" + s.text for s in sources
    )
    return GpuCode(images, listings, by_arch)


def _assembly(
    gpu: GpuProfile,
    sources: Sequence[KernelSource],
    made: Sequence[CompiledKernel],
    compilers: Compilers,
) -> list[CompiledKernel]:
    """The kernels as PTX for `gpu`: what they became, but for those that need more shared memory
    than it has."""
    large = [n for n, kernel in enumerate(made) if kernel.shared > gpu.shared]
    again = compile_kernels([sources[n] for n in large], (), compilers, [gpu]) if large else ()
    fitting = dict(zip(large, again, strict=True))
    kernels = [fitting[n][0] if n in fitting else kernel for n, kernel in enumerate(made)]
    return [replace(kernel, image=kernel.assembly.encode()) for kernel in kernels]


def portable_profile(gpus: Sequence[GpuProfile]) -> GpuProfile:
    """What PTX is made for that newer GPUs than those of CUDA listed can load.

    From sm_90 on Triton uses what only the very architecture has, so it is the newest listed one
    below, sm_80 where none is.  Kernels take no more shared memory than every GPU has, where fewer
    stages are enough for that.
    """
    older = [gpu for gpu in gpus if _number(gpu) < 90]
    oldest = min((gpu for gpu in GPUS.values() if gpu.kind == "cuda"), key=_number)
    least = min(gpu.shared for gpu in GPUS.values() if gpu.kind == "cuda")
    return replace(max(older, key=_number, default=oldest), shared=least)


def _number(gpu: GpuProfile) -> int:
    """90 of sm_90."""
    return int(gpu.arch.removeprefix("sm_"))


def _variant(arch: str, form: BinaryKind, kernels: Sequence[CompiledKernel]) -> GpuVariant:
    """The kernels, with the oldest driver that loads all of them."""
    for made in kernels:
        if made.scratch:
            raise InternalError(
                f"the kernel {made.symbol} needs {made.scratch} bytes of scratch for {made.arch}",
                why="a launch gives none",
            )
    cubin = form is BinaryKind.CUBIN
    needs = "ROCm 6"
    if form is not BinaryKind.HSACO:  # the drivers' numbers have three digits
        needs = max((needed_driver(k.assembly, cubin=cubin) for k in kernels), default="")
    return GpuVariant(arch, form, tuple(kernels), needs)


def _exact_arch(gpu: GpuProfile, kernels: Sequence[CompiledKernel]) -> str:
    """The architecture with its letter (sm_90a) where code uses what only that very one has."""
    return (ptx_target(kernels[0].assembly) if kernels else "") or gpu.arch
