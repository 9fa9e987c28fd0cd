"""Python wrappers of the fake drivers, and the artifacts' C interface over them, without the
loader."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.runtime import abi

HERE = Path(__file__).parent
FLAGS = ("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
SONAMES = {Platform.CUDA: "libcuda.so.1", Platform.HIP: "libamdhip64.so.6"}
DEVICE_TYPES = {Platform.CUDA: 2, Platform.HIP: 10}


class Fakes:
    """The fake drivers and the library with their kernels, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.kernels = folder / "kernels.so"
        self._folder = folder
        _compile(HERE / "fake_kernels.c", self.kernels)

    def driver(self, platform: Platform, *flags: str) -> Path:
        """Returns the driver's library, and builds it at the first call."""
        path = self._folder / f"{platform.name}{''.join(flags)}.so"
        if not path.exists():
            soname = f"-Wl,-soname,{SONAMES[platform]}"
            extra = ("-DHIP",) if platform is Platform.HIP else ()
            _compile(HERE / "fake_driver.c", path, "-fvisibility=hidden", soname, *extra, *flags)
        return path


def _compile(source: Path, target: Path, *flags: str) -> None:
    subprocess.run((*FLAGS, *flags, str(source), "-o", str(target), "-ldl"), check=True)


def in_child(test: Callable[[], None], seconds: float = 300) -> None:
    """Runs `test` in a forked process, so that other tests do not see its fake driver.

    A signal ends a child that takes longer than `seconds`, because a lock that another thread of
    this process held stays locked in the child. The child prints its threads' stacks first.
    """
    in_children([test], seconds)


def in_children(tests: Sequence[Callable[[], None]], seconds: float = 300) -> None:
    """Runs all tests at once, each in its own forked process; see `in_child`."""
    children = [_forked(test, seconds) for test in tests]
    ended = []
    for child, read in children:
        with os.fdopen(read) as pipe:
            text = pipe.read()
        ended.append((os.waitpid(child, 0)[1], text))
    bad = [
        text if text and os.WIFEXITED(waited) else f"{text}the child ended with status {waited}"
        for waited, text in ended
        if waited
    ]
    assert not bad, "\n".join(bad)


def _forked(test: Callable[[], None], seconds: float) -> tuple[int, int]:
    """Returns the child's process id, and the file descriptor of its traceback."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=write, chain=True)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            os.close(read)
            gc.freeze()  # A garbage collection would copy all memory of the parent process.
            test()
            status = 0
        except BaseException:
            with os.fdopen(write, "w") as pipe:
                pipe.write(traceback.format_exc())
        finally:
            os._exit(status)
    os.close(write)
    return child, read


class Driver:
    """A fake driver in this process; artifacts that load later use it."""

    def __init__(self, path: Path, platform: Platform) -> None:
        self.platform = platform
        self._library = ctypes.CDLL(str(path))
        library = self._library
        library.fake_log.restype = ctypes.c_char_p
        library.fake_array.restype = ctypes.c_uint64
        library.fake_array.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.fake_read.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)
        library.fake_give.argtypes = (ctypes.c_uint64,)
        library.fake_stream.restype = ctypes.c_void_p
        library.fake_settle.argtypes = (ctypes.c_void_p,)
        library.fake_begin.argtypes = library.fake_end.argtypes = (ctypes.c_void_p,)
        library.fake_end.restype = ctypes.c_void_p
        library.fake_replay.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        library.fake_forget.argtypes = (ctypes.c_void_p,)
        library.fake_max_allocated.restype = ctypes.c_size_t

    def configure(
        self,
        arch: str = "sm_90",
        memory: int = 1 << 30,
        shared: int = 232448,
        pools: bool = True,
        devices: int = 2,
    ) -> None:
        number = int(arch[3:]) if arch.startswith("sm_") else 0
        self._library.fake_device(
            number // 10, number % 10, arch.encode(), ctypes.c_size_t(memory), shared, pools,
            devices,
        )  # fmt: skip

    def starts(self, *, forks: bool = False, held_by: int = 0) -> None:
        """Makes the driver fork as it starts, or wait for a byte from the file descriptor
        `held_by`."""
        self._library.fake_start(forks, held_by)

    def log(self) -> list[str]:
        """Returns the calls since the last log as "name arguments", without calls on contexts and
        devices."""
        lines = self._library.fake_log().decode().splitlines()
        self._library.fake_clear()
        hidden = ("cuCtx", "hipSetDevice", "hipGetDevice ")
        return [line.strip() for line in lines if not line.startswith(hidden)]

    def has_begun(self, call: str) -> bool:
        """Returns true if a call is in the log, which stays; another thread may write it
        meanwhile."""
        return call in self._library.fake_log().decode().splitlines()

    def names(self) -> list[str]:
        return [line.split()[0] for line in self.log()]

    def loaded(self) -> list[str]:
        """Returns the libraries of the kernels loaded since the last log."""
        name = {Platform.CUDA: "cuModuleLoadDataEx", Platform.HIP: "hipModuleLoadDataEx"}[
            self.platform
        ]
        lines = (line.split(" ", 1) for line in self.log())
        return [line[1].removeprefix("FAKE:") for line in lines if line[0] == name]

    def fail(self, name: str, nth: int, error: int) -> None:
        self._library.fake_fail(name.encode(), nth, error)

    def live(self) -> dict[str, int]:
        text = ctypes.create_string_buffer(512)
        self._library.fake_live(text, 512)
        return {k: int(v) for k, v in (word.split("=") for word in text.value.decode().split())}

    def array(self, array: np.ndarray[Any, Any]) -> int:
        """Copies an array to the device and returns the address."""
        return int(self._library.fake_array(array.ctypes.data, array.nbytes))

    def read(self, address: int, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Returns the array at an address now, regardless of queued work."""
        array = np.empty(shape, np.float32)
        assert self._library.fake_read(address, array.ctypes.data, array.nbytes) == 0
        return array

    def give(self, address: int) -> None:
        assert self._library.fake_give(address) == 0

    def stream(self) -> int:
        return int(self._library.fake_stream())

    def settle(self, stream: int) -> None:
        assert self._library.fake_settle(stream) == 0

    @contextmanager
    def recording(self, stream: int) -> Iterator[list[int]]:
        """Records the calls on `stream`; the yielded list holds the graph afterwards."""
        graph: list[int] = []
        assert self._library.fake_begin(stream) == 0
        try:
            yield graph
        finally:
            graph.append(int(self._library.fake_end(stream)))

    def replay(self, graph: int, stream: int) -> None:
        assert self._library.fake_replay(graph, stream) == 0
        self.settle(stream)

    def forget(self, graph: int) -> None:
        """Destroys a caller's graph."""
        self._library.fake_forget(graph)

    def max_allocated(self) -> int:
        return int(self._library.fake_max_allocated())


