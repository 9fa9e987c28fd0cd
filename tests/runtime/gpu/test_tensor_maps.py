"""Tensor maps: every field that the driver gets, persistent kernels, and drivers without tensor
maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import (
    BinaryKind,
    GpuImages,
    GpuKernel,
    GpuVariant,
    Param,
    Platform,
    TensorMap,
)
from tcc.ir.program import Arena, Input, IntOp, Launch, Program

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, in_child, on_host
from tests.lib.fake_gpu.gpu_programs import GpuBuilder, link

MAP = TensorMap(0, "bf16", (2, 3, 16), (48, 16, 1), (1, 2, 16), 32)
PARAMS = (Param.POINTER, Param.POINTER, Param.TENSOR_MAP, *(Param.NULL,) * 6)


def program(count: int = 1) -> Program:
    """Returns y = x for x: f32[48], in launches of `count` tiles."""
    b = GpuBuilder()
    n, zero, size = b.const(48), b.const(0), b.const(192)
    b.arena = size
    b.input("x", "f32", [n], "[48]")
    x, middle = b.buffer(Input(0), "x"), b.buffer(Arena(zero, size))
    y = b.output("y", "f32", [n], "[48]")
    b.allocate(y, size)
    units = b.let(IntOp.ADD, b.const(count), zero)
    b.body.append(Launch(0, units, (x, middle), ()))
    b.body.append(Launch(0, units, (middle, y), ()))
    return replace(b.program(), kernels=("mapped",))


def artifact(
    fakes: Fakes, folder: Path, maps: Sequence[TensorMap] = (MAP,), *, stays: bool = True,
    units: int = 48,
) -> Path:  # fmt: skip
    image = f"FAKE:{fakes.kernels}".encode() + b"\0"
    kernel = GpuKernel("mapped", image, 1024, 4, 32, PARAMS, tuple(maps), stays)
    out = folder / "mapped.so"
    images = GpuImages(Platform.CUDA, (GpuVariant("sm_90a", BinaryKind.CUBIN, (kernel,)),))
    link(program(units), images, out)
    return out


def run(path: Path) -> np.ndarray:
    instance, x, y = Artifact(path), np.arange(48, dtype=np.float32), np.zeros(48, np.float32)
    for _ in range(3):  # plain, recorded, replayed
        instance.run([on_host(x)], [on_host(y)])
    instance.close()
    return y


def test_every_field_equals_that_of_the_kernel(fakes: Fakes, tmp_path: Path) -> None:
    path = artifact(fakes, tmp_path)

    def test(driver: Driver) -> None:
        run(path)
        lines = driver.log()
        fields = "type=9 swizzle=1 interleave=0 promotion=2 outside=0"
        axes = "16:2:16:1 3:32:2:1 2:96:1:1"
        calls_of_maps = [line for line in lines if line.startswith("cuTensorMapEncodeTiled")]
        assert (
            calls_of_maps == [f"cuTensorMapEncodeTiled {fields} {axes}"] * 4
        )  # twice in a recording
        launches = [line for line in lines if line.startswith("cuLaunchKernel")]
        # The map is aligned, the bit that old drivers set wrongly is clear, and the rest is zero.
        assert all(line.endswith("ptr ptr map:1:0 0 0 0 0 0 0") for line in launches)

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize(("stays", "units", "grid"), [(True, 48, 2), (True, 1, 1), (False, 48, 48)])
def test_kernels_that_stay_fill_the_device(
    fakes: Fakes, tmp_path: Path, stays: bool, units: int, grid: int
) -> None:
    """The fake device holds two programs at once, and each copies one element."""
    path = artifact(fakes, tmp_path, stays=stays, units=units)

    def test(driver: Driver) -> None:
        y = run(path)
        assert y[:grid].tolist() == list(range(grid))
        launches = [line for line in driver.log() if line.startswith("cuLaunchKernel")]
        assert launches
        assert all(f" grid={grid},1,1 " in line for line in launches)

    check(fakes, Platform.CUDA, test)


def test_a_tensor_map_that_the_driver_refuses_is_named(fakes: Fakes, tmp_path: Path) -> None:
    """The map has more elements than the buffer."""
    large = replace(MAP, sizes=(1 << 12, 3, 16))
    path = artifact(fakes, tmp_path, (large,))

    def test(driver: Driver) -> None:
        with pytest.raises(RuntimeError, match="array 0 of kernel 'mapped' cannot be described"):
            run(path)

    in_child(lambda: _with_driver(fakes, test))


def test_a_driver_without_maps_is_too_old(fakes: Fakes, tmp_path: Path) -> None:
    path = artifact(fakes, tmp_path)

    def test(_driver: Driver) -> None:
        with pytest.raises(RuntimeError, match=r"lacks: install version 525.*--gpu-kernels triton"):
            Artifact(path)

    check(fakes, Platform.CUDA, test, "-DOLD")


def _with_driver(fakes: Fakes, test: object) -> None:
    driver = Driver(fakes.driver(Platform.CUDA), Platform.CUDA)
    driver.configure("sm_90")
    assert callable(test)
    test(driver)
