"""Tests of the optimiser: it inlines the functions that a kernel calls and drops unused
functions."""

from __future__ import annotations

from tcc.backends.cpu import codegen
from tcc.backends.cpu.detect import detect
from tcc.target import Target, parse_target

HEAD = """target triple = "x86_64-unknown-linux-gnu"
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>) nounwind
define internal <8 x float> @tcc.twice.8.float(<8 x float> %x0) alwaysinline #0 {
entry:
  %v1 = call <8 x float> @llvm.fma.v8f32(<8 x float> %x0, <8 x float> %x0, <8 x float> %x0)
  %v2 = fdiv <8 x float> %v1, %x0
  ret <8 x float> %v2
}
define internal <8 x float> @tcc.outer.8.float(<8 x float> %x0, <8 x float> %x1) alwaysinline #0 {
entry:
  %v1 = call <8 x float> @tcc.twice.8.float(<8 x float> %x0)
  %v2 = fadd <8 x float> %v1, %x1
  ret <8 x float> %v2
}
"""
LIBRARY = """define internal float @tcc.library.1.float(float %x0) alwaysinline #0 {
entry:
  %v1 = call float @erff(float %x0)
  ret float %v1
}
"""
TAIL = "attributes #0 = { nounwind }\n"


def target() -> Target:
    return parse_target("cpu", "x86-64-v3", detect)


def kernel(calls: int) -> str:
    """Returns a function that calls `outer` on its own result `calls` times."""
    lines = ["  %s0 = load <8 x float>, ptr %p, align 4"]
    for n in range(calls):
        call = f"call <8 x float> @tcc.outer.8.float(<8 x float> %s{n}, <8 x float> %s0)"
        lines.append(f"  %s{n + 1} = {call}")
    lines.append(f"  store <8 x float> %s{calls}, ptr %p, align 4")
    body = "\n".join(lines)
    head = "define void @kernel(ptr noalias %p) #0 {"
    return f"{HEAD}{head}\n{body}\n  ret void\n}}\n{TAIL}"


def test_vector_functions_are_put_in_place_and_unused_ones_dropped() -> None:
    text = kernel(40) + "declare float @erff(float) nounwind\n" + LIBRARY
    module = codegen.optimize(text, target())
    assert str(module).count(" fdiv ") == 40
    assert [f.name for f in module.functions if not f.is_declaration] == ["kernel"]
