"""GPU errors name the failing call and the reason, leak nothing, and leave the next run intact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import BinaryKind, GpuImages, Platform
from tcc.runtime import load
from tcc.target import GPUS

from tests.lib.fake_gpu import gpu_programs
from tests.lib.fake_gpu.fakes import Artifact, Driver, Fakes, check, in_child, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker

X = np.linspace(-1, 1, 20, dtype=np.float32)
EXPECTED = np.maximum(X, 0) + WEIGHTS[:20]

OPENING = {
    "cuInit": "the CUDA driver does not start",
    "cuDeviceGetCount": "GPUs cannot be counted",
    "cuDeviceGet": "GPU 0 cannot be used",
    "cuDeviceGetName": "GPU 0 has no name",
    "cuDeviceGetAttribute": "Fake GPU does not describe itself",
    "cuDevicePrimaryCtxRetain": "Fake GPU cannot be opened",
    "cuCtxPushCurrent_v2": "Fake GPU cannot be used",
    "cuMemGetInfo_v2": "Fake GPU does not tell its free memory",
    "cuModuleLoadDataEx": r"the code of kernel 'relu' \(sm_90\) cannot be loaded on Fake GPU",
    "cuModuleGetFunction": "kernel 'relu' is not in its code",
    "cuFuncSetAttribute": "kernel 'add' does not get its 65536 bytes of shared memory",
    "cuMemAlloc_v2": "no device memory for 256 bytes of weights",
    "cuMemcpyHtoDAsync_v2": "the weights cannot be copied to Fake GPU",
    "cuStreamSynchronize": "the weights cannot be copied to Fake GPU",
    "cuStreamCreate": "no stream on Fake GPU",
    "cuEventCreate": "no event on Fake GPU",
    "cuMemHostAlloc": "no pinned memory for Fake GPU",
}
RUNNING = {
    "cuCtxPushCurrent_v2": "Fake GPU cannot be used",
    "cuMemcpyHtoDAsync_v2": "input 'x' cannot be copied to the device",
    "cuMemAlloc_v2": "no device memory for 512 bytes of an input",
    "cuLaunchKernel": "kernel 'relu' cannot be started",
    "cuMemcpyDtoHAsync_v2": "output 'y' cannot be copied to the host",
    "cuStreamSynchronize": r"model 'mini' failed on Fake GPU \(TCC_SYNC=1 tells in which kernel\)",
}


@pytest.mark.parametrize("name", OPENING)
def test_every_call_of_opening(fakes: Fakes, linked: Linker, name: str) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        driver.fail(name, 1, 999)
        pattern = rf"{OPENING[name]}.*: something failed \(CUDA error 999, ERROR_FAKE\)"
        with pytest.raises(RuntimeError, match=pattern):
            Artifact(path)
        assert not any(driver.live().values()), driver.live()
        artifact, y = Artifact(path), np.empty(20, np.float32)
        artifact.run([on_host(X)], [on_host(y)])
        assert np.array_equal(y, EXPECTED)
        artifact.close()

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize("name", RUNNING)
def test_every_call_of_a_run(fakes: Fakes, linked: Linker, name: str) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact, y = Artifact(path), np.empty(20, np.float32)
        driver.fail(name, 1, 999)
        with pytest.raises(RuntimeError, match=RUNNING[name]):
            artifact.run([on_host(X)], [on_host(y)])
        # started work is finished before the caller may free its arrays
        assert "Push" in name or driver.names()[-1] == "cuStreamSynchronize"
        for _ in range(3):
            y[:] = 0
            artifact.run([on_host(X)], [on_host(y)])
            assert np.array_equal(y, EXPECTED)
        artifact.close()

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize("name", ["cuStreamIsCapturing", "cuStreamWaitEvent"])
def test_a_run_that_did_not_begin_waits_for_the_one_before(
    fakes: Fakes, linked: Linker, name: str
) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact, streams = Artifact(path), (driver.stream(), driver.stream())
        x, y = driver.array(X), driver.array(np.zeros(20, np.float32))
        arrays = [on_device(driver, x, [20])], [on_device(driver, y, [20])]
        artifact.run(*arrays, streams[0])
        assert not driver.read(y, [20]).any()  # it is queued
        driver.fail(name, 1, 999)
        with pytest.raises(RuntimeError, match="error 999"):
            artifact.run(*arrays, streams[1])
        # it is finished, else the next run would not wait for it
        assert np.array_equal(driver.read(y, [20]), EXPECTED)
        artifact.close()
        driver.give(x)
        driver.give(y)

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("cuMemAllocAsync", "no device memory for an array of 512 bytes; Fake GPU has"),
        ("cuMemcpyDtoHAsync_v2", "8 bytes cannot be read from the device"),
        ("cuMemcpyDtoDAsync_v2", "4 bytes cannot be copied on the device"),
    ],
)
def test_every_call_of_dynamic_sizes(fakes: Fakes, linked: Linker, name: str, pattern: str) -> None:
    path = linked("growing", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        driver.fail(name, 1, 2)
        with pytest.raises(RuntimeError, match=rf"{pattern}.*: out of memory \(CUDA error 2"):
            module(np.ones(1, np.float32))
        assert module(np.ones(1, np.float32)).tolist() == [1, 7]
        del module

    check(fakes, Platform.CUDA, test)


def test_with_sync_the_kernel_that_failed_has_a_name(
    fakes: Fakes, linked: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = linked("mlp", Platform.CUDA)
    monkeypatch.setenv("TCC_SYNC", "1")

    def test(driver: Driver) -> None:
        module = load(path)
        driver.fail("cuStreamSynchronize", 2, 700)
        with pytest.raises(RuntimeError, match="kernel 'add' failed: an illegal memory access"):
            module(X)
        assert np.array_equal(module(X), EXPECTED)
        del module

    check(fakes, Platform.CUDA, test)


def test_no_driver_is_named_with_what_to_install(linked: Linker) -> None:
    paths = linked("mlp", Platform.CUDA), linked("mlp", Platform.HIP)

    def test() -> None:
        with pytest.raises(RuntimeError, match=r"no CUDA driver was found \(libcuda.so.*NVIDIA"):
            load(paths[0])
        with pytest.raises(RuntimeError, match=r"no HIP driver was found \(libamdhip64.*ROCm 6"):
            load(paths[1])

    in_child(test)


def test_devices_that_do_not_suit(
    fakes: Fakes, linked: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, hip = linked("mlp", Platform.CUDA), linked("mlp", Platform.HIP)

    def refused(driver: Driver, path: Path, pattern: str) -> None:
        with pytest.raises(RuntimeError, match=pattern):
            load(path)
        assert not any(driver.live().values()), driver.live()

    def on_cuda(driver: Driver) -> None:
        driver.configure("sm_80")
        refused(driver, cuda, r"Fake GPU is a sm_80, .* compiled for sm_90: .* --target cuda:sm_80")
        driver.configure(devices=0)
        refused(driver, cuda, r"there is no GPU for CUDA here")
        driver.configure(shared=60000)
        refused(driver, cuda, r"kernel 'add' needs 65536 bytes of shared memory, .* has 60000")
        driver.configure(memory=200)
        refused(
            driver, cuda, r"'mini' needs 256 bytes .*\(weights 256, arena 0, state 0\).* 200 of"
        )
        driver.configure()
        monkeypatch.setenv("TCC_DEVICE", "2")
        refused(driver, cuda, r"TCC_DEVICE: expected 0 to 1, got '2'")

    def on_hip(driver: Driver) -> None:
        driver.configure("gfx90a:sramecc+")
        refused(driver, hip, r"is a gfx90a:sramecc.*, .* compiled for gfx942: .*rocm:gfx90a\n")
        for arch in ("gfx1101", "gfx1102", "gfx1103", "gfx1201"):
            driver.configure(arch)
            with pytest.raises(RuntimeError, match=r"--target (rocm:\w+)") as caught:
                load(hip)
            target = str(caught.value).split("--target ")[1].split()[0]
            assert target in GPUS  # the advice in the text works

    check(fakes, Platform.CUDA, on_cuda)
    check(fakes, Platform.HIP, on_hip)


@pytest.mark.parametrize("flags", [(), ("-DROCM5",)])
def test_hip_names_its_architecture_in_two_structs(
    fakes: Fakes, linked: Linker, flags: tuple[str, ...]
) -> None:
    path = linked("mlp", Platform.HIP)

    def test(driver: Driver) -> None:
        assert np.array_equal(load(path)(X), EXPECTED)
        names = driver.names()
        assert ("hipGetDeviceProperties" in names) == bool(flags)
        assert ("hipGetDevicePropertiesR0600" in names) != bool(flags)
        driver.configure("sm_90")  # neither place holds a name of an AMD GPU
        with pytest.raises(RuntimeError, match="describes devices in a way that is not known"):
            load(path)

    check(fakes, Platform.HIP, test, *flags)


def test_two_models_share_a_device_and_each_gives_back_its_own(
    fakes: Fakes, linked: Linker
) -> None:
    paths = linked("mlp", Platform.CUDA), linked("in_place", Platform.CUDA)

    def test(driver: Driver) -> None:
        first, second = (Artifact(path) for path in paths)
        live_with_one = {**driver.live()}
        out, total = np.empty(20, np.float32), np.empty(1, np.float32)
        for turn in range(1, 4):
            x_of_ones = np.ones(4, np.float32)
            second.run([on_host(x_of_ones)], [on_host(x_of_ones), on_host(total)])
            first.run([on_host(X)], [on_host(out)])
            assert np.array_equal(out, EXPECTED)
            assert total[0] == 2 * turn
        second.close()
        first.run([on_host(X)], [on_host(out)])
        assert np.array_equal(out, EXPECTED)
        live_after = driver.live()
        assert all(
            live_after[kind] < live_with_one[kind]
            for kind in ("modules", "streams", "events", "hosts")
        )
        first.close()

    check(fakes, Platform.CUDA, test)


def test_the_arena_of_large_sizes_is_refused_with_the_numbers(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        driver.configure(memory=1400)
        module = load(path)
        with pytest.raises(RuntimeError, match=r"512 bytes of (arena|an output); .* of 1400 free"):
            module(X)
        driver.configure()
        assert np.array_equal(module(X), EXPECTED)
        del module

    check(fakes, Platform.CUDA, test)


def test_arrays_of_other_devices_are_refused(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    def test(driver: Driver) -> None:
        artifact = Artifact(path)
        y = np.empty(20, np.float32)
        tensor = on_device(driver, driver.array(X), [20], ordinal=1)
        pattern = r"'x': expected an array in CPU memory or on CUDA device 0, .* type 2, id 1"
        with pytest.raises(RuntimeError, match=pattern):
            artifact.run([tensor], [on_host(y)])
        tensor.device.type, tensor.device.id = 10, 0
        with pytest.raises(RuntimeError, match="got DLPack device type 10"):
            artifact.run([tensor], [on_host(y)])
        artifact.close()
        driver.give(tensor.data)

    check(fakes, Platform.CUDA, test)


def test_functions_of_the_host_are_refused_unless_allowed(
    fakes: Fakes, linked: Linker, tmp_path: Path
) -> None:
    allowed, refused = linked("sorting", Platform.CUDA), tmp_path / "refused.so"
    images = gpu_programs.images(fakes.kernels, Platform.CUDA)
    gpu_programs.link(gpu_programs.sorting(), images, refused)

    def test(driver: Driver) -> None:
        with pytest.raises(RuntimeError, match=r"'top_k', which runs on the host.*--allow-host"):
            load(refused)
        module = load(allowed)
        values, indices = module(np.array([3, 9, 1, 7], np.float32))
        assert (values.tolist(), indices.tolist()) == ([9, 7, 3], [1, 3, 0])
        del module

    check(fakes, Platform.CUDA, test)


def test_kernels_of_other_parameters_than_the_program_gives(fakes: Fakes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.so"
    variant = gpu_programs.variant(fakes.kernels)
    first = replace(variant.kernels[0], params=gpu_programs.params(1, 1))
    kernels = (first, *variant.kernels[1:])
    images = GpuImages(Platform.CUDA, (replace(variant, kernels=kernels),))
    gpu_programs.link(gpu_programs.mlp(), images, path, [WEIGHTS])

    def test(_driver: Driver) -> None:
        with pytest.raises(RuntimeError, match=r"'relu' takes 1 arrays and 1 sizes, .* gives 2"):
            load(path)

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize(
    ("device", "chosen"),
    [("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_89", "sm_86"), ("sm_90", "sm_90a"),
     ("sm_100", "sm_80 ptx"), ("sm_75", None)],
)  # fmt: skip
def test_the_best_variant_is_chosen(
    fakes: Fakes, tmp_path: Path, device: str, chosen: str | None
) -> None:
    """The kernels of each variant lie in an image of another name, so that the log shows which
    image was loaded."""
    path = tmp_path / "many.so"
    variants = []
    for arch, form in (
        ("sm_80", BinaryKind.CUBIN), ("sm_86", BinaryKind.CUBIN),
        ("sm_90a", BinaryKind.CUBIN), ("sm_90", BinaryKind.CUBIN),
        ("sm_80", BinaryKind.PTX), ("sm_90a", BinaryKind.PTX),
    ):  # fmt: skip
        copy = tmp_path / f"{arch} {form.name.lower()}.so"
        copy.symlink_to(fakes.kernels)
        variants.append(gpu_programs.variant(copy, arch, form))
    images = GpuImages(Platform.CUDA, tuple(variants))
    manifest = gpu_programs.link(gpu_programs.mlp(), images, path, [WEIGHTS])
    listed = manifest["variants"][0]["gpu"]["images"]
    assert [v["arch"] for v in listed][:3] == ["sm_80", "sm_86", "sm_90a"]

    def test(driver: Driver) -> None:
        driver.configure(device)
        if chosen is None:
            with pytest.raises(RuntimeError, match=r"sm_86, sm_90a, sm_90, sm_80 \(PTX\)"):
                load(path)
            return
        module = load(path)
        name = chosen if "ptx" in chosen else f"{chosen} cubin"
        assert driver.loaded() == [str(tmp_path / f"{name}.so")]
        assert np.array_equal(module(X), EXPECTED)
        del module

    check(fakes, Platform.CUDA, test)
