"""Every driver call of a lifetime, with arguments and in order: open, run, record, replay,
close."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import load

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import Linker

# HIP names that differ from CUDA's by more than the prefix, and attributes with another number.
HIP = MappingProxyType(
    {
        "cuDeviceGetCount": "hipGetDeviceCount",
        "cuMemAlloc_v2": "hipMalloc",
        "cuMemAllocAsync": "hipMallocAsync",
        "cuMemFree_v2": "hipFree",
        "cuMemFreeAsync": "hipFreeAsync",
        "cuMemHostAlloc": "hipHostMalloc",
        "cuMemFreeHost": "hipHostFree",
        "cuLaunchKernel": "hipModuleLaunchKernel",
        "cuStreamCreate": "hipStreamCreateWithFlags",
        "cuEventCreate": "hipEventCreateWithFlags",
        "cuDeviceGetAttribute 115": "hipDeviceGetAttribute 88",
        "cuDeviceGetAttribute 97": "hipDeviceGetAttribute 74",
    }
)


def calls(platform: Platform, *lines: str) -> list[str]:
    """Translates lines of CUDA to the platform's names."""
    return list(lines) if platform is Platform.CUDA else [_hip(line) for line in lines]


def _hip(line: str) -> str:
    for cuda, hip in HIP.items():
        if line == cuda or line.startswith(f"{cuda} "):
            return hip + line.removeprefix(cuda)
    name, _, arguments = line.partition(" ")
    return f"hip{name.removeprefix('cu').removesuffix('_v2')} {arguments}".rstrip()


def launches(stream: int, n: int) -> tuple[str, str]:
    """Returns the launches of the two kernels, for n numbers in blocks of eight."""
    grid = f"grid={-(-n // 8)},1,1 block=128,1,1"
    return (
        f"cuLaunchKernel relu {grid} shared=1024 stream={stream} ptr ptr {n} 0 0",
        f"cuLaunchKernel add {grid} shared=65536 stream={stream} ptr ptr ptr {n} 0 0",
    )


def record(n: int) -> tuple[str, ...]:
    """Returns the recording of the two launches, on a separate stream that calls of other threads
    do not disturb."""
    return (
        "cuStreamBeginCapture_v2 stream=2 mode=1",
        *launches(2, n),
        "cuStreamEndCapture stream=2",
        "cuGraphInstantiateWithFlags 0",
        "cuGraphDestroy",
    )


