"""Programs on fake GPUs give the right numbers, make every call in order, and leave nothing
behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import load

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker

PLATFORMS = tuple(Platform)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, 0) + WEIGHTS[: len(x)]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_arrays_of_the_host_go_there_and_back(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        module = load(path, poison=True)
        for n in (0, 1, 8, 9, 64, 9, 9):
            x = np.linspace(-1, 1, n, dtype=np.float32)
            assert np.array_equal(module(x), expected(x))
        wide = np.linspace(-1, 1, 60, dtype=np.float32)
        assert np.array_equal(module(wide[::2]), expected(wide[::2]))
        with pytest.raises(RuntimeError, match=r"n is at most 64 \(65, 64\)"):
            module(np.zeros(65, np.float32))
        del module

    check(fakes, platform, test)


def test_every_call_of_cuda_in_order(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        opened = driver.log()
        assert opened[:3] == ["cuInit 0", "cuDeviceGetCount", "cuDeviceGet 0"]
        assert opened.count("cuModuleGetFunction add") == 1
        assert sum(line.startswith("cuModuleLoadDataEx") for line in opened) == 1
        assert [line for line in opened if "cuFuncSetAttribute" in line] == [
            "cuFuncSetAttribute add 8 65536",
            "cuFuncSetAttribute add 9 100",
        ]
        assert "cuMemAlloc_v2 256" in opened
        assert "cuMemcpyHtoDAsync_v2 256 stream=0" in opened
        x, y = np.linspace(-1, 1, 20, dtype=np.float32), np.empty(20, np.float32)
        artifact.run([on_host(x)], [on_host(y)])
        assert driver.log() == [
            "cuMemAlloc_v2 512",
            "cuMemcpyHtoDAsync_v2 80 stream=1",
            "cuMemAlloc_v2 512",
            "cuMemAlloc_v2 512",
            "cuLaunchKernel relu grid=3,1,1 block=128,1,1 shared=1024 stream=1 ptr ptr 20 0 0",
            "cuLaunchKernel add grid=3,1,1 block=128,1,1 shared=65536 stream=1 ptr ptr ptr 20 0 0",
            "cuMemcpyDtoHAsync_v2 80 stream=1",
            "cuStreamSynchronize stream=1",
        ]
        assert np.array_equal(y, expected(x))
        artifact.close()
        closed = driver.names()
        assert closed.count("cuMemFree_v2") == 4
        assert closed[-2:] == ["cuModuleUnload", "cuDevicePrimaryCtxRelease_v2"]

    check(fakes, Platform.CUDA, test)


def test_hip_asks_for_no_shared_memory(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.HIP)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y = np.ones(3, np.float32), np.empty(3, np.float32)
        artifact.run([on_host(x)], [on_host(y)])
        assert np.array_equal(y, expected(x))
        lines = driver.log()
        assert any(line.startswith("hipModuleLaunchKernel add") for line in lines)
        assert not any("Attribute add" in line for line in lines)
        artifact.close()

    check(fakes, Platform.HIP, test)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_device_arrays_are_used_in_place_on_the_callers_stream(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        values = np.linspace(-1, 1, 16, dtype=np.float32)
        x, y, stream = driver.array(values), driver.array(np.zeros(16, np.float32)), driver.stream()
        driver.log()
        artifact.run([on_device(driver, x, [16])], [on_device(driver, y, [16])], stream)
        lines = driver.log()
        assert not any("memcpy" in line.lower() or "Synchronize" in line for line in lines)
        assert [line.split("stream=")[1][0] for line in lines if "Launch" in line] == ["3", "3"]
        assert not driver.read(y, [16]).any()  # nothing has waited yet
        driver.settle(stream)
        assert np.array_equal(driver.read(y, [16]), expected(values))
        # the next run, on the instance's own stream, waits for this run
        artifact.run([on_device(driver, x, [16])], [on_device(driver, y, [16])], stream)
        out = np.empty(16, np.float32)
        artifact.run([on_device(driver, x, [16])], [on_host(out)])
        assert any("WaitEvent" in line for line in driver.log())
        assert np.array_equal(out, expected(values))
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, platform, test)


def test_device_arrays_off_sixteen_bytes_are_copied(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        values = np.linspace(-1, 1, 17, dtype=np.float32)
        x, y = driver.array(values), driver.array(np.zeros(17, np.float32))
        driver.log()
        artifact.run([on_device(driver, x + 4, [16])], [on_device(driver, y + 4, [16])])
        assert driver.names().count("cuMemcpyDtoDAsync_v2") == 2
        assert np.array_equal(driver.read(y, [17])[1:], expected(values[1:]))
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_state_and_outputs_in_place(fakes: Fakes, linked: Linker, platform: Platform) -> None:
    path = linked("in_place", platform)

    def test(driver: Driver) -> None:
        module = load(path)
        x = np.ones(5, np.float32)
        updated, total = module(x)
        assert updated is x
        assert x.tolist() == [2] * 5
        assert total.tolist() == [2]
        assert module(x)[1].tolist() == [6]
        artifact = Artifact(path)
        address = driver.array(x)
        y = np.empty(1, np.float32)
        tensor = on_device(driver, address, [5])
        artifact.run([tensor], [tensor, on_host(y)])
        assert driver.read(address, [5]).tolist() == [8] * 5
        assert y.tolist() == [8]  # another instance has another state
        artifact.close()
        driver.give(address)
        del module

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_bytes_behind_the_last_row_stay_on_the_host(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    """A view of 3 of 5 columns is copied to the GPU and back; memory after its last row may not
    exist."""
    path = linked("roomy", platform)

    def test(driver: Driver) -> None:
        module = load(path)
        memory = np.ones((2, 5), np.float32)
        view = memory[:, :3]
        driver.log()
        (updated,) = [module(view)]
        assert updated is view
        copied = [line for line in driver.log() if "HtoD" in line or "DtoH" in line]
        assert [line.split()[1] for line in copied] == ["32", "32"]
        assert memory.tolist() == [[2] * 5, [2] * 3 + [1] * 2]
        with pytest.raises(RuntimeError, match="front of a row-major array along axis 1"):
            module(np.ones((2, 6), np.float32)[:, ::2])
        del module

    check(fakes, platform, test)


@pytest.mark.parametrize("flags", [(), ("-DOLD",)])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_sizes_and_branches_of_the_devices_data(
    fakes: Fakes, linked: Linker, platform: Platform, flags: tuple[str, ...]
) -> None:
    growing, branching = linked("growing", platform), linked("branching", platform)

    def test(driver: Driver) -> None:
        module = load(growing)
        for n in (1, 5, 20, 3):
            assert module(np.array([n], np.float32)).tolist() == [n] * n + [7] * n
        lines = driver.log()
        assert any("AllocAsync" in line or "MallocAsync" in line for line in lines) != bool(flags)
        branches = load(branching)
        x = np.array([1, -2, 3], np.float32)
        for _ in range(3):
            assert np.array_equal(branches(x), x + x)
            assert np.array_equal(branches(-x), np.maximum(-x, 0))
        assert not any("Capture" in line for line in driver.log())
        del module, branches

    check(fakes, platform, test, *flags)


def test_functions_of_the_host_have_room_for_temporaries(fakes: Fakes, linked: Linker) -> None:
    path = linked("counting", Platform.CUDA)

    def test(_driver: Driver) -> None:
        module = load(path)
        for _ in range(3):
            assert module(np.array([2, 3, 5, 4, 2, 5, 4], np.int64)).tolist() == [2, 1, 2]
        del module

    check(fakes, Platform.CUDA, test)


def test_a_loop_asks_the_device_once_a_trip(fakes: Fakes, linked: Linker) -> None:
    path = linked("until", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        step, stream = driver.array(np.full(6, -1, np.float32)), driver.stream()
        y = driver.array(np.zeros(6, np.float32))
        for first, trips in ((2.5, 3), (0.0, 0), (99.0, 10), (2.5, 3)):
            x = driver.array(np.full(6, first, np.float32))
            driver.log()
            inputs = [on_device(driver, x, [6]), on_device(driver, step, [6])]
            artifact.run(inputs, [on_device(driver, y, [6])], stream)
            names = driver.names()
            driver.settle(stream)
            assert driver.read(y, [6]).tolist() == [first - trips] * 6
            # the flag is read before every trip, including the trip that does not happen
            reads = trips + (trips < 10)
            assert names.count("cuMemcpyDtoHAsync_v2") == reads
            assert names.count("cuStreamSynchronize") == reads
            assert names.count("cuLaunchKernel") == 1 + 2 * trips
            driver.give(x)
        artifact.close()
        driver.give(step)
        driver.give(y)

    check(fakes, Platform.CUDA, test)


def test_sizes_side_by_side_are_read_at_once(fakes: Fakes, linked: Linker) -> None:
    path = linked("square", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        for n in (3, 1, 5):
            driver.log()
            assert module(np.array([n], np.float32)).tolist() == [7.0] * n * n
            lines = driver.log()
            reads = [line for line in lines if line.startswith("cuMemcpyDtoHAsync")]
            assert [line.split()[1] for line in reads] == ["8", str(4 * n * n)]
            assert sum(line.startswith("cuStreamSynchronize") for line in lines) == 2
        del module

    check(fakes, Platform.CUDA, test)


def test_times_are_taken_of_every_kernel(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path, timed=True)
        for _ in range(3):
            module(np.zeros(8, np.float32))
        assert [time.count for time in module.times()] == [3, 3]
        assert module.statistics().weight_bytes == 256
        assert module.statistics().arena_bytes == 512
        assert not any("Capture" in line for line in driver.log())
        del module

    check(fakes, Platform.CUDA, test)
