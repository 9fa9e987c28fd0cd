"""LLVM IR text to object code."""

from __future__ import annotations

from functools import lru_cache

import llvmlite.binding as llvm
from tcc.target import Target


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@lru_cache(maxsize=8)
def _machine(target: Target) -> llvm.TargetMachine:
    _initialize()
    platform = llvm.Target.from_triple(target.triple)
    return platform.create_target_machine(
        cpu=target.profile.cpu,
        features=target.profile.llvm_features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )


def optimize(text: str, target: Target) -> llvm.ModuleRef:
    """The parsed, verified and optimised module; raises RuntimeError with LLVM's message."""
    machine = _machine(target)
    # A context of its own: types and names do not depend on what was compiled before.
    module = llvm.parse_assembly(text, llvm.create_context())
    module.data_layout = str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.slp_vectorization = False
    tuning.loop_vectorization = False
    tuning.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module


def compile_object(text: str, target: Target) -> bytes:
    """A relocatable object file (position independent code)."""
    code: bytes = _machine(target).emit_object(optimize(text, target))
    return code


def compile_assembly(text: str, target: Target) -> str:
    """The assembly that `compile_object` encodes."""
    listing: str = _machine(target).emit_assembly(optimize(text, target))
    return listing