@pytest.mark.parametrize("platform", tuple(Platform))
def test_a_life_on_the_hosts_arrays(fakes: Fakes, linked: Linker, platform: Platform) -> None:
    path = linked("mlp", platform)
    on_cuda = platform is Platform.CUDA
    version = ("cuDeviceGetAttribute 75 40", "cuDeviceGetAttribute 76 40")

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        opened = driver.log()
        assert opened.pop(10 if on_cuda else 8).split(" ")[-1] == f"FAKE:{fakes.kernels}"
        described = calls(platform, *version) if on_cuda else ["hipGetDevicePropertiesR0600 0"]
        retained = ["cuDevicePrimaryCtxRetain 40"] if on_cuda else []
        attributes = (
            [f"cuFuncSetAttribute add {a}" for a in ("8 65536", "9 100")] if on_cuda else []
        )
        assert opened == [
            *calls(platform, "cuInit 0", "cuDeviceGetCount", "cuDeviceGet 0", "cuDeviceGetName 40"),
            *calls(platform, "cuDeviceGetAttribute 115 40"),
            *described,
            *retained,
            *calls(platform, "cuMemGetInfo_v2", "cuDeviceGetAttribute 97 40"),
            *calls(platform, "cuModuleGetFunction relu", "cuModuleGetFunction add"),
            *attributes,
            *calls(
                platform,
                *(f"cuModuleGetFunction {k}" for k in ("accumulate", "positive", "fill", "count")),
                "cuMemAlloc_v2 256",
                "cuMemcpyHtoDAsync_v2 256 stream=0",
                "cuStreamSynchronize stream=0",
                "cuStreamCreate 0",
                "cuStreamCreate 1",
                "cuEventCreate 2",
                "cuMemHostAlloc 64 0",
            ),
        ]
        x, y = np.linspace(-1, 1, 20, dtype=np.float32), np.empty(20, np.float32)
        there, back = "cuMemcpyHtoDAsync_v2 80 stream=1", "cuMemcpyDtoHAsync_v2 80 stream=1"
        some, over = "cuMemAlloc_v2 512", "cuStreamSynchronize stream=1"
        for run in (
            (some, there, some, some, *launches(1, 20), back, over),
            (there, *record(20), "cuGraphLaunch stream=1", back, over),
            (there, "cuGraphLaunch stream=1", back, over),
        ):
            artifact.run([on_host(x)], [on_host(y)])
            assert driver.log() == calls(platform, *run)
        artifact.close()
        assert driver.log() == [
            *calls(platform, "cuGraphExecDestroy", *["cuMemFree_v2"] * 3, "cuMemFreeHost"),
            *calls(platform, "cuEventDestroy_v2", "cuStreamDestroy_v2 2", "cuStreamDestroy_v2 1"),
            *calls(platform, "cuMemFree_v2", "cuModuleUnload"),
            *(["cuDevicePrimaryCtxRelease_v2 40"] if on_cuda else []),
        ]

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_recorded_runs_wait_for_the_one_before_on_the_callers_stream(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    """The wait and the event lie outside the recording, which can be replayed on any stream."""
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        zeros = np.zeros(16, np.float32)
        x, y, stream = driver.array(zeros), driver.array(zeros), driver.stream()
        tensors = [on_device(driver, x, [16])], [on_device(driver, y, [16])]
        driver.log()
        question = "cuStreamIsCapturing stream=3"
        wait, mark = "cuStreamWaitEvent stream=3 of=3 flags=0", "cuEventRecord stream=3"
        for run in (
            (question, "cuMemAlloc_v2 512", *launches(3, 16), mark),
            (question, wait, *record(16), "cuGraphLaunch stream=3", mark),
            (question, wait, "cuGraphLaunch stream=3", mark),
        ):
            artifact.run(*tensors, stream)
            assert driver.log() == calls(platform, *run)
        artifact.run(*tensors)
        calls_of_own_stream = ("cuStreamWaitEvent stream=1 of=3 flags=0", "cuGraphLaunch stream=1")
        assert driver.log() == calls(platform, *calls_of_own_stream, "cuStreamSynchronize stream=1")
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_sizes_that_data_decide(fakes: Fakes, linked: Linker, platform: Platform) -> None:
    """The count is read back before memory of its size is allocated; memory is freed in stream
    order."""
    path = linked("growing", platform)

    def test(driver: Driver) -> None:
        module = load(path)
        module(np.array([2], np.float32))
        driver.log()
        module(np.array([2], np.float32))
        kernel = "grid=1,1,1 block=128,1,1 shared=1024 stream=1"
        some, free = "cuMemAllocAsync 512 stream=1", "cuMemFreeAsync stream=1"
        over = "cuStreamSynchronize stream=1"
        assert driver.log() == calls(
            platform,
            "cuMemcpyHtoDAsync_v2 4 stream=1",
            some,
            f"cuLaunchKernel count {kernel} ptr ptr 0 0",
            "cuMemcpyDtoHAsync_v2 8 stream=1",
            over,
            some,
            f"cuLaunchKernel fill {kernel} ptr 2 2 0 0",
            some,
            "cuMemcpyDtoDAsync_v2 8 stream=1",
            free,
            f"cuLaunchKernel fill {kernel} ptr 7 2 0 0",
            "cuMemcpyDtoDAsync_v2 16 stream=1",
            "cuMemcpyDtoHAsync_v2 16 stream=1",
            free,
            free,
            over,
        )
        del module

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_timed_runs_wait_around_every_kernel(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        module = load(path, timed=True)
        module(np.zeros(8, np.float32))
        driver.log()
        module(np.zeros(8, np.float32))
        wait = "cuStreamSynchronize stream=1"
        relu, add = launches(1, 8)
        there, back = "cuMemcpyHtoDAsync_v2 32 stream=1", "cuMemcpyDtoHAsync_v2 32 stream=1"
        assert driver.log() == calls(platform, there, wait, relu, wait, wait, add, wait, back, wait)
        del module

    check(fakes, platform, test)
