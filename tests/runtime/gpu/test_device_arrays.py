"""Arrays on a device are used in place through DLPack, and results stay on the device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import abi, load
from tcc.runtime.devices import view_of_device

from tests.lib.fake_gpu.fakes import ARCHS, DEVICE_TYPES, Driver, Fakes, check, in_child
from tests.lib.fake_gpu.gpu_programs import WEIGHTS, Linker

new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


class Managed(ctypes.Structure):
    """The struct DLManagedTensor."""

    _fields_ = (
        ("tensor", abi.CTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class DeviceArray:
    """An f32 array of the fake device with DLPack's protocol and a namespace, like CuPy's."""

    asked: tuple[Any, ...] = ()

    def __init__(self, driver: Driver, values: np.ndarray[Any, Any]) -> None:
        self._driver, self.shape, self.device = driver, values.shape, "fake:0"
        self.address = driver.array(values)
        self._tensor = abi.make_tensor(self.address, (2, 32), values.shape, None)
        self._tensor.device = abi.Device(DEVICE_TYPES[driver.platform], 0)
        self._managed = Managed(self._tensor, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DEVICE_TYPES[self._driver.platform], 0

    def __dlpack__(self, **options: Any) -> Any:
        self.asked = tuple(options.items())
        return new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __array_namespace__(self) -> Any:
        def empty(shape: tuple[int, ...], dtype: Any, device: str) -> DeviceArray:
            assert (dtype, device) == (np.float32, "fake:0")
            return DeviceArray(self._driver, np.zeros(shape, np.float32))

        return SimpleNamespace(empty=empty, float32=np.float32)

    def read(self) -> np.ndarray[Any, Any]:
        return self._driver.read(self.address, self.shape)

    def __del__(self) -> None:
        self._driver.give(self.address)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_device_arrays_go_in_and_out_without_copies(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path, growing = linked("mlp", platform), linked("growing", platform)

    def test(driver: Driver) -> None:
        module = load(path)
        values = np.linspace(-1, 1, 20, dtype=np.float32)
        x = DeviceArray(driver, values)
        driver.log()
        y = module(x)
        assert isinstance(y, DeviceArray)
        assert x.asked == (("stream", 1 if platform is Platform.CUDA else 0),)
        assert np.array_equal(y.read(), np.maximum(values, 0) + WEIGHTS[:20])
        assert not any("memcpy" in line.lower() for line in driver.log())
        sizes = load(growing)
        grown = sizes(DeviceArray(driver, np.array([3], np.float32)))
        assert grown.read().tolist() == [3] * 3 + [7] * 3
        del module, sizes

    check(fakes, platform, test)


def test_in_place_on_the_device(fakes: Fakes, linked: Linker) -> None:
    path = linked("in_place", Platform.CUDA)

    def test(driver: Driver) -> None:
        module = load(path)
        x = DeviceArray(driver, np.ones(5, np.float32))
        updated, total = module(x)
        assert updated is x
        assert x.read().tolist() == [2] * 5
        assert total.read().tolist() == [2]
        del module

    check(fakes, Platform.CUDA, test)


def test_arrays_that_cannot_be_made_are_named(fakes: Fakes, linked: Linker) -> None:
    path = linked("mlp", Platform.CUDA)

    class Bare:
        """An object with DLPack's protocol and nothing else."""

        def __init__(self, inner: DeviceArray) -> None:
            self.__dlpack__, self.__dlpack_device__ = inner.__dlpack__, inner.__dlpack_device__

    def test(driver: Driver) -> None:
        module = load(path)
        inner = DeviceArray(driver, np.ones(5, np.float32))
        with pytest.raises(RuntimeError, match="Bare has no array namespace"):
            module(Bare(inner))
        del module

    check(fakes, Platform.CUDA, test)


@pytest.mark.parametrize("platform", tuple(Platform))
def test_tvm_ffi_gives_results_on_the_device(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)
    driver_path = fakes.driver(platform)

    def test() -> None:
        driver = Driver(driver_path, platform)
        driver.configure(ARCHS[platform])
        main = tvm_ffi.load_module(str(path))["main"]
        values = np.linspace(-1, 1, 9, dtype=np.float32)
        x = DeviceArray(driver, values)
        y = main(tvm_ffi.from_dlpack(x))
        expected = np.maximum(values, 0) + WEIGHTS[:9]
        assert np.array_equal(driver.read(view_of_device(y).tensor.data, [9]), expected)
        before = driver.live()["arrays"]
        del y
        assert driver.live()["arrays"] == before - 1

    in_child(test)  # the model stays open, so some allocations stay


@pytest.mark.parametrize("platform", tuple(Platform))
def test_tvm_ffi_runs_on_the_callers_stream(
    fakes: Fakes, linked: Linker, platform: Platform
) -> None:
    path = linked("mlp", platform)
    driver_path = fakes.driver(platform)

    def test() -> None:
        driver = Driver(driver_path, platform)
        driver.configure(ARCHS[platform])
        module = tvm_ffi.load_module(str(path))
        values = np.linspace(-1, 1, 9, dtype=np.float32)
        x, y = DeviceArray(driver, values), DeviceArray(driver, np.zeros_like(values))
        arrays = tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y)
        device = tvm_ffi.device("cuda" if platform is Platform.CUDA else "rocm", 0)
        driver.log()
        module["main"](arrays[0])
        streams_of_launches = {
            call.partition("stream=")[2].split()[0] for call in driver.log() if "Launch" in call
        }
        stream = driver.stream()
        with tvm_ffi.use_raw_stream(device, stream):
            module["run_into"](*arrays)
            result = module["main"](arrays[0])
        used = {
            call.partition("stream=")[2].split()[0] for call in driver.log() if "Launch" in call
        }
        assert used
        assert not used & streams_of_launches
        driver.settle(stream)
        expected = np.maximum(values, 0) + WEIGHTS[:9]
        assert np.array_equal(y.read(), expected)
        assert np.array_equal(driver.read(view_of_device(result).tensor.data, [9]), expected)

    in_child(test)
