"""A rank's models use the GPU of TCC_DEVICE, else of the thread, else of the rank's number on its
host."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import load

from tests.lib.fake_gpu.fakes import ARCHS, Driver, Fakes, check
from tests.lib.fake_gpu.gpu_programs import Linker, images, link

from .test_gpu_collectives import summing

TCC = {"TCC_RANK": "3", "TCC_SIZE": "4", "TCC_LOCAL_RANK": "3", "TCC_LOCAL_SIZE": "4"}
TORCHRUN = {
    "RANK": "9", "WORLD_SIZE": "12", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1",
         "SLURM_STEP_ID": "0"}  # fmt: skip

# (variables, the number of visible GPUs, the GPU of the model)
CHOICES: tuple[tuple[dict[str, str], int, int], ...] = (
    ({}, 4, 0),
    (TCC, 4, 3),
    (TORCHRUN, 4, 1),
    (OPEN_MPI, 4, 2),
    (HYDRA, 4, 3),
    (SLURM, 4, 1),
    (SLURM | TORCHRUN | {"LOCAL_RANK": "2"}, 4, 2),  # launchers nest
    ({"TCC_RANK": "3", "TCC_SIZE": "4"}, 4, 0),  # nothing tells the host's ranks apart
    (TCC | {"TCC_DEVICE": "1"}, 4, 1),
    (TCC | {"TCC_DEVICE": ""}, 4, 3),
    (TCC | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 4, 3),
    (TCC | {"CUDA_VISIBLE_DEVICES": "3"}, 1, 0),  # its launcher has selected it
    (TCC, 2, 1),  # models without collectives share GPUs
)


def chosen(driver: Driver, path: Path, variables: dict[str, str]) -> int:
    """Returns the GPU on which a model is loaded in an environment with these variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    driver.log()
    try:
        load(path)
    finally:
        os.environ.clear()
        os.environ.update(before)
    (call,) = [line for line in driver.log() if line.split()[0].endswith("DeviceGet")]
    return int(call.split()[1])


@pytest.mark.parametrize("platform", Platform)
def test_the_number_of_the_rank_on_its_host_chooses(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        for variables, devices, expected in CHOICES:
            driver.configure(ARCHS[platform], devices=devices)
            assert chosen(driver, path, variables) == expected, (variables, devices)
        driver.configure(ARCHS[platform], devices=1)
        variable = "HIP_VISIBLE_DEVICES" if platform is Platform.HIP else "CUDA_VISIBLE_DEVICES"
        assert chosen(driver, path, TCC | {variable: "2"}) == 0

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", Platform)
def test_the_threads_device_goes_before_the_rank(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)

    def test(driver: Driver) -> None:
        library = ctypes.CDLL(str(fakes.driver(platform)))
        driver.configure(ARCHS[platform], devices=4)
        if platform is Platform.HIP:
            library.hipSetDevice(1)
        else:
            context = ctypes.c_void_p()
            library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 41)
            library.cuCtxPushCurrent_v2(context)
        assert chosen(driver, path, TCC) == 1
        if platform is Platform.CUDA:
            library.cuCtxPopCurrent_v2(ctypes.byref(context))
            library.cuDevicePrimaryCtxRelease_v2(41)

    check(fakes, platform, test)


@pytest.mark.parametrize("platform", Platform)
def test_ranks_without_a_gpu_of_their_own_are_refused(
    fakes: Fakes, tmp_path: Path, platform: Platform
) -> None:
    path = tmp_path / "summing.so"
    link(summing(apart=True), images(fakes.kernels, platform), path)
    cases = (
        (TCC, 2, r"needs a GPU for each rank, but 4 ranks run on this host, and \w+ has 2 here"),
        # every rank of the host refuses, also a rank that could have a GPU, so that no rank waits
        # for others
        (TCC | {"TCC_RANK": "0", "TCC_LOCAL_RANK": "0"}, 2, r"4 ranks run on this host"),
        (SLURM, 1, r"2 ranks run on this host, and \w+ has 1 here: .* by TCC_DEVICE"),
        (TCC | OPEN_MPI, 4, r"TCC_RANK=3 and OMPI_COMM_WORLD_RANK=2 contradict"),
    )

    def test(driver: Driver) -> None:
        for variables, devices, why in cases:
            driver.configure(ARCHS[platform], devices=devices)
            with pytest.raises(RuntimeError, match=why):
                chosen(driver, path, variables)
        driver.configure(ARCHS[platform], devices=2)
        assert chosen(driver, path, TCC | {"TCC_DEVICE": "1"}) == 1
        driver.configure(ARCHS[platform], devices=4)
        assert chosen(driver, path, TCC) == 3

    check(fakes, platform, test)
