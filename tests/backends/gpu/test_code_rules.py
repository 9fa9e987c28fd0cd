"""Tests of the rules for machine code on hand-written facts, and of known exceptions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tcc.backends.gpu.source import CompiledKernel

from tests.lib.oracle.gpu.code_rules import Breach, CheckedKernel, breaches, matrix_families
from tests.lib.oracle.gpu.machine_code import MachineCode, machine_code
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import BIG_MATMUL, TEXTS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from gpu.observe import Exemption, judge

COPY = """
    kernel() parallel(m: 0..8) {
      input %x : f32[4096] align 64
      output %z : f32[4096] align 64
      %a: f32[512] = load %x[512*m+l0]
      store %a to %z[512*m+l0]
    }"""
CLEAN = MachineCode(32, 0, (), 2, 2)


def compiled(text: str, arch: str, code: MachineCode = CLEAN, **facts: object) -> CheckedKernel:
    kernel = parse_kernel(text)
    made = CompiledKernel(
        "k", b"", 0, 4, 32, (), (), False, arch, "", 2, code.registers, code.private
    )
    alignments = [b.align for b in kernel.buffers]
    return replace(CheckedKernel(kernel, made, code, alignments, "ieee"), **facts)


def with_matrix(*families: str) -> MachineCode:
    return replace(CLEAN, matrix=tuple((f, 8) for f in families))


@pytest.mark.parametrize(
    ("arch", "family"),
    [("sm_80", "HMMA"), ("sm_86", "HMMA"), ("sm_90", "HGMMA"), ("gfx90a", "v_mfma"),
     ("gfx942", "v_mfma"), ("gfx1100", "v_wmma")],
)  # fmt: skip
def test_halves_are_multiplied_by_the_matrix_units_of_the_architecture(
    arch: str, family: str
) -> None:
    """A tile of 128 x 128 x 64 in bf16 needs the architecture's matrix instruction."""
    assert breaches(compiled(BIG_MATMUL, arch, with_matrix(family))) == ()
    other = "HMMA" if family != "HMMA" else "HGMMA"
    for code in (CLEAN, with_matrix(other)):
        found = breaches(compiled(BIG_MATMUL, arch, code))
        assert found == (Breach("matrix units", f"no {family}"),)


def test_hopper_needs_rows_and_warps_for_its_groups() -> None:
    low = BIG_MATMUL.replace("128*m", "32*m").replace("f32[128,128]", "f32[32,128]")
    low = low.replace("bf16[128,64]", "bf16[32,64]").replace("m: 0..4", "m: 0..16")
    assert matrix_families(compiled(low, "sm_90")) == ("HMMA",)
    high = compiled(BIG_MATMUL, "sm_90")
    assert matrix_families(replace(high, made=replace(high.made, warps=2))) == ("HMMA",)
    # The matmul has a batch.
    assert matrix_families(compiled(TEXTS["half_matmul"], "sm_90")) == ("HMMA",)


def test_f32_goes_to_matrix_units_where_they_are_exact_or_it_may_be_rounded() -> None:
    assert matrix_families(compiled(TEXTS["matmul"], "sm_90")) == ()
    assert matrix_families(compiled(TEXTS["matmul"], "gfx942")) == ("v_mfma",)
    assert matrix_families(compiled(TEXTS["matmul"], "gfx1100")) == ()
    assert matrix_families(compiled(TEXTS["matmul"], "sm_80", dot="tf32")) == ("HMMA",)
    assert matrix_families(compiled(TEXTS["matmul"], "gfx1100", dot="bf16")) == ("v_wmma",)


def test_nothing_may_be_kept_in_private_memory() -> None:
    found = breaches(compiled(COPY, "gfx90a", replace(CLEAN, private=24)))
    assert found == (Breach("registers suffice", "24 bytes a lane"),)


def test_rows_that_fit_are_moved_16_bytes_at_a_time() -> None:
    narrow = replace(CLEAN, wide_loads=0, wide_stores=0)
    (found,) = breaches(compiled(COPY, "sm_80", narrow))
    assert found == Breach("16-byte accesses", "no loads and no stores of 16 bytes")
    (found,) = breaches(compiled(COPY, "sm_80", replace(CLEAN, wide_stores=0)))
    assert found.found == "no stores of 16 bytes"


@pytest.mark.parametrize(
    "text",
    [
        COPY.replace("align 64", "align 4"),
        COPY.replace("512", "256"),  # A lane has eight bytes.
        COPY.replace("*m+l0", "*m+2*l0").replace("4096", "8192"),
        COPY.replace("[512*m+l0]", "[512*m+l0+1]").replace("4096", "4104"),
        COPY.replace("+l0]", "+l0] where 0 <= 512*m+l0 < 4001"),
        BIG_MATMUL.replace("bf16", "f32"),  # Memory does not bound matmuls.
    ],
)  # fmt: skip
def test_guarded_and_compute_bound_accesses_may_be_narrow(text: str) -> None:
    assert breaches(compiled(text, "sm_80", replace(CLEAN, wide_loads=0, wide_stores=0))) == ()


def test_guards_of_whole_groups_and_steps_of_loops_do_not_matter() -> None:
    narrow = replace(CLEAN, wide_loads=0)
    guarded = COPY.replace("+l0]", "+l0] where 0 <= 512*m+l0 < 4000")
    loop = """
    kernel() parallel(m: 0..8) {
      input %x : f32[8,4096] align 64
      output %z : f32[8,4096] align 64
      for k: 0..4096 in 0..4096 step 512 {
        %a: f32[1,512] = load %x[m+l0, k+l1]
        store %a to %z[m+l0, k+l1]
      }
    }"""
    for text in (guarded, loop):
        assert [b.rule for b in breaches(compiled(text, "sm_80", narrow))] == ["16-byte accesses"]


LISTINGS = {
    "global_load_b128 v[0:3], v4, s[0:1]\n buffer_store_b128 v[0:3]": (1, 1),
    "buffer_load_dwordx4 v[0:3]\nglobal_load_dwordx4 v[0:3]\nds_load_b128 v[1:4]": (2, 0),
    "global_store_dwordx4 v[0:1]\nglobal_load_dwordx2 v[0:1]\nscratch_load_b128 v1": (0, 1),
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_accesses_are_counted(listing: str) -> None:
    made = replace(compiled(COPY, "gfx942").made, assembly=listing)
    code = machine_code(made)
    assert (code.wide_loads, code.wide_stores) == LISTINGS[listing]


def test_a_listed_breach_is_excused_until_it_is_fixed() -> None:
    spilt = compiled(COPY, "sm_80", replace(CLEAN, private=8))
    exemptions = [Exemption("net", "f32", ("sm_80", "sm_90"), "first", "registers suffice", "why")]
    broken, kept = judge("net", "f32", [spilt], ["-> first (Add)"], exemptions)
    assert (broken, kept) == ([], [])
    broken, _ = judge("net", "f32", [spilt], ["-> second (Add)"], exemptions)
    assert broken == ["net f32 sm_80 k (-> second (Add)): registers suffice: 8 bytes a lane"]
    _, kept = judge("net", "f32", [compiled(COPY, "sm_80")], ["-> first (Add)"], exemptions)
    assert kept == ["net f32 sm_80 first: registers suffice"]
    for model, precision in (("net", "bf16"), ("other", "f32")):
        assert judge(model, precision, [spilt], ["first"], exemptions)[0]
