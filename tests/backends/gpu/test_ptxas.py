"""Tests of the PTX version and the cubin's form: both are as old as the instructions allow."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tcc.backends.gpu.machine_code import nvidia_tool
from tcc.backends.gpu.ptxas import assemble, needed_driver
from tcc.backends.gpu.source import CompiledKernel, kernel_source
from tcc.errors import ToolError
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import BIG_MATMUL, TEXTS

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("gpu-ptxas")]
CUDA = [gpu for gpu in GPUS.values() if gpu.kind == "cuda"]
# CUDA 11.4 to 12.9 introduced these versions.
VERSIONS = [f"7.{n}" for n in range(4, 9)] + [f"8.{n}" for n in range(9)]
# The version of the ABI in an ELF file; drivers before CUDA 13 know only 7 for these GPUs.
ABI, OLD_ABI = 8, 7
DRIVERS = {
    "sm_80": ("525 (CUDA 12.0)", "470 (CUDA 11.4)"),
    "sm_86": ("525 (CUDA 12.0)", "470 (CUDA 11.4)"),
    "sm_89": ("525 (CUDA 12.0)", "520 (CUDA 11.8)"),
    "sm_90": ("525 (CUDA 12.0)", "525 (CUDA 12.0)"),
    "sm_100": ("565 (CUDA 12.7)", "565 (CUDA 12.7)"),
    "sm_120": ("570 (CUDA 12.8)", "570 (CUDA 12.8)"),
}


@pytest.fixture(scope="module")
def made() -> list[CompiledKernel]:
    """Returns two kernels for every CUDA architecture."""
    sources = [
        kernel_source(parse_kernel(text), name, warps=8, stages=3, dot="ieee")
        for name, text in (("big", BIG_MATMUL), ("pointwise", TEXTS["pointwise"]))
    ]
    return [kernel for row in compile_kernels(sources, CUDA, 1) for kernel in row]


def version_of(text: str) -> str:
    found = re.search(r"^\.version (\S+)", text, re.MULTILINE)
    assert found is not None
    return found[1]


def accepts(text: str, folder: Path) -> bool:
    """Returns true if ptxas accepts the text for its own target."""
    target = re.search(r"^\.target (\w+)", text, re.MULTILINE)
    assert target is not None
    path = folder / "kernel.ptx"
    path.write_text(text)
    command: list[str | Path] = [
        nvidia_tool("ptxas"),
        f"--gpu-name={target[1]}",
        path,
        "-o",
        folder / "kernel.cubin",
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_version_is_the_oldest_that_is_accepted(
    made: list[CompiledKernel], tmp_path: Path
) -> None:
    for kernel in made:
        version = version_of(kernel.assembly)
        assert accepts(kernel.assembly, tmp_path), (kernel.arch, version)
        if version != VERSIONS[0]:
            before = VERSIONS[VERSIONS.index(version) - 1]
            older = kernel.assembly.replace(f".version {version}", f".version {before}", 1)
            assert not accepts(older, tmp_path), (kernel.arch, kernel.symbol, before)


def test_drivers_for_cuda_12_know_the_form_of_the_code(made: list[CompiledKernel]) -> None:
    forms = {kernel.arch: kernel.image[ABI] for kernel in made}
    assert {arch for arch, form in forms.items() if form == OLD_ABI} == {
        "sm_80", "sm_86", "sm_89", "sm_90",
    }  # fmt: skip
    for kernel in made:
        if kernel.symbol == "pointwise":
            found = [needed_driver(kernel.assembly, cubin=cubin) for cubin in (True, False)]
            assert found == [f"NVIDIA driver {n}" for n in DRIVERS[kernel.arch]]


def test_instructions_raise_the_version(made: list[CompiledKernel]) -> None:
    """An instruction that PTX 8.0 lacks raises the version of sm_90's text."""
    hopper = next(k.assembly for k in made if k.arch == "sm_90" and k.symbol == "pointwise")
    newer = hopper.replace("\tret;", "\tfence.mbarrier_init.release.cluster;\n\tret;")
    assert version_of(assemble(newer)[0]) == "8.0"
    newer = hopper.replace("\tret;", "\t.reg .b128 %wide;\n\tret;")
    text, image = assemble(newer)
    assert (version_of(text), image[:4]) == ("8.3", b"\x7fELF")
    assert assemble(newer, check_only=True) == (text, b"")
    assert needed_driver(text, cubin=False) == "NVIDIA driver 545 (CUDA 12.3)"
    assert needed_driver(text, cubin=True) == "NVIDIA driver 525 (CUDA 12.0)"


def test_text_that_no_version_has_is_refused(made: list[CompiledKernel]) -> None:
    wrong = made[0].assembly.replace("\tret;", "\tno.such.instruction;\n\tret;")
    with pytest.raises(ToolError, match=r"ptxas refuses a kernel(?s:.*)instruction: 'no'"):
        assemble(wrong)


def test_an_error_of_ptxas_names_the_kernel(own_tempdir: Path) -> None:
    """An error of ptxas names the kernel, even if Triton prints to the worker's standard output."""
    source = kernel_source(parse_kernel(TEXTS["pointwise"]), "k", warps=4, stages=1, dot="ieee")
    lines = source.text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("def k("))
    operands = '"no.such $0, $1;", "=r,r", [tl.program_id(0)], tl.int32, False, 1'
    more = '    tl.static_print("noise")', f"    tl.inline_asm_elementwise({operands})"
    noisy = "\n".join([*lines[: at + 1], *more, *lines[at + 1 :]])
    with pytest.raises(ToolError, match=r"Triton cannot compile the kernel k for cuda:sm_80") as e:
        compile_kernels([replace(source, text=noisy)], [GPUS["cuda:sm_80"]], 1)
    assert "instruction: 'no'" in str(e.value)
    assert [str(left) for left in own_tempdir.iterdir()] == [e.value.where]
