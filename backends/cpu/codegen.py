"""Compiles LLVM IR text to object code."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tcc.backends.cpu.instructions import llvm_features
from tcc.later import later
from tcc.target import Target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = later("llvmlite.binding")


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
        features=llvm_features(target.profile),
        opt=3,
        reloc="pic",
        codemodel="small",
    )


# The text is in SSA form, and its loops are tiled already. LLVM's default pipeline takes twice as
# long, and its code is not faster. Rotating loops, or simplifying twice, gives the same code.
# Passes outside the default pipeline are not safe: NewGVN took guarded loads for other loads.
_PASSES = "always_inliner", "simplify_cfg", "instruction_combine", "global_dead_code_eliminate"


def optimize(text: str, target: Target) -> llvm.ModuleRef:
    """Returns the parsed, verified and optimised module; raises RuntimeError with LLVM's
    message."""
    # In a new context, types and names do not depend on earlier compilations.
    module = llvm.parse_assembly(text, llvm.create_context())
    module.data_layout = str(_machine(target).target_data)
    module.verify()
    manager = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(manager, f"add_{name}_pass")()
    tuning = llvm.create_pipeline_tuning_options()
    manager.run(module, llvm.create_pass_builder(_machine(target), tuning))
    return module


def compile_object(text: str, target: Target) -> bytes:
    """Returns a relocatable object file of position-independent code."""
    code: bytes = _machine(target).emit_object(optimize(text, target))
    return code


def compile_assembly(text: str, target: Target) -> str:
    """Returns the assembly text of the code that `compile_object` returns."""
    listing: str = _machine(target).emit_assembly(optimize(text, target))
    return listing
