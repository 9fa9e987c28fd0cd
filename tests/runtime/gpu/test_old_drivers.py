"""If a driver refuses machine code, PTX is loaded instead, and errors name the needed driver."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import BinaryKind, GpuImages, GpuVariant, Platform
from tcc.ir.program import Input, Launch, Program
from tcc.runtime import load

from tests.lib.fake_gpu import gpu_programs
from tests.lib.fake_gpu.fakes import Driver, Fakes, check
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, GpuBuilder

X = np.linspace(-1, 1, 20, dtype=np.float32)
EXPECTED = np.maximum(X, 0) + WEIGHTS[:20]
LOAD = "cuModuleLoadDataEx"
# The errors of drivers for code that is too new: an image of unknown format, no image for this GPU,
# PTX of a later version.
REFUSALS = (200, 209, 222)


def variants(fakes: Fakes, folder: Path) -> tuple[GpuVariant, ...]:
    """Returns machine code and PTX, in images of different names."""
    gpu_code = []
    for arch, form, needs in (
        ("sm_90a", BinaryKind.CUBIN, "NVIDIA driver 525 (CUDA 12.0)"),
        ("sm_80", BinaryKind.PTX, "NVIDIA driver 470 (CUDA 11.4)"),
    ):
        copy = folder / f"{form.name}.so"
        copy.symlink_to(fakes.kernels)
        gpu_code.append(replace(gpu_programs.variant(copy, arch, form), needs=needs))
    return tuple(gpu_code)


def linked(folder: Path, *code: GpuVariant) -> Path:
    path = folder / "old.so"
    images = GpuImages(Platform.CUDA, code)
    manifest = gpu_programs.link(gpu_programs.mlp(), images, path, [WEIGHTS])
    listed = manifest["variants"][0]["gpu"]["images"]
    assert [image["needs"] for image in listed] == [code_row.needs for code_row in code]
    return path


@pytest.mark.parametrize("error", REFUSALS)
def test_a_driver_that_refuses_machine_code_gets_ptx(
    fakes: Fakes, tmp_path: Path, error: int
) -> None:
    path = linked(tmp_path, *variants(fakes, tmp_path))

    def test(driver: Driver) -> None:
        for name, nth in ((LOAD, 1), ("cuModuleGetFunction", 2)):  # drivers may err late
            driver.fail(name, nth, error)
            module = load(path)
            assert driver.loaded() == [str(tmp_path / "CUBIN.so"), str(tmp_path / "PTX.so")]
            assert np.array_equal(module(X), EXPECTED)
            del module
            gc.collect()

    check(fakes, Platform.CUDA, test)


def test_other_failures_do_not_fall_back_to_ptx(fakes: Fakes, tmp_path: Path) -> None:
    path = linked(tmp_path, *variants(fakes, tmp_path))

    def test(driver: Driver) -> None:
        for error, why in ((2, "out of memory"), (700, "illegal memory access")):
            driver.fail(LOAD, 1, error)
            with pytest.raises(RuntimeError, match=why):
                load(path)
            assert driver.loaded() == [str(tmp_path / "CUBIN.so")]

    check(fakes, Platform.CUDA, test)


def test_both_reasons_name_the_drivers_that_are_needed(fakes: Fakes, tmp_path: Path) -> None:
    code, text = variants(fakes, tmp_path)
    bad = replace(text, kernels=tuple(replace(k, image=b"no PTX") for k in text.kernels))
    path = linked(tmp_path, code, bad)

    def test(driver: Driver) -> None:
        driver.fail(LOAD, 1, 209)
        with pytest.raises(RuntimeError) as caught:
            load(path)
        assert str(caught.value).splitlines()[0] == (
            "the code of kernel 'relu' (sm_90a) cannot be loaded on Fake GPU; it needs NVIDIA "
            "driver 525 (CUDA 12.0) or newer, and this is one of CUDA 12.4: something failed "
            "(CUDA error 209, ERROR_FAKE); the code of kernel 'relu' (sm_80 PTX) cannot be loaded "
            "on Fake GPU; it needs NVIDIA driver 470 (CUDA 11.4) or newer, and this is one of "
            "CUDA 12.4: fatal : this is no P: something failed (CUDA error 200, ERROR_FAKE)"
        )
        assert not any(driver.live().values()), driver.live()

    check(fakes, Platform.CUDA, test)


def test_hip_says_why_code_cannot_be_loaded(fakes: Fakes, tmp_path: Path) -> None:
    code_variant = gpu_programs.variant(fakes.kernels, "gfx942", BinaryKind.HSACO)
    kernels = tuple(replace(k, image=b"no code") for k in code_variant.kernels)
    path = tmp_path / "bad.so"
    images = GpuImages(Platform.HIP, (replace(code_variant, kernels=kernels, needs="ROCm 6"),))
    gpu_programs.link(gpu_programs.mlp(), images, path, [WEIGHTS])

    def test(_driver: Driver) -> None:
        pattern = (
            r"kernel 'relu' \(gfx942\) cannot be loaded on Fake GPU; it needs ROCm 6 or newer: "
            r"fatal : this is no c: something failed \(HIP error 200"
        )
        with pytest.raises(RuntimeError, match=pattern):
            load(path)

    check(fakes, Platform.HIP, test)


def wide(units: int) -> Program:
    """Returns a launch of `units` blocks of 128 threads."""
    b = GpuBuilder()
    one = b.const(1)
    b.input("x", "f32", [one], "[1]")
    x = b.buffer(Input(0), "x")
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, b.const(4))
    b.body.append(Launch(3, b.const(units), (x, y), ()))
    return b.program()


@pytest.mark.parametrize(("platform", "refused"), [(Platform.HIP, True), (Platform.CUDA, False)])
def test_hip_takes_less_than_two_to_the_32_threads(
    fakes: Fakes, tmp_path: Path, platform: Platform, refused: bool
) -> None:
    path = {}
    for blocks in (2**25, 2**25 - 1):
        path[blocks] = tmp_path / f"{blocks}.so"
        gpu_programs.link(wide(blocks), gpu_programs.images(fakes.kernels, platform), path[blocks])

    def test(_driver: Driver) -> None:
        x = np.ones(1, np.float32)
        load(path[2**25 - 1])(x)
        if refused:
            pattern = r"'positive' has 33554432 blocks of 128 threads, .*less than 2\^32 threads"
            with pytest.raises(RuntimeError, match=pattern):
                load(path[2**25])(x)
        else:
            load(path[2**25])(x)

    check(fakes, platform, test)
