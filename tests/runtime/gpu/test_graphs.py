"""The second of equal runs is recorded, and runs from the third on are replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import load

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, 0) + WEIGHTS[: len(x)]


def short(lines: list[str]) -> list[str]:
    """Returns names without prefix, and the stream."""
    return [
        " ".join([line.split()[0].removeprefix("cu").removeprefix("hip"), *streams(line)])
        for line in lines
    ]


def streams(line: str) -> list[str]:
    return [word for word in line.split() if word.startswith("stream=")]


def test_the_order_of_calls(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y = np.linspace(-1, 1, 20, dtype=np.float32), np.empty(20, np.float32)
        runs = []
        for turn in range(4):
            driver.log()
            x[0] = turn
            artifact.run([on_host(x)], [on_host(y)])
            assert np.array_equal(y, expected(x))
            runs.append(short(driver.log()))
        assert runs[1] == [
            "MemcpyHtoDAsync_v2 stream=1",
            "StreamBeginCapture_v2 stream=2",
            "LaunchKernel stream=2",
            "LaunchKernel stream=2",
            "StreamEndCapture stream=2",
            "GraphInstantiateWithFlags",
            "GraphDestroy",
            "GraphLaunch stream=1",
            "MemcpyDtoHAsync_v2 stream=1",
            "StreamSynchronize stream=1",
        ]
        replay = [
            "MemcpyHtoDAsync_v2 stream=1",
            "GraphLaunch stream=1",
            "MemcpyDtoHAsync_v2 stream=1",
            "StreamSynchronize stream=1",
        ]
        assert runs[2] == runs[3] == replay
        artifact.close()

    check(fakes, Platform.CUDA, test)


def test_a_seed_has_a_record_of_its_own_and_a_new_one_none(
    fakes: Fakes, linked: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded run repeats its launches, so that a run with another seed may not replay it."""
    path = linked("seeded", Platform.CUDA)
    monkeypatch.delenv("TCC_SEED", raising=False)

    def test(driver: Driver) -> None:
        artifact, y = Artifact(path), np.empty(1, np.float32)

        def runs(count: int) -> tuple[set[float], int]:
            """Returns the numbers that `count` runs draw, and how many of the runs were
            replayed."""
            driver.log()
            values = set()
            for _ in range(count):
                artifact.run([], [on_host(y)])
                values.add(float(y[0]))
            return values, sum(name.startswith("GraphLaunch") for name in short(driver.log()))

        assert [len(runs(4)[0]), runs(4)[1]] == [4, 0]
        for seed in (5, 6):
            assert artifact.api.instance_seed(artifact._instance, seed) == 0
            assert runs(3) == ({seed}, 2)
        assert artifact.api.instance_seed(artifact._instance, 5) == 0
        assert runs(1) == ({5}, 1)
        assert artifact.api.instance_unseed(artifact._instance) == 0
        assert [len(runs(3)[0]), runs(3)[1]] == [3, 0]
        artifact.close()

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_sizes_and_addresses_each_have_their_own(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        values = np.linspace(-1, 1, 64, dtype=np.float32)
        stream = driver.stream()
        arrays = [(driver.array(values * k), driver.array(values)) for k in (1, 2)]
        for _ in range(4):
            for k, (x, y) in enumerate(arrays, 1):
                for n in (64, 33):
                    tensors = [on_device(driver, x, [n])], [on_device(driver, y, [n])]
                    artifact.run(*tensors, stream)
                    driver.settle(stream)
                    assert np.array_equal(driver.read(y, [n]), expected(values[:n] * k))
        names = short(driver.log())
        assert sum(name.startswith("StreamBeginCapture") for name in names) == 4
        assert sum(name.startswith("GraphLaunch") for name in names) == 12
        artifact.close()
        for x, y in arrays:
            driver.give(x)
            driver.give(y)

    check(fakes, platform, test)


def test_an_input_at_another_address_is_another_run(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        values, y = np.linspace(-1, 1, 16, dtype=np.float32), driver.array(np.zeros(16, np.float32))
        arrays = [driver.array(values), driver.array(-values)]
        for sign, x in ((1, arrays[0]), (-1, arrays[1])) * 4:
            artifact.run([on_device(driver, x, [16])], [on_device(driver, y, [16])])
            assert np.array_equal(driver.read(y, [16]), expected(values * sign))
        artifact.close()
        for address in (*arrays, y):
            driver.give(address)

    check(fakes, Platform.CUDA, test)


def test_only_the_last_eight_are_kept(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        module(np.zeros(64, np.float32))  # the arena has its final place now
        for _ in range(3):
            for n in range(1, 9):
                x = np.linspace(-1, 1, n, dtype=np.float32)
                assert np.array_equal(module(x), expected(x))
        assert driver.live()["executables"] == 8
        for _ in range(3):
            for n in range(10, 20):
                x = np.linspace(-1, 1, n, dtype=np.float32)
                assert np.array_equal(module(x), expected(x))
        assert driver.live()["executables"] <= 8
        del module

    check(fakes, Platform.CUDA, test)


def test_values_that_the_host_reads_from_the_callers_array_are_part_of_the_key(
    fakes: Fakes, linked: Linker
) -> None:
    path = linked("looping", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        x = np.arange(5, dtype=np.float32)
        for k in (3, 0, 3, 1, 3, 1, 1):
            assert np.array_equal(module(x, np.int64(k)), x * 2**k)
        names = short(driver.log())
        assert sum(name.startswith("StreamBeginCapture") for name in names) == 2
        del module

    check(fakes, Platform.CUDA, test)


def test_runs_of_very_many_kernels_are_not_recorded(fakes: Fakes, linked: Linker) -> None:
    path = linked("looping", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        x = np.zeros(3, np.float32)
        for k, records in ((17000, 0), (1000, 1)):
            for _ in range(2):
                assert np.array_equal(module(x, np.int64(k)), x)
            assert driver.live()["executables"] == records
        del module

    check(fakes, Platform.CUDA, test)


def test_programs_that_ask_the_device_are_not_recorded(fakes: Fakes, linked: Linker) -> None:
    paths = [linked(name, Platform.CUDA) for name in ("growing", "branching")]

    def test(driver: Driver) -> None:
        for path in paths:
            module = load(path)
            for _ in range(3):
                module(np.ones(1, np.float32))
            assert not any("Capture" in line for line in driver.log())
            del module

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize(
    "name",
    ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
     "cuGraphLaunch", "cuLaunchKernel"],
)  # fmt: skip
def test_a_recording_that_fails_is_an_error_and_the_next_run_is_not(
    fakes: Fakes, linked: Linker, name: str
) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        x = np.linspace(-1, 1, 20, dtype=np.float32)
        module(x)
        driver.fail(name, 1, 901)
        with pytest.raises(RuntimeError, match=r"something failed \(CUDA error 901, ERROR_FAKE\)"):
            module(x)
        for _ in range(3):
            assert np.array_equal(module(x), expected(x))
        del module

    check(fakes, Platform.CUDA, test)
