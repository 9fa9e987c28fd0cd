"""The process that runs Triton, away from the user's process.

Triton reads a kernel's Python source from a file, so every request gets one; its folder and its
line numbers do not get into the code.
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
from tcc.backends.gpu.ptxas import NEWEST, assembled
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
    """Answers requests `((KernelSource, GpuProfile, whether only assembly), folder)` by a
    CompiledKernel; all files are in the folder, which is the caller's to remove."""
    serve(_answer)


def _answer(
    request: tuple[tuple[KernelSource, GpuProfile, bool], str],
) -> tuple[CompiledKernel | None, str]:
    (source, profile, assembly), place = request
    # For Triton's own files, and those of the tools that it starts.
    tempfile.tempdir = os.environ["TMPDIR"] = place
    with temporary_folder() as folder:
        try:
            if source.hopper is not None and profile.arch == HOPPER:
                function = _load(source.hopper, profile, folder)
                kernel = _compile(function, source.hopper, profile, source.stages, assembly)
                # Values that leave the registers cost more than Gluon brings.
                if kernel.shared <= profile.shared and not kernel.private:
                    return kernel, ""
            function = _load(source, profile, folder)
            for stages in range(source.stages, 0, -1):
                kernel = _compile(function, source, profile, stages, assembly)
                # Assembly is for GPUs not known yet, and the loader asks how much they have.
                if kernel.shared <= profile.shared or (assembly and stages == 1):
                    return kernel, ""
        except _FAILURES as error:
            return None, _reason(error)
    return (
        None,
        f"{kernel.shared} bytes of shared memory, where {profile.arch} has {profile.shared}",
    )


def _reason(error: BaseException) -> str:
    """What the innermost of a chain of errors says: the others say where functions are called."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _load(source: KernelSource, profile: GpuProfile, folder: Path) -> Any:
    """The Triton function of the source."""
    path = folder / f"kernel{len(source.maps)}.py"
    path.write_text(source.text)
    module = ModuleType("kernel")
    exec(compile(source.text, path, "exec", dont_inherit=True), vars(module))
    # What functions ask of the device; v_exp_f32 gives 0 for what is denormal.
    for name, answer in (("FLOAT8", profile.float8), ("FLUSHES", profile.kind == "rocm")):
        if hasattr(module, name):
            setattr(module, name, triton.language.constexpr(answer))
    return getattr(module, source.name)


def _compile(
    function: Any, source: KernelSource, profile: GpuProfile, stages: int, assembly: bool
) -> CompiledKernel:
    rocm = profile.kind == "rocm"
    signature = dict(zip(function.arg_names, (p.type for p in source.parameters), strict=True))
    attributes = {}
    for number, parameter in enumerate(source.parameters):
        facts = [["tt.divisibility", ALIGNED]] if parameter.divisor % ALIGNED == 0 else []
        if rocm and parameter.narrow:
            facts.append(["tt.pointer_range", 32])
        attributes[(number,)] = facts
    # Only a Contract may fuse: elsewhere every function rounds, and denormals stay.
    options = {"num_warps": source.warps, "num_stages": stages, "enable_fp_fusion": False}
    if not rocm:
        options |= {"enable_reflect_ftz": False, "ptx_version": NEWEST}
    language = GluonASTSource if source.maps else ASTSource
    parsed = language(fn=function, signature=signature, constexprs={}, attrs=attributes)
    made, found = _stages(parsed, _target(profile), options)
    if rocm:
        text, code = made["amdgcn"], made["hsaco"]
        usage = rocm_usage(text)
    else:
        text, code = assembled(made["ptx"], check_only=assembly)
        usage = (0, 0) if assembly else cuda_usage(code)
    return CompiledKernel(
        found["name"],
        code or text.encode(),
        found["shared"],
        found["num_warps"],
        profile.warp,
        launch_parameters(source),
        _boxed(source.maps, found["tensordesc_meta"]) if source.maps else (),
        bool(source.maps),
        profile.arch,
        text,
        stages,
        *usage,
        sum(found.get(f"{kind}_scratch_size") or 0 for kind in ("global", "profile")),
    )


def _stages(
    source: ASTSource, target: GPUTarget, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What every stage of Triton's pipeline makes, and what the stages tell of the kernel.

    As `triton.compile`, which would also look every kernel up among files and keep it there.  The
    pipeline of CUDA ends before `ptxas`.
    """
    backend = make_backend(target)
    chosen = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, chosen, source.language)
    functions = backend.get_codegen_implementation(chosen)
    module = source.make_ir(target, chosen, functions, backend.get_module_map(), context)
    made, found = dict[str, Any](), dict(vars(chosen))
    for name, stage in stages.items():
        if name != "cubin":
            made[name] = module = stage(module, found)
    return made, found


def _boxed(maps: Sequence[TensorMap], made: Sequence[dict[str, Any]]) -> tuple[TensorMap, ...]:
    """The maps with the boxes that single instructions move."""
    return tuple(
        replace(each, box=tuple(facts["block_size"]), swizzle=SWIZZLES[facts["swizzle"]])
        for each, facts in zip(maps, made, strict=True)
    )


def _target(profile: GpuProfile) -> GPUTarget:
    if profile.kind == "rocm":
        return GPUTarget("hip", profile.arch, profile.warp)
    return GPUTarget("cuda", int(profile.arch.removeprefix("sm_")), profile.warp)
