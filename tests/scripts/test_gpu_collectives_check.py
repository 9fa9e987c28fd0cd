"""`scripts/gpu_check` judges collectives correctly, over a stand-in for NCCL; the tests need no
GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import comm as comms

from tests.lib.fake_gpu.fakes import Driver, in_child
from tests.runtime.comm.library import build_nccl

torch = pytest.importorskip("torch", reason="the checks run beside torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from gpu import collectives
from gpu.build import add_collectives

pytestmark = pytest.mark.xdist_group("gpu-check")


class FakeMemory:
    """Memory of the stand-in driver."""

    device_type = 2

    def __init__(self, path: Path) -> None:
        self._driver = Driver(path, Platform.CUDA)
        self.stream = self._driver.stream()

    def place(self, array: collectives.Array) -> int:
        return self._driver.array(array)

    def read(self, address: int, like: collectives.Array) -> collectives.Array:
        words = self._driver.read(address, [like.nbytes // 4])
        return np.frombuffer(words.tobytes(), like.dtype)

    def wait(self) -> int:
        self._driver.settle(self.stream)
        return 0


@pytest.fixture(scope="module")
def variables(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    environment = build_nccl(tmp_path_factory.mktemp("nccl"), "nccl")
    return environment | {"TCC_COMM_LIBRARY": str(comm_library)}


def on_one_rank(variables: dict[str, str], test: Callable[[comms.Comm, FakeMemory], None]) -> None:
    def child() -> None:
        os.environ.update(variables)
        memory = FakeMemory(Path(variables["FAKE_DRIVER"]))
        with comms.open(0, 1, rendezvous=f"check-{os.getpid()}") as comm:
            test(comm, memory)

    in_child(child)


def test_every_operation_is_checked(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "COUNT", 1028)  # whole words of every type

    def test(comm: comms.Comm, memory: FakeMemory) -> None:
        # 8 types and 5 reductions, without the averages of four integer types
        assert collectives.check_operations(comm, memory) == 2 * (8 * 5 - 4) + 5 * 8

    on_one_rank(variables, test)


def test_an_operation_that_is_wrong_is_seen(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "COUNT", 1028)

    def test(comm: comms.Comm, memory: FakeMemory) -> None:
        memory.wait = lambda: 0  # type: ignore[method-assign]  # nothing is done then
        with pytest.raises(AssertionError, match="other elements than were given"):
            collectives.check_operations(comm, memory)

    on_one_rank(variables, test)


def test_a_missing_library_is_no_failure(variables: dict[str, str]) -> None:
    def test(comm: comms.Comm, memory: FakeMemory) -> None:
        with pytest.raises(LookupError, match="TCC_NCCL_LIBRARY: /no/libnccl"):
            collectives.check_operations(comm, memory)

    on_one_rank(variables | {"TCC_NCCL_LIBRARY": "/no/libnccl.so.2"}, test)


def test_the_model_and_the_library_are_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    row = add_collectives(tmp_path, ["cpu"])
    library = tmp_path / "tcc" / "runtime" / "lib" / "libtcc_comm.so"

    def test() -> None:
        os.environ["TCC_COMM_LIBRARY"] = str(library)
        path = tmp_path / "artifacts" / f"{row['name']}.so"
        with comms.open(0, 1, rendezvous=f"check-{os.getpid()}") as comm:
            collectives.check_model(path, comm, lambda module, x: module(x))
            with pytest.raises(AssertionError, match="run 0 of the model is wrong"):
                collectives.check_model(path, comm, lambda module, x: module(x) + 1)

    in_child(test)
