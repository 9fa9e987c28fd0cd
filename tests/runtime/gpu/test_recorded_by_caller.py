"""Runs inside a graph that the caller records neither wait nor allocate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker

PLATFORMS = tuple(Platform)
X = np.linspace(-1, 1, 64, dtype=np.float32)


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, 0) + WEIGHTS[: len(x)]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("warm_runs", [1, 3])
def test_the_kernels_alone_go_into_the_graph(
    fakes: Fakes, linked: Linker, platform: Platform, warm_runs: int
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y, stream = driver.array(X), driver.array(np.zeros(64, np.float32)), driver.stream()
        tensors = [on_device(driver, x, [64])], [on_device(driver, y, [64])]
        for _ in range(warm_runs):
            artifact.run(*tensors, stream)  # its end is an event outside the graph
        driver.log()
        with driver.recording(stream) as graphs:
            artifact.run(*tensors, stream)
            artifact.run(*tensors, stream)
        names = [line.removeprefix("cu").removeprefix("hip") for line in driver.names()]
        once = ["StreamIsCapturing", *("LaunchKernel", "LaunchKernel")]
        assert [name.replace("Module", "") for name in names] == once * 2
        driver.settle(stream)
        for k in (1, 2):
            values = driver.array(X * k)
            artifact.run([on_device(driver, values, [64])], [on_device(driver, x, [64])], stream)
            driver.settle(stream)
            assert np.array_equal(driver.read(x, [64]), expected(X * k))
            driver.give(values)
            driver.replay(graphs[0], stream)
            assert np.array_equal(driver.read(y, [64]), expected(expected(X * k)))
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, platform, test)


def test_memory_that_a_graph_uses_stays_when_a_later_run_needs_more(
    fakes: Fakes, linked: Linker
) -> None:
    path = linked("in_place", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        stream, total = driver.stream(), driver.array(np.zeros(1, np.float32))
        # 4 bytes off an alignment of 16, so that the array is copied to memory of the instance and
        # back
        buffers = {n: driver.array(np.ones(n + 1, np.float32)) for n in (8, 800)}

        def run(n: int) -> None:
            x = on_device(driver, buffers[n] + 4, [n])
            artifact.run([x], [x, on_device(driver, total, [1])], stream)

        run(8)
        with driver.recording(stream) as graphs:
            run(8)
        with driver.recording(stream), pytest.raises(RuntimeError, match="run it once with such"):
            run(800)
        run(800)
        driver.settle(stream)
        assert np.array_equal(driver.read(buffers[8], [9]), [1, *[2.0] * 8])
        for value in (4.0, 8.0):
            driver.replay(graphs[0], stream)
            assert np.array_equal(driver.read(buffers[8], [9]), [1, *[value] * 8])
        artifact.close()
        for address in (*buffers.values(), total):
            driver.give(address)

    check(fakes, Platform.CUDA, test)


def test_a_first_run_that_needs_an_arena_is_refused_and_does_not_hurt(
    fakes: Fakes, linked: Linker
) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y, stream = driver.array(X), driver.array(X), driver.stream()
        tensors = [on_device(driver, x, [64])], [on_device(driver, y, [64])]
        driver.log()
        pattern = "records the run of model 'mini' in a graph, but it needs more memory"
        with driver.recording(stream), pytest.raises(RuntimeError, match=pattern):
            artifact.run(*tensors, stream)
        assert driver.names() == ["cuStreamIsCapturing"]
        artifact.run(*tensors, stream)
        driver.settle(stream)
        assert np.array_equal(driver.read(y, [64]), expected(X))
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("growing", "an array gets its size while it runs"),
        ("branching", "it reads data of the device to decide what runs"),
        ("sorting", "a function of it runs on the host"),
    ],
)
def test_runs_that_depend_on_data_cannot_be_recorded(
    fakes: Fakes, linked: Linker, name: str, why: str
) -> None:
    path = linked(name, Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y, stream = driver.array(X), driver.array(X), driver.stream()
        outputs = [on_device(driver, y, [1])]
        if name == "sorting":
            indices = driver.array(X)
            described = on_device(driver, indices, [3])
            described.dtype.code, described.dtype.bits = 0, 64
            outputs = [on_device(driver, y, [3]), described]
        size = 3 if name == "sorting" else 1
        with driver.recording(stream), pytest.raises(RuntimeError, match=why):
            artifact.run([on_device(driver, x, [size])], outputs, stream)
        driver.settle(stream)
        artifact.close()
        for address in (x, y, *([indices] if name == "sorting" else [])):
            driver.give(address)

    check(fakes, Platform.CUDA, test)


def test_arrays_of_the_host_cannot_be_recorded(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        x, y, stream = driver.array(X), driver.array(X), driver.stream()
        there = on_device(driver, x, [64]), on_device(driver, y, [64])
        artifact.run([there[0]], [there[1]], stream)
        out = np.zeros(64, np.float32)
        with driver.recording(stream), pytest.raises(RuntimeError, match="an input is in the host"):
            artifact.run([on_host(X)], [there[1]], stream)
        with driver.recording(stream), pytest.raises(RuntimeError, match="an output is in the hos"):
            artifact.run([there[0]], [on_host(out)], stream)
        artifact.run([on_host(X)], [on_host(out)], stream)
        assert np.array_equal(out, expected(X))
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, Platform.CUDA, test)
