"""Processes may fork while a driver starts, and drivers fork themselves, without a deadlock."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform

from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, in_child, on_host
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker
from tests.processes import end_after

PLATFORMS = tuple(Platform)
SECONDS = 30  # then a signal ends the process, and the test fails


def runs(path: Path) -> None:
    artifact = Artifact(path)
    x, y = np.linspace(-1, 1, 20, dtype=np.float32), np.empty(20, np.float32)
    artifact.run([on_host(x)], [on_host(y)])
    assert np.array_equal(y, np.maximum(x, 0) + WEIGHTS[:20])
    artifact.close()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_driver_that_forks_as_it_starts(fakes: Fakes, linked: Linker, platform: Platform) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        end_after(SECONDS)
        driver.starts(forks=True)
        runs(path)

    check(fakes, platform, test)


def test_a_child_that_waits_for_ever_fails_its_test() -> None:
    with pytest.raises(AssertionError, match=f"ended with status {signal.SIGALRM:d}"):
        in_child(signal.pause, seconds=0.1)


def test_a_fork_while_another_thread_starts_the_driver(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        end_after(SECONDS)
        read, write = os.pipe()
        driver.starts(held_by=read)
        thread = threading.Thread(target=runs, args=(path,))
        thread.start()
        while not driver.has_begun("cuInit 0"):
            pass
        child = os.fork()
        if child == 0:
            end_after(SECONDS)
            driver.starts()
            runs(path)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.write(write, b".")
        thread.join()

    check(fakes, Platform.CUDA, test)


def test_models_wait_for_whoever_loads(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        end_after(SECONDS)
        read, write = os.pipe()
        driver.starts(held_by=read)
        threads = [threading.Thread(target=runs, args=(path,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        os.write(write, b".")
        for thread in threads:
            thread.join()
        assert sum(name == "cuInit" for name in driver.names()) == 1

    check(fakes, Platform.CUDA, test)
