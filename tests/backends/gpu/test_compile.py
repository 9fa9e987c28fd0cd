"""Tests of tile kernels as device code, compiled without a GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tcc.backends.artifact.gpu_binaries import BinaryKind, Param
from tcc.backends.gpu.code import _variant
from tcc.backends.gpu.source import CompiledKernel, KernelSource, kernel_source
from tcc.errors import InternalError, ToolError
from tcc.ir.expr.scalar import FUNCTIONS, argument, cast
from tcc.ir.types import BF16, DTYPES, F16, F32, I8
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels
from tests.lib.oracle.gpu.machine_code import MachineCode, machine_codes
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import BIG_MATMUL, TEXTS
from .more_blocks import CORNERS
from .triton.test_functions import APPROXIMATE, EXACT, INTEGER, applied, elementwise

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("gpu-compile")]
ARCHS = ("cuda:sm_80", "cuda:sm_90", "rocm:gfx90a", "rocm:gfx942", "rocm:gfx1100")
PROFILES = [GPUS[a] for a in ARCHS]
UNARY = [n for n in APPROXIMATE if FUNCTIONS[n].arity == 1]


def source(name: str, text: str, **how: int) -> KernelSource:
    options = {"warps": 4, "stages": 3} | how
    return kernel_source(parse_kernel(text), name, dot="ieee", **options)


Codes = dict[tuple[str, str], CompiledKernel]


@pytest.fixture(scope="module")
def codes() -> Codes:
    names = ("softmax", "attention", "dynamic")
    sources = [source(n, TEXTS[n]) for n in names] + [source("big", BIG_MATMUL, warps=8)]
    made = compile_kernels(sources, PROFILES, 1)
    return {
        (s.name, p.arch): k
        for s, kernels in zip(sources, made, strict=True)
        for p, k in zip(PROFILES, kernels, strict=True)
    }


def test_every_architecture_has_an_image(codes: Codes) -> None:
    for (name, arch), kernel in codes.items():
        assert kernel.symbol == name
        assert kernel.arch == arch
        assert kernel.image.startswith(b"\x7fELF")
        assert name in kernel.assembly
        assert kernel.warp_size == (64 if arch.startswith("gfx9") else 32)
        assert kernel.warps == (8 if name == "big" else 4)


def test_a_launch_passes_buffers_then_sizes_then_scratch(codes: Codes) -> None:
    pointer, size, nothing = Param.POINTER, Param.INT64, Param.NULL
    for arch in ("sm_80", "gfx942"):
        parameters = codes["dynamic", arch].params
        assert parameters == (pointer, pointer, size, nothing, nothing)
    ptx = codes["dynamic", "sm_90"].assembly
    assert [f"dynamic_param_{n}" in ptx for n in range(6)] == [True] * 5 + [False]


@pytest.fixture(scope="module")
def facts(codes: Codes) -> dict[tuple[str, str], MachineCode]:
    names = {"attention": ("cuda:sm_90", "rocm:gfx942"), "big": ARCHS}
    keys = [(name, GPUS[a].arch) for name, archs in names.items() for a in archs]
    return dict(zip(keys, machine_codes([codes[key] for key in keys]), strict=True))


def test_exp_keeps_denormals_on_every_device() -> None:
    """Exp keeps denormals: AMD's instruction flushes them, so argument and result are scaled by
    2**64."""
    (body, types) = applied("exp", F32)
    text = kernel_source(elementwise([body], types, 1024), "k", warps=4, stages=1, dot="ieee")
    archs = [GPUS[a] for a in ("cuda:sm_80", "rocm:gfx942", "rocm:gfx1100", "rocm:gfx1200")]
    (cuda, *rocm) = compile_kernels([text], archs, 1)[0]
    assert re.findall(r"ex2\.\S+", cuda.assembly)[0] == "ex2.approx.f32"
    assert "0f1F800000" not in cuda.assembly
    for kernel in rocm:
        assert "v_exp_f32" in kernel.assembly
        assert "0x1f800000" in kernel.assembly
        assert ".amdhsa_float_denorm_mode_32 3" in kernel.assembly


def test_each_processor_of_a_generation_has_code_of_its_own() -> None:
    """AMD's driver takes code for the exact processor.

    The low byte of an ELF file's flags holds its number (LLVM, "User Guide for AMDGPU Backend":
    EF_AMDGPU_MACH).
    """
    machines = {
        "gfx1100": 0x41, "gfx1101": 0x46, "gfx1102": 0x47, "gfx1103": 0x44, "gfx1200": 0x48,
        "gfx1201": 0x4E,
    }  # fmt: skip
    archs = [GPUS[f"rocm:{arch}"] for arch in machines]
    (made,) = compile_kernels([source("softmax", TEXTS["softmax"])], archs, 1)
    assert {k.arch: k.image[48] for k in made} == machines


def test_nothing_is_spilt_with_fewer_registers() -> None:
    """Kernels do not spill with fewer registers.

    gfx1102 and gfx1103 have two thirds of the registers of gfx1100 and gfx1101; gfx1200 and gfx1201
    are alike.
    """
    archs = [GPUS[f"rocm:{arch}"] for arch in ("gfx1102", "gfx1200")]
    (made,) = compile_kernels([source("big", BIG_MATMUL, warps=8)], archs, 1)
    assert not any(k.private for k in made)


def test_scratch_that_no_launch_gives_is_an_error() -> None:
    """Scratch memory that no launch provides is an error; a tensor map made on the device lies in
    it."""
    map_text = (
        "    made = tl.make_tensor_descriptor(x, shape=[64, 64], strides=[64, 1], "
        "block_shape=[16, 16])\n    made.store([0, 0], made.load([16, 0]))\n"
    )
    made = source("pointwise", TEXTS["pointwise"])
    end = made.text.index(":\n", made.text.index("def pointwise")) + 2
    name = made.text[made.text.index("(", made.text.index("def pointwise")) + 1 :].split(",")[0]
    own = made.text[:end] + map_text.replace("(x,", f"({name},")
    (kernels,) = compile_kernels([replace(made, text=own)], [GPUS["cuda:sm_90"]], 1)
    assert kernels[0].scratch == 128
    with pytest.raises(InternalError, match=r"pointwise needs 128 bytes of scratch for sm_90"):
        _variant("sm_90", BinaryKind.CUBIN, kernels)


def test_matrix_units_are_used(facts: dict[tuple[str, str], MachineCode]) -> None:
    families = {a: [f for f, _ in m.matrix] for (name, a), m in facts.items() if name == "big"}
    assert families == {
        "sm_80": ["HMMA"],
        "sm_90": ["HGMMA"],
        "gfx90a": ["v_mfma"],
        "gfx942": ["v_mfma"],
        "gfx1100": ["v_wmma"],
    }


def test_facts_are_those_of_the_file_s_own_listing(
    codes: Codes, facts: dict[tuple[str, str], MachineCode], tmp_path: Path
) -> None:
    """The facts of the second of two kernels agree with the cubin's own listing."""
    (tmp_path / "cubin").write_bytes(codes["big", "sm_90"].image)
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    command = [tool, "--print-code", tmp_path / "cubin"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, first = facts["big", "sm_90"], facts["attention", "sm_90"]
    assert found.matrix == (("HGMMA", text.count(" HGMMA.")),)
    assert found.wide_loads == text.count(" LDGSTS.E.BYPASS.128 ") > 0
    assert found.wide_stores == text.count(" STG.E.128 ") > 0
    assert (first.matrix, first.wide_loads, first.wide_stores) == ((), 0, 0)


def test_nothing_is_spilt(facts: dict[tuple[str, str], MachineCode]) -> None:
    for found in facts.values():
        assert found.private == 0
        assert 0 < found.registers <= 256


def test_denormals_stay_and_division_is_exact(codes: Codes) -> None:
    for arch in ("sm_80", "sm_90"):
        for name in ("softmax", "attention"):
            assert ".ftz" not in codes[name, arch].assembly
            assert "div.full" not in codes[name, arch].assembly
            assert "max.NaN.f32" in codes[name, arch].assembly


def test_amd_loads_are_bounded_by_their_buffers(codes: Codes) -> None:
    assert "buffer_load" in codes["softmax", "gfx942"].assembly
    assert "global_load" not in codes["softmax", "gfx942"].assembly


def test_the_compiler_accepts_every_statement_of_the_interpreter() -> None:
    """Triton compiles every statement, and functions and casts of the dtypes that differ most."""
    numbers = [t for t in DTYPES.values() if not t.is_handle]
    corners = [source(n, t) for n, t in CORNERS.items()]
    wide = source("wide", TEXTS["dynamic"].replace("in [1,4096]", "in [1,]"))
    functions = [
        kernel_source(elementwise(bodies, types, 128), name, warps=4, stages=1, dot="ieee")
        for name, bodies, types in (
            ("primitives", [applied(n, F32)[0] for n in UNARY], [F32]),
            ("bytes", [applied(n, I8)[0] for n in INTEGER if n != "select"], [I8, I8]),
            ("bf16", [applied(n, BF16)[0] for n in EXACT if n != "select"], [BF16, BF16]),
            ("casts", [cast(argument(0, F16), t) for t in numbers], [F16]),
        )
    ]
    made = compile_kernels([*corners, wide, *functions], [GPUS["cuda:sm_90"]], 1)
    assert [k.symbol for (k,) in made] == [
        *CORNERS, "wide", "primitives", "bytes", "bf16", "casts"
    ]  # fmt: skip
    assert all(".ftz" not in k.assembly for (k,) in made)


def test_equal_sources_give_equal_bytes_wherever_they_are_compiled() -> None:
    """Equal sources give equal bytes in one process, in two, and beside other kernels."""
    one = source("softmax", TEXTS["softmax"])
    profiles = [GPUS["cuda:sm_90"], GPUS["rocm:gfx942"]]
    first = compile_kernels([one, source("other", TEXTS["pointwise"]), one], profiles, 2)
    second = compile_kernels([one], profiles, 1)
    assert first[0] == first[2] == second[0]
    assert all(b"kernel.py" not in k.image for k in second[0])


def test_an_error_names_the_kernel_and_leaves_its_text(own_tempdir: Path) -> None:
    broken = replace(source("odd", TEXTS["pointwise"]), text=ODD)
    with pytest.raises(ToolError, match="Triton cannot compile the kernel odd for cuda:sm_80") as e:
        compile_kernels([broken], [GPUS["cuda:sm_80"]], 1)
    assert "power of 2" in e.value.why
    assert Path(e.value.where).read_text() == ODD
    assert [str(left) for left in own_tempdir.iterdir()] == [e.value.where]


def test_a_crash_of_the_compiler_is_an_error_here(own_tempdir: Path) -> None:
    fatal = replace(source("fatal", TEXTS["pointwise"]), text="import os\nos.abort()\n")
    with pytest.raises(ToolError, match="fatal") as error:
        compile_kernels([fatal], [GPUS["cuda:sm_80"]], 1)
    assert "SIGABRT ended it" in error.value.why
    assert [str(left) for left in own_tempdir.iterdir()] == [error.value.where]


def test_stages_that_shared_memory_has_no_room_for_are_left_out() -> None:
    """Stages without room in shared memory are dropped.

    A buffer takes 32 of 99 KiB, and an NVIDIA GPU has one buffer fewer than stages.
    """
    profile = GPUS["cuda:sm_86"]
    ((kernel,),) = compile_kernels([source("deep", BIG_MATMUL, warps=8, stages=5)], [profile], 1)
    assert kernel.stages == 4
    assert kernel.shared <= profile.shared


def test_the_compiling_process_has_no_triton() -> None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import tcc.backends.gpu.compile, "
        "tcc.backends.gpu.machine_code; sys.exit('triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


ODD = """\
import triton
import triton.language as tl


@triton.jit
def odd(x, y, z):
    tl.store(z + tl.arange(0, 5), 1.0)
"""
