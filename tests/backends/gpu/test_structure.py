"""Tests of the structure of kernels: how it is read from code, and the rules on a few kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pytest
from tcc.backends.gpu.source import kernel_source
from tcc.target import GPUS

from tests.lib.emulator.ptx.parse import kernel as parse_ptx
from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels
from tests.lib.oracle.gpu.code_rules import CheckedKernel
from tests.lib.oracle.gpu.flow import depths, loops, machine_steps, origins, ptx_steps
from tests.lib.oracle.gpu.machine_code import listings, machine_codes
from tests.lib.oracle.gpu.structure import Copy, Structure, broken_by, structure, structure_breaches
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import BIG_MATMUL
from .hopper.gluon_kernels import TEXTS

Test = TypeVar("Test", bound=Callable[..., object])

# A loop with a wait, whose slow way stands behind the loop and jumps back into it.
MACHINE = """
/*0000*/                   MOV R1, c[0x0][0x28] ;
/*0010*/                   HGMMA.64x128x8.F32.TF32 R88, gdesc[UR20], R88 ;
/*0020*/              @!P0 BRA 0x60 ;
/*0030*/                   IADD3 R2, R2, 0x1, RZ ;
/*0040*/               @P0 BRA 0x10 ;
/*0050*/                   EXIT ;
/*0060*/                   NANOSLEEP 0x10 ;
/*0070*/                   BRA 0x30 ;
"""

PTX = """
.visible .entry k(
  .param .u64 .ptr .global .align 1 k_param_0,
  .param .u64 .ptr .global .align 1 k_param_1
) {
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<5>;
  ld.param.b64 %rd1, [k_param_0];
  ld.param.b64 %rd2, [k_param_1];
$L__BB0_1:
  add.s64 %rd3, %rd1, 64;
  cp.async.cg.shared.global [ %r1 + 0 ], [ %rd3 + 0 ], 0x10, %r2;
  ld.global.b32 %r3, [%rd2];
  add.s32 %r4, %r3, 1;
  st.shared.b32 [%r1], %r4;
  @%p1 bra $L__BB0_1;
  ret;
}"""


def test_a_jump_back_into_a_loop_is_no_loop() -> None:
    steps = machine_steps(MACHINE)
    assert loops(steps) == [frozenset({1, 2, 3, 4, 6, 7})]
    assert depths(steps) == [0, 1, 1, 1, 1, 0, 1, 1]


def test_addresses_and_data_lead_to_parameters() -> None:
    code = parse_ptx(PTX, "k")
    sources = origins(code)
    assert (sources.addresses["%rd3"], sources.data["%r4"]) == ({0}, {1})
    assert "%r4" not in sources.addresses or not sources.addresses["%r4"]
    assert depths(ptx_steps(code)) == [0, 0, 1, 1, 1, 1, 1, 1, 0]


FACTS = Structure((), (("wgmma", 8),), 2.0, 100, 512, True, 168, 0, 4, 264)
BROKEN: Mapping[str, Structure] = {
    "wide copies": replace(FACTS, copies=(Copy("b", "async", 4, 32, 16, True),)),
    "asynchronous copies": replace(FACTS, copies=(Copy("b", "load", 16, 2, 16, True),)),
    "matrix units are not kept waiting": replace(FACTS, slots=513),
}
KEPT = (
    FACTS,
    replace(FACTS, copies=(Copy("b", "engine", 0, 1, 16, True),)),
    replace(FACTS, copies=(Copy("b", "load", 16, 2, 16, False),)),
    replace(FACTS, copies=(Copy("b", "load", 2, 2, 2, True),)),
    replace(FACTS, copies=(Copy("b", "load", 16, 2, 16, True, looped=False),)),
    replace(FACTS, slots=513, lone=False),
)

_F32 = BIG_MATMUL.replace("bf16", "f32").replace("64", "32").replace("align 32", "align 64")
_K_MAJOR = _F32.replace("load %b[k+l0, 128*n+l1]", "load %b[128*n+l1, k+l0]")
_BYTES = BIG_MATMUL.replace("bf16", "i8").replace("0.0:f32", "0:i32").replace("f32", "i32")
_ROLES = _BYTES.replace("%b[k+l0, 128*n+l1]", "%b[256*n+l1, k+l0]").replace("n: 0..4", "n: 0..2")
_ROLES = _ROLES.replace("i8[64,128]", "i8[64,256]").replace("i32[128,128]", "i32[128,256]")
_ROLES = _ROLES.replace("128*n+l1]", "256*n+l1]")


def flat(text: str) -> str:
    """Returns a kernel as kernels for GPUs are: buffers of one axis, and loops that count steps."""
    step = int(re.findall(r"step (\d+)", text)[0])
    text = text.replace(
        f"0..512 in 0..512 step {step}", f"0..{512 // step} in 0..{512 // step} step 1"
    )
    text = text.replace(" k+l", f" {step}*k+l").replace("[k+l", f"[{step}*k+l")
    text = text.replace("[512,512]", f"[{512 * 512}]")
    return re.sub(r"(%[abc])\[([^,\]]+), ([^\]]+)\]", r"\1[512*(\2)+\3]", text)


@dataclass(frozen=True)
class Sample:
    """A kernel, the precision of its matmuls, and the rules that it is known to break.

    Shared memory in which columns of terms are not contiguous forces narrow copies of operands of
    four bytes and of one byte, because the matrix units of Hopper read only contiguous terms.
    """

    text: str
    dot: str
    broken: tuple[str, ...] = ()
    gluon: int = 0


def needs_triton(test: Test) -> Test:
    for mark in NEEDS_TRITON:
        test = mark(test)
    return test


SAMPLES: Mapping[str, Sample] = {
    "bf16 in Gluon": Sample(TEXTS["plain"], "ieee", gluon=232448),
    "bytes in Gluon": Sample(flat(_ROLES), "ieee", gluon=232448),
    "tf32 in Gluon": Sample(flat(_K_MAJOR), "tf32", gluon=232448),
    "bf16": Sample(BIG_MATMUL, "ieee"),
    "tf32, contiguous terms": Sample(_K_MAJOR, "tf32"),
    "tf32, contiguous columns": Sample(_F32, "tf32", ("wide copies",)),
    "bytes, contiguous columns": Sample(_BYTES, "ieee", ("wide copies", "asynchronous copies")),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_is_broken_by_itself(rule: str) -> None:
    assert [b.rule for b in broken_by(BROKEN[rule])] == [rule]


@pytest.mark.parametrize("facts", KEPT)
def test_other_structures_break_none(facts: Structure) -> None:
    assert broken_by(facts) == ()


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[CheckedKernel, Structure]]:
    kernels = [parse_kernel(sample.text) for sample in SAMPLES.values()]
    sources = [
        kernel_source(
            kernel, "k", warps=8 if sample.gluon else 4, stages=3, dot=sample.dot,
            gluon=sample.gluon,
        )
        for kernel, sample in zip(kernels, SAMPLES.values(), strict=True)
    ]  # fmt: skip
    compiled = [m for (m,) in compile_kernels(sources, [GPUS["cuda:sm_90"]], 1)]
    rows = zip(
        SAMPLES.items(), kernels, compiled, machine_codes(compiled), listings(compiled), strict=True
    )
    return {
        name: (checked, structure(checked, text))
        for (name, sample), kernel, each, code, text in rows
        for checked in [
            CheckedKernel(kernel, each, code, [b.align for b in kernel.buffers], sample.dot)
        ]
    }


@needs_triton
@pytest.mark.parametrize("name", SAMPLES)
def test_rules_hold_but_for_the_known_breaches(
    name: str, found: dict[str, tuple[CheckedKernel, Structure]]
) -> None:
    assert tuple(b.rule for b in structure_breaches(*found[name])) == SAMPLES[name].broken


@needs_triton
@pytest.mark.parametrize("name", ["bf16 in Gluon", "bytes in Gluon", "tf32 in Gluon"])
def test_the_copy_engine_loads_both_operands(
    name: str, found: dict[str, tuple[CheckedKernel, Structure]]
) -> None:
    copies = found[name][1].copies
    assert [(c.buffer, c.way) for c in copies] == [("a", "engine"), ("b", "engine")]


@needs_triton
def test_copies_and_matrix_instructions_are_found(
    found: dict[str, tuple[CheckedKernel, Structure]],
) -> None:
    facts = found["bf16 in Gluon"][1]
    assert [(c.buffer, c.way) for c in facts.copies] == [("a", "engine"), ("b", "engine")]
    assert dict(facts.matrix) == {"wgmma.m64n128k16.f32.bf16.bf16": 1}
    assert (facts.tiles, facts.private, facts.lone) == (6, 0, True)
    turned = found["tf32, contiguous terms"][1].copies
    assert {(c.buffer, c.way, c.bytes, c.wanted) for c in turned} == {
        ("a", "async", 16, 16), ("b", "async", 16, 16)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "dot"), [(_F32, "tf32"), (_K_MAJOR, "ieee"), (_K_MAJOR, "bf16"), (_BYTES, "ieee")]
)
def test_operands_across_the_sum_and_exact_f32_stay_with_triton(text: str, dot: str) -> None:
    kernel = parse_kernel(flat(text))
    source = partial(kernel_source, name="k", warps=8, stages=3, gluon=232448)
    assert source(kernel, dot=dot).hopper is None
    along = parse_kernel(flat(_K_MAJOR))
    assert source(along, dot="tf32").hopper is not None
