"""The worker process that runs Triton.

Triton reads a kernel's Python source from a file, so each request writes one. The file's folder and
line numbers do not influence the code.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from tcc.backends.artifact.gpu_binaries import SWIZZLES, TensorMap
from tcc.backends.gpu.machine_code import cuda_usage, rocm_usage
from tcc.backends.gpu.ptxas import NEWEST, assemble
from tcc.backends.gpu.source import (
    ALIGNED,
    HOPPER,
    CompiledKernel,
    KernelSource,
    launch_parameters,
)
from tcc.backends.workers import serve
from tcc.errors import ToolError
from tcc.target import GpuProfile
from tcc.temporary import temporary_folder
from tcc.zipped import zip_equal
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.errors import TritonError
from triton.experimental.gluon._runtime import GluonASTSource

_FAILURES = (
    ToolError,
    TritonError,
    RuntimeError,
    ValueError,
    TypeError,
    subprocess.SubprocessError,
)


def main() -> None:
    """Answers requests `((KernelSource, GpuProfile, assembly only), folder)` with a CompiledKernel.

    All files are written to the folder, which the caller removes.
    """
    serve(_answer)


def _answer(
    request: tuple[tuple[KernelSource, GpuProfile, bool], str],
) -> tuple[CompiledKernel | None, str]:
    (source, profile, assembly), caller_folder = request
    # Triton and the tools that it starts write their temporary files to the caller's folder too.
    tempfile.tempdir = os.environ["TMPDIR"] = caller_folder
    with temporary_folder() as folder:
        try:
            if source.hopper is not None and profile.arch == HOPPER:
                function = _load(source.hopper, profile, folder)
                kernel = _compile(function, source.hopper, profile, source.stages, assembly)
                # A kernel that spills is compiled as Triton instead, because spills cost more time
                # than Gluon saves.
                if kernel.shared <= profile.shared and not kernel.private:
                    return kernel, ""
            function = _load(source, profile, folder)
            for stages in range(source.stages, 0, -1):
                kernel = _compile(function, source, profile, stages, assembly)
                # Assembly is for GPUs that are not known yet, so it is accepted with one stage even
                # if this GPU lacks the shared memory. The loader checks the memory of the real GPU.
                if kernel.shared <= profile.shared or (assembly and stages == 1):
                    return kernel, ""
        except _FAILURES as error:
            return None, _reason(error)
    return (
        None,
        f"{kernel.shared} bytes of shared memory, where {profile.arch} has {profile.shared}",
    )


def _reason(error: BaseException) -> str:
    """Returns the message of the innermost error; the outer errors only say where it happened."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _load(source: KernelSource, profile: GpuProfile, folder: Path) -> Any:
    """Returns the Triton function of the source."""
    path = folder / f"kernel{len(source.maps)}.py"
    path.write_text(source.text)
    module = ModuleType("kernel")
    exec(compile(source.text, path, "exec", dont_inherit=True), vars(module))
    # These constants describe the device to functions. AMD's v_exp_f32 flushes denormals to 0.
    for name, answer in (("FLOAT8", profile.float8), ("FLUSHES", profile.kind == "rocm")):
        if hasattr(module, name):
            setattr(module, name, triton.language.constexpr(answer))
    return getattr(module, source.name)


def _compile(
    function: Any, source: KernelSource, profile: GpuProfile, stages: int, assembly: bool
) -> CompiledKernel:
    rocm = profile.kind == "rocm"
    signature = dict(zip_equal(function.arg_names, (p.type for p in source.parameters)))
    attributes = {}
    for number, parameter in enumerate(source.parameters):
        facts = [["tt.divisibility", ALIGNED]] if parameter.divisor % ALIGNED == 0 else []
        if rocm and parameter.narrow:
            facts.append(["tt.pointer_range", 32])
        attributes[(number,)] = facts
    # Only a Contract may use FMA. Elsewhere every function rounds its result and keeps denormals.
    options = {"num_warps": source.warps, "num_stages": stages, "enable_fp_fusion": False}
    if not rocm:
        options |= {"enable_reflect_ftz": False, "ptx_version": NEWEST}
    language = GluonASTSource if source.maps else ASTSource
    parsed = language(fn=function, signature=signature, constexprs={}, attrs=attributes)
    arch = profile.arch if rocm else int(profile.arch.removeprefix("sm_"))
    target = GPUTarget("hip" if rocm else "cuda", arch, profile.warp)
    outputs, metadata = _stages(parsed, target, options)
    if rocm:
        text, code = outputs["amdgcn"], outputs["hsaco"]
        usage = rocm_usage(text)
    else:
        text, code = assemble(outputs["ptx"], check_only=assembly)
        usage = (0, 0) if assembly else cuda_usage(code)
    return CompiledKernel(
        metadata["name"],
        code or text.encode(),
        metadata["shared"],
        metadata["num_warps"],
        profile.warp,
        launch_parameters(source),
        _boxed(source.maps, metadata["tensordesc_meta"]) if source.maps else (),
        bool(source.maps),
        profile.arch,
        text,
        stages,
        *usage,
        sum(metadata.get(f"{kind}_scratch_size") or 0 for kind in ("global", "profile")),
    )


def _stages(
    source: ASTSource, target: GPUTarget, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs Triton's pipeline; returns the output of each stage, and the metadata of the kernel.

    `triton.compile` does the same with a cache of files. For CUDA the pipeline ends before `ptxas`.
    """
    backend = make_backend(target)
    settings = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, settings, source.language)
    functions = backend.get_codegen_implementation(settings)
    module = source.make_ir(target, settings, functions, backend.get_module_map(), context)
    outputs, metadata = dict[str, Any](), dict(vars(settings))
    for name, stage in stages.items():
        if name != "cubin":
            outputs[name] = module = stage(module, metadata)
    return outputs, metadata


def _boxed(
    maps: Sequence[TensorMap], descriptions: Sequence[dict[str, Any]]
) -> tuple[TensorMap, ...]:
    """Returns the tensor maps with the boxes and swizzles that the kernel's copy instructions
    use."""
    return tuple(
        replace(tensor_map, box=tuple(facts["block_size"]), swizzle=SWIZZLES[facts["swizzle"]])
        for tensor_map, facts in zip_equal(maps, descriptions)
    )
