"""Tests that execute Hopper's kernels from the PTX of their cubins.

The kernels use asynchronous matmuls, tensor maps, mbarriers, and warps of different roles.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.options import read_options
from tcc.variants import resolve_targets

from tests.lib.emulator.device import Device
from tests.lib.emulator.faults import Fault, Unknown
from tests.lib.emulator.kernels import MadeKernel, Wanted, assert_computes, made
from tests.lib.emulator.ptx.engine import Edit, PtxEngine
from tests.lib.emulator.ptx.run import program
from tests.lib.fake_gpu.fakes import Fakes, in_child
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.part import part

from .attention_kernels import attention
from .gluon_kernels import TEXTS
from .test_attention import CASES
from .test_gluon import parsed

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("gpu-hopper")]

KERNELS = {
    **{name: (lambda t=text: Wanted(parsed(t), "bf16")) for name, text in TEXTS.items()},
    **{
        f"{name}, Triton's": (lambda n=name: Wanted(parsed(TEXTS[n]), "bf16", gluon=False))
        for name in ("plain", "turned", "batched", "tails")
    },
    **{
        f"attention, {name}": (
            lambda f=facts, n=name: Wanted(attention(**f), "f16" if n == "f16" else "bf16")
        )
        for name, facts in CASES.items()
    },
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Fakes(tmp_path_factory.mktemp("driver")).driver(Platform.CUDA)


FLOAT8 = """
    kernel() parallel(m: 0..2) {
      input %a : f8e4m3fn[25600] align 64
      input %b : f8e4m3fn[16384] align 64
      output %c : f32[25600] align 64
      %zero: f32[128,128] = compute() 0.0:f32
      %sum: f32[128,128] = for k: 0..2 in 0..2 step 1 carry (%acc: f32[128,128] = %zero) {
        %x: f8e4m3fn[128,64] = load %a[128*(128*m+l0)+64*k+l1] where 0 <= 128*m+l0 < 200
        %z: f8e4m3fn[64,128] = load %b[128*l1+64*k+l0]
        %d: f32[128,128] = contract %x[m,k] * %z[k,n] + %acc[m,n]
        yield %d
      }
      store %sum to %c[128*(128*m+l0)+l1] where 0 <= 128*m+l0 < 200
    }"""


def wide(kind: str, sums: str, b: str) -> str:
    """Returns FLOAT8's kernel with operands of type `kind`, and the second loaded from `b`."""
    text = FLOAT8.replace("%b[128*l1+64*k+l0]", b).replace("f8e4m3fn", kind)
    return text.replace("f32", sums).replace("0.0:i32", "0:i32") if sums != "f32" else text


_ALONG, _ACROSS = "%b[128*l1+64*k+l0]", "%b[128*(64*k+l0)+l1]"
# Types that the units read along the sum alone: a step turns operands that lie across.
_WIDE = (("f32", "f32"), ("i8", "i32"))
DEEP = {
    f"{kind}, {name}": (kind, sums, b)
    for kind, sums in _WIDE
    for name, b in (("along the sum", _ALONG), ("across it", _ACROSS))
}
# The same in Gluon, in four steps.
ROLES = {f"{kind}, along the sum, Gluon": (kind, sums, _ALONG) for kind, sums in _WIDE}


def in_four(text: str) -> str:
    for old, new in (("0..2 in 0..2", "0..4 in 0..4"), ("64*k", "32*k")):
        text = text.replace(old, new)
    return text.replace("[128,64]", "[128,32]").replace("[64,128]", "[32,128]")


KERNELS |= {
    name: (lambda f=facts: Wanted(parsed(wide(*f)), "tf32", warps=4, stages=2, gluon=False))
    for name, facts in DEEP.items()
}
KERNELS |= {
    name: (lambda f=facts: Wanted(parsed(in_four(wide(*f))), "tf32"))
    for name, facts in ROLES.items()
}
DEEP |= ROLES
# The unchanged PTX of this kernel does not agree, so it is not among the others.
BYTES = "floats of a byte"
OTHERS = {BYTES: lambda: Wanted(parsed(FLOAT8), "f32", warps=4, gluon=False)}

