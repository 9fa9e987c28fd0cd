"""LLVM IR text to object code."""

import re
from functools import lru_cache

import llvmlite.binding as llvm
from tcc.backends.cpu.instructions import llvm_features
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
        features=llvm_features(target.profile),
        opt=3,
        reloc="pic",
        codemodel="small",
    )


# A vector function as `math_code` writes it, of one block.
_FUNCTION = re.compile(
    r"^define internal (.+?) (@[^ (]+)\((.*)\) alwaysinline #0 \{\nentry:\n((?:  .*\n)+)\}\n", re.M
)
_CALLED = re.compile(r"\bcall .*?(@[^ (]+)\(")
# What both parts of a text need: platform, intrinsics, attributes.
_COMMON = re.compile(r"^(?:target|declare|attributes) .*\n", re.M)


_IN_PLACE = "always_inliner instruction_combine global_dead_code_eliminate"
# Text is in SSA form with tiled loops: LLVM's own pipeline takes twice as long for no gain, and
# rotating loops or simplifying again gives the same code.  All passes are of that pipeline: NewGVN,
# which is not, took guarded loads for others.
_PASSES = "always_inliner simplify_cfg instruction_combine global_dead_code_eliminate"


def optimize(text: str, target: Target) -> llvm.ModuleRef:
    """The parsed, verified and optimised module; raises RuntimeError with LLVM's message.

    Vector functions are optimised apart and put in place last: a kernel has dozens of copies of
    some, and every pass would walk through all of them.  What comes out is the same.
    """
    # A context of its own: types and names do not depend on what was compiled before.
    context = llvm.create_context()
    kernel, functions = _apart(text)
    module = _simplified(kernel, target, context)
    if functions:
        module.link_in(_simplified(functions, target, context))
        for name in _FUNCTION_NAME.findall(functions):
            module.get_function(name).linkage = "internal"
        _run(module, target, _IN_PLACE)
    return module


_FUNCTION_NAME = re.compile(r"^define .*?@([^ (]+)\(.* alwaysinline ", re.M)


def _simplified(text: str, target: Target, context: llvm.ContextRef) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text, context)
    module.data_layout = str(_machine(target).target_data)
    module.verify()
    _run(module, target, _PASSES)
    return module


def _run(module: llvm.ModuleRef, target: Target, passes: str) -> None:
    manager = llvm.create_new_module_pass_manager()
    for name in passes.split():
        getattr(manager, f"add_{name}_pass")()
    tuning = llvm.create_pipeline_tuning_options()
    manager.run(module, llvm.create_pass_builder(_machine(target), tuning))


def _apart(text: str) -> tuple[str, str]:
    """The kernel, which declares the vector functions that it calls, and those as a text of their
    own; that is empty where there are none, or one calls functions of a library."""
    found = list(_FUNCTION.finditer(text))
    called = {name for f in found for name in _CALLED.findall(f[4]) if "@llvm." not in name}
    if not found or not called <= {f[2] for f in found}:
        return text, ""

    def declared(f: re.Match[str]) -> str:
        types = ", ".join(param.rpartition(" ")[0] for param in f[3].split(", "))
        return f"declare {f[1]} {f[2]}({types}) nounwind willreturn memory(none)\n"

    common = "".join(line[0] for line in _COMMON.finditer(text))
    moved = "".join(f[0].replace("internal ", "", 1) for f in found)
    return _FUNCTION.sub(declared, text), common + moved


def compile_object(text: str, target: Target) -> bytes:
    """A relocatable object file (position independent code)."""
    code: bytes = _machine(target).emit_object(optimize(text, target))
    return code


def compile_assembly(text: str, target: Target) -> str:
    """The assembly that `compile_object` encodes."""
    listing: str = _machine(target).emit_assembly(optimize(text, target))
    return listing