class Artifact:
    """An instance of an artifact through its C interface; RuntimeError carries the C error
    message."""

    def __init__(self, path: Path, flags: int = 0, comm: ctypes.c_void_p | None = None) -> None:
        entry = ctypes.CDLL(str(path)).tcc_artifact_api
        entry.restype = ctypes.POINTER(abi.Api)
        self.api = entry().contents
        self._model, self._instance = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self.api.model_get(ctypes.byref(self._model)))
        pointer = ctypes.byref(self._instance)
        status = self.api.instance_create_on(self._model, flags, comm, pointer)
        if status:
            message = self.api.last_error().decode()
            self.api.model_release(self._model)
            raise RuntimeError(message)

    def run(
        self,
        inputs: Sequence[abi.CTensor],
        outputs: Sequence[abi.CTensor],
        stream: int | None = None,
        allocator: abi.Allocator | None = None,
    ) -> None:
        input_tensors = (abi.CTensor * max(1, len(inputs)))(*inputs)
        output_tensors = (abi.CTensor * max(1, len(outputs)))(*outputs)
        self._check(
            self.api.run(
                self._instance, input_tensors, len(inputs), output_tensors, len(outputs),
                ctypes.byref(allocator) if allocator else None, stream,
            )
        )  # fmt: skip

    def statistics(self) -> abi.CStatistics:
        out = abi.CStatistics()
        self._check(self.api.statistics(self._model, self._instance, ctypes.byref(out)))
        return out

    def close(self) -> None:
        self.api.instance_destroy(self._instance)
        self.api.model_release(self._model)

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.api.last_error().decode())


def on_host(array: np.ndarray[Any, Any]) -> abi.CTensor:
    """Returns the descriptor of an f32 array in this process."""
    return abi.make_tensor(array.ctypes.data, (2, 32), array.shape, None)


def on_device(driver: Driver, address: int, shape: Sequence[int], ordinal: int = 0) -> abi.CTensor:
    """Returns the descriptor of an f32 array on the device."""
    tensor = abi.make_tensor(address, (2, 32), tuple(shape), None)
    tensor.device = abi.Device(DEVICE_TYPES[driver.platform], ordinal)
    return tensor


ARCHS = {Platform.CUDA: "sm_90", Platform.HIP: "gfx942:sramecc+:xnack-"}


def check(fakes: Fakes, platform: Platform, test: Callable[[Driver], None], *flags: str) -> None:
    """Runs `test` with a fake driver in a child; fails unless all objects are destroyed at the
    end."""
    path = fakes.driver(platform, *flags)

    def child() -> None:
        driver = Driver(path, platform)
        driver.configure(ARCHS[platform])
        test(driver)
        gc.collect()
        assert not any(driver.live().values()), driver.live()

    in_child(child)