Kernels: TypeAlias = Callable[..., MadeKernel]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Returns a function that compiles a kernel at its first use."""

    @cache
    def compiled(name: str, arch: str = "sm_90") -> MadeKernel:
        (target,) = resolve_targets(read_options({"target": f"cuda:{arch}"}))
        found = made((KERNELS | OTHERS)[name](), target, tmp_path_factory.mktemp("kernel"))
        # Parsing here fills the cache, so that no child parses.
        program(found.compiled.assembly, "k")
        return found

    return compiled


def run(
    driver: Path, found: MadeKernel, seed: int = 0, edit: Edit = str, tolerance: float = 2e-2
) -> None:
    device = Device(driver, Platform.CUDA, PtxEngine([found.compiled], seed, edit))
    device.configure(found.compiled.arch)
    assert_computes(found, device, tolerance)


# Attention kernels take long, so a third of them is executed, and half of the others.
EXECUTED = [n for n in KERNELS if not n.startswith("attention, ") and n not in DEEP]
EXECUTED = part("executed", EXECUTED, 2)
EXECUTED += [f"attention, {name}" for name in part("executed attention", CASES, 3)]


@pytest.mark.parametrize("name", EXECUTED)
def test_kernel_agrees(name: str, driver: Path, kernels: Kernels) -> None:
    found = kernels(name)
    assert "wgmma" in found.compiled.assembly
    assert found.compiled.stays == ("Triton" not in name)
    in_child(lambda: run(driver, found, seed=len(name)))


@pytest.mark.parametrize("name", [*DEEP])
def test_types_that_are_read_along_the_sum_agree(name: str, driver: Path, kernels: Kernels) -> None:
    found, kind = kernels(name), DEEP[name][0]
    assert found.compiled.stays == ("Gluon" in name)
    form = "f32.tf32.tf32" if kind == "f32" else "s32.s8.s8"
    assert re.search(rf"wgmma\.mma_async\S*\.{re.escape(form)}", found.compiled.assembly)
    in_child(lambda: run(driver, found, len(name), tolerance=1e-3 if kind == "f32" else 0.0))
    assert_found(driver, found, DEEP_FAULTS[kind])


def test_floats_of_a_byte_in_older_instructions(driver: Path, kernels: Kernels) -> None:
    found = kernels(BYTES, "sm_89")
    assert "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32" in found.compiled.assembly
    in_child(lambda: run(driver, found))


def disassembled(image: bytes) -> str:
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.origin is not None
    tool = Path(found.origin).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        return subprocess.check_output(
            (tool, "-c", file.name), stderr=subprocess.DEVNULL, text=True
        )


def test_floats_of_a_byte_depend_on_waits_that_ptxas_adds(driver: Path, kernels: Kernels) -> None:
    """Float8 matmuls agree only with the waits that `ptxas` adds (C7517).

    Triton adds up partial sums without waiting for them, which the manual forbids.
    """
    found = kernels(BYTES)
    waits = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"

    def waited(text: str) -> str:
        return re.sub(r"(wgmma\.mma_async[^;]*;)", rf"\1 {waits}", text)

    def early() -> None:
        with pytest.raises(Fault, match="before its product is waited for"):
            run(driver, found)

    in_child(early)
    in_child(lambda: run(driver, found, edit=waited))
    code = disassembled(found.compiled.image)
    assert code.count("WARPGROUP.DEPBAR") >= code.count("QGMMA.") > 0


# ---- planted faults ------------------------------------------------------------------------------


def changed(pattern: str, to: str = "", at: int = 0) -> Edit:
    """Returns an edit that replaces the match number `at` of a regular expression by `to`."""

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text, re.DOTALL))[at]
        return text[: found.start()] + found.expand(to) + text[found.end() :]

    return edit


_WAIT = r"waitLoop:\s*mbarrier\.try_wait\S* complete, [^;]*;\s*@!complete bra.uni waitLoop;"
# The part of a descriptor that says: eight lines are 1024 bytes, swizzle of 128 bytes.
_ROWS_OF_128 = "4611686293305294848"
FAULTS: dict[str, tuple[Edit, str]] = {
    "no fence before a copy out": (
        changed(r"fence\.proxy\.async\S*;"), "no fence.proxy.async stands behind"
    ),
    "no barrier before a buffer is given back": (
        changed(r"(wait_group\.sync\.aligned 1;.*?)bar\.sync\s+0, 256;", r"\1"),
        "while the products of warp [1-7] may still read",
    ),
    "no barrier before the results are put down": (
        changed(r"(cp\.async\.bulk\.wait_group\.read\s+0;\s*)bar\.sync\s+0, 256;", r"\1"),
        "while the copy engine for warp 0 may still read",
    ),
    "no barrier before the copy out": (
        changed(r"(fence\.proxy\.async.*?)bar\.sync\s+0, 256;", r"\1"),
        "used where warp 1 may still write",
    ),
    "the copy out is not waited for": (
        changed(r"cp\.async\.bulk\.wait_group\.read\s+0;"),
        "while the copy engine for warp 0 may still read",
    ),
    "the last copy out is not waited for": (
        changed(r"cp\.async\.bulk\.wait_group\.read\s+0;", at=-1),
        "ends while the copy engine reads",
    ),
    "one product more is under way": (
        changed(r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 2;"),
        "while the products of warp [0-7] may still read",
    ),
    "the last products are not waited for": (
        changed(r"wgmma\.wait_group\.sync\.aligned 0;"), "before its product is waited for"
    ),
    "no fence before products": (
        changed(r"wgmma\.fence\.sync\.aligned;"), "no wgmma.fence stands between"
    ),
    "products are in no group": (
        changed(r"wgmma\.commit_group\.sync\.aligned;"),
        "while the products of warp [0-7] may still read",
    ),
    "another swizzle": (
        changed(_ROWS_OF_128, "-9223371761976868864"), "AssertionError|may still write"
    ),
    "no swizzle": (changed(_ROWS_OF_128, "274877906944"), "AssertionError|of 65700"),
    "another stride": (changed(_ROWS_OF_128, "4611686155866341376"), "AssertionError"),
    "one buffer fewer": (
        changed(r"setp\.eq\.b32 (\s*%p\d+, %r\d+), 4;", r"setp.eq.b32 \1, 3;"), "all warps wait"
    ),
    "a barrier for two": (
        changed(r"(mbarrier\.init\S* \[%r\d+\]), 1;", r"\1, 2;"), "all warps wait"
    ),
    "fewer bytes are announced": (
        changed(r"(expect_tx\S* _, \[%r\d+\]), 8192;", r"\1, 4096;"), "that nobody has written"
    ),
    "more bytes are announced": (
        changed(r"(expect_tx\S* _, \[%r\d+\]), 8192;", r"\1, 8208;"), "all warps wait"
    ),
    "operands are not waited for": (changed(_WAIT), "that nobody has written|may still write"),
    "a buffer is not waited for": (
        changed(_WAIT, at=1), "while the products of warp [0-7] may still read"
    ),
    "a buffer is not given back": (
        changed(r"@%p\d+ mbarrier\.arrive\.shared\S* _, \[%r\d+\];"), "all warps wait"
    ),
    "a barrier for fewer threads": (
        changed(r"bar\.sync(\s+)0, 256;", r"bar.sync\g<1>0, 128;"), "256 threads at barrier 0"
    ),
    "too few registers are given back": (
        changed(r"setmaxnreg\.dec(\S*\s*)24;", r"setmaxnreg.dec\g<1>160;"), "all warps wait"
    ),
    "coordinates in the wrong order": (
        changed(r"(tensor\.2d\.shared.*?\{)(%r\d+), (%r\d+)\}", r"\1\3, \2}"), "AssertionError"
    ),
    "results at a wrong place": (
        changed(r"(stmatrix\S* \[%r\d+)\]", r"\1+16]"), "may still write|AssertionError"
    ),
}  # fmt: skip
ATTENTION: dict[str, tuple[Edit, str]] = {
    "values are not waited for": (changed(_WAIT), "may still read|may still write"),
    "queries are not waited for": (changed(_WAIT, at=1), "nobody has written|may still write"),
    "keys are not waited for": (changed(_WAIT, at=2), "nobody has written|may still write"),
    "scores are not waited for": (
        changed(r"wgmma\.wait_group\.sync\.aligned 0;"), "before its product is waited for"
    ),
    "no barrier before keys are given back": (
        changed(r"bar\.sync\s+0, 128;", at=2), "while the products of warp [0-7] may still read"
    ),
    "a barrier for one half": (
        changed(r"(mbarrier\.init\S* \[%r\d+\]), 2;", r"\1, 1;"),
        "more than 1 arrive|may still read|all warps wait",
    ),
    "no fence before shares are multiplied": (
        changed(r"wgmma\.fence\.sync\.aligned;", at=3), "no wgmma.fence stands between"
    ),
}  # fmt: skip
OLDER: dict[str, tuple[Edit, str]] = {
    "no barrier before operands are used": (
        changed(r"bar\.sync\s+0;"), "where the copies of warp 0 may still write"
    ),
    "no barrier before operands are replaced": (
        changed(r"bar\.sync\s+0;", at=1), "while warp 0 may still read"
    ),
    "no barrier before results are used": (
        changed(r"bar\.sync\s+0;", at=-1), "used where warp 1 may still write"
    ),
    "one group more is under way": (
        changed(r"cp\.async\.wait_group\s+\d;", "cp.async.wait_group 3;"),
        "the copies of warp 0 may still write",
    ),
    "a copy is left out": (
        changed(r"cp\.async\.cg\.shared\.global [^;]*;"), "that nobody has written"
    ),
    "a load that all lanes make": (
        changed(r"@%p\d+ (st\.global)", r"\1"), "not allocated|AssertionError"
    ),
    "an odd address": (
        changed(r"(st\.shared\.v4\.b32\s+\[%r\d+)\]", r"\1+4]"), "is not a multiple of 16"
    ),
    "another swizzle": (
        changed(r"xor\.b32(\s+%r\d+, %r\d+, )32;", r"xor.b32\g<1>48;"), "AssertionError"
    ),
    "sums begin with nothing": (
        changed(r"mov\.b32\s+%r\d+, 0f00000000;"), "is read before it is written"
    ),
    "bf16 read as f16": (changed(r"f32\.bf16\.bf16\.f32", "f32.f16.f16.f32"), "AssertionError"),
    "an unknown instruction": (
        changed(r"bar\.sync\s+0;", "bar.red.popc.u32 %r1, 0, %p1;"), "instruction bar.red.popc"
    ),
}  # fmt: skip


DEEP_FAULTS: dict[str, tuple[Edit, str]] = {
    "f32": (changed(r"f32\.tf32\.tf32", "f32.bf16.bf16"), "Unknown"),
    "i8": (changed(r"s32\.s8\.s8", "s32.s8.u8"), "AssertionError"),
}


def assert_found(driver: Path, found: MadeKernel, fault: tuple[Edit, str]) -> None:
    edit, expected = fault

    def broken() -> None:
        with pytest.raises((AssertionError, Fault, Unknown)) as raised:
            run(driver, found, edit=edit)
        assert re.search(expected, f"{raised.type.__name__}: {raised.value}")

    in_child(broken)


@pytest.mark.parametrize("fault", part("faults", FAULTS, 2))
def test_faults_of_hopper_s_kernels_are_found(fault: str, driver: Path, kernels: Kernels) -> None:
    assert_found(driver, kernels("tails"), FAULTS[fault])


@pytest.mark.parametrize("fault", part("faults of attention", ATTENTION, 2))
def test_faults_of_attention_are_found(fault: str, driver: Path, kernels: Kernels) -> None:
    assert_found(driver, kernels("attention, tails"), ATTENTION[fault])


@pytest.mark.parametrize("fault", part("faults of older kernels", OLDER, 2))
def test_faults_of_other_kernels_are_found(fault: str, driver: Path, kernels: Kernels) -> None:
    assert_found(driver, kernels("tails, Triton's", "sm_80"), OLDER[fault])
