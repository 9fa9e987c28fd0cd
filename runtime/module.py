"""Runs artifacts from Python: a thin layer over the C interface of tcc.h, through ctypes.

It takes NumPy, torch or any DLPack arrays, without copies if they are row-major in CPU memory, and
returns the same kind. It imports nothing else of tcc; the caller passes a function for errors.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any
from weakref import WeakSet

import numpy as np
from tcc.runtime import abi
from tcc.runtime.arrays import in_parts, kind_of, view_of
from tcc.runtime.assets import Assets
from tcc.runtime.calls import Outputs, Results, is_plain, result_of
from tcc.runtime.comm import Comm
from tcc.runtime.devices import HOST, Given, Maker, maker_like, stream_of
from tcc.runtime.ffi import FfiModule
from tcc.runtime.images import Image, foreign_machine, open_image, place
from tcc.runtime.module_text import ShownModule
from tcc.runtime.nested import CallForm, MismatchError, by_name
from tcc.runtime.ports import ModulePort, port_of, signature
from tcc.runtime.reports import RuntimeFailure, RuntimeTimeout, Statistics, Time
from tcc.runtime.sections import SIDE_SUFFIX
from tcc.runtime.soname import copy_file
from tcc.runtime.values import WrongTypeError, arrays_in, describe, finished, is_value
from tcc.runtime.watch import Limit, Watch, answers, limit_of


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    *,
    poison: bool = False,
    timed: bool = False,
    comm: Comm | None = None,
    error: Callable[..., Exception] = RuntimeFailure,
    late: Callable[..., Exception] = RuntimeTimeout,
) -> Module:
    """Loads the artifact at `path`, to run on `threads` threads.

    With `threads` None, the number is TCC_NUM_THREADS, or else the number of CPUs that this process
    may use. `poison` fills memory with NaN patterns before each use (for tests). `timed` measures
    the time of every kernel, see `Module.times`.

    A model with collectives runs on `comm`, else on the process's shared comm (`Comm.share`). A
    file with several plans is loaded for this process's rank of that comm, else as a launcher says,
    else for one rank. Ranks load a model with groups of ranks together. Raises `error` if the file
    cannot be loaded or needs CPU features that are missing. A late run raises `late`.
    """
    flags = (abi.POISON if poison else 0) | (abi.TIMES if timed else 0)
    return Module(Path(path), threads, flags, error, late, comm=comm)


class Module(ShownModule, FfiModule):
    """A loaded model; several threads may call its methods at once.

    `module(*arrays)` and `module(name=array)` return one array, or a tuple in the order of
    `outputs`. `run` takes and returns dictionaries. A program of torch takes arguments nested as in
    its export. An in-place output is the caller's own input array.

    Arrays must have the port's element type; a complex array is passed as real and imaginary parts.
    Numbers and lists are converted. If an input is on a GPU, the outputs are there too, of the same
    kind. With torch, the run is queued on torch's current stream; with other libraries, the outputs
    are ready when the call returns. Strings are arrays of `str` (any NumPy type of strings, or
    objects), sequences are lists, and an optional is its element or None.
    Element types that NumPy lacks (bfloat16, float8, int4, ...) are types of ml_dtypes if that is
    imported. Without it, floats are uint16 or uint8 with the bit patterns, and integers are int8 or
    uint8 with the values.

    A copy, deep or not, shares the model's code and weights and has memory for its own runs. A
    pickle holds the artifact's bytes; unpickling loads the file at the original path if that is
    still there. Modules with state of their own refuse both.

    A signal ends a run in the main thread with the exception of its handler (Ctrl-C:
    KeyboardInterrupt): on a CPU within 50 ms, on a GPU after the work that was started.
    """

    def __init__(
        self,
        path: Path,
        threads: int | None,
        flags: int,
        error: Callable[..., Exception],
        late: Callable[..., Exception],
        original: Module | None = None,
        comm: Comm | None = None,
    ) -> None:
        self._comm = comm
        self._original = original  # kept alive: its end may remove the file that this copy uses
        self._path, self._error, self._late, self._flags = path.absolute(), error, late, flags
        self._threads = -1 if threads is None else self._count(threads)
        self._idle: deque[int] = deque()  # no list, which would allocate memory at every append
        self._polls: dict[int, tuple[Any, Watch]] = {}
        self._lock = Lock()
        self._handle: int | None = None
        self._image: Image
        self._api: abi.Api
        self._image, self._api = (original._image, original._api) if original else self._open()
        handle = ctypes.c_void_p()
        begin = perf_counter()
        self._check(abi.get_model(self._api, comm and comm.handle, ctypes.byref(handle)))
        self._handle = handle.value
        size = ctypes.c_size_t()
        text = self._api.manifest(ctypes.byref(size))
        self.manifest: dict[str, Any] = json.loads(ctypes.string_at(text, size.value))
        self.assets: Mapping[str, bytes] = Assets(self._api, self.manifest, error, self._path)
        self._form = CallForm(self.manifest["call"]) if "call" in self.manifest else None
        api = self._api
        self.inputs = self._ports(api.input_count, api.input_port)
        self.outputs = self._ports(api.output_count, api.output_port)
        # The index, in the manifest, of the variant that runs on this machine.
        self.variant: int = api.model_variant(handle)
        self._input_index = {port.name: i for i, port in enumerate(self.inputs)}
        self._updated = frozenset(port.state for port in self.outputs if port.state >= 0)
        self._run_plain, memory = self._python_functions()
        self._results = Outputs([result_of(port) for port in self.outputs], memory)
        self._stateful = self._statistics(None).state_bytes > 0
        # The number of ranks that the model needs; 0: any, or its groups say; -1: no collectives.
        self.ranks: int = api.model_ranks(handle)
        self._alone = self._stateful or self.ranks >= 0  # a comm serves one run at a time
        self._plain = not self._alone and all(
            is_plain(port.dtype) for port in (*self.inputs, *self.outputs)
        )
        self._idle.append(self._create())  # a lack of memory is an error here, not in a run
        self._open_seconds = perf_counter() - begin
        _MODULES.add(self)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Runs the model; the docstring of the class says how."""
        if named or self._form:
            arrays = self._ordered(arrays, named)
        results = self._run(arrays)
        return results[0] if len(results) == 1 else results

    def _ordered(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            return self._in_order(by_name(self._form, [*self._input_index], arrays, named))
        except MismatchError as failure:
            raise self._error(
                "the arguments are not those of the model",
                where=str(self._path),
                why=str(failure),
                hint=str(self._form or signature(self.inputs, self.outputs)),
            ) from failure

    def run(
        self, inputs: Mapping[str, Any], *, seed: int | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs the model on arrays by input name; returns the outputs by name.

        Runs with equal seeds draw equal random numbers, on every device and with any number of
        threads. Without `seed`, the seed is TCC_SEED, else a new number for each run. Raises
        `error` if `seed` is no integer from 0 to 2**64 - 1.

        A run that takes more than `timeout` seconds ends (on a CPU within 50 ms) and raises `late`,
        an exception that is both a TimeoutError and a TccError. The module stays usable. The comm
        of a rank is then revoked, as after a failed run.
        """
        results = self._run(self._in_order(inputs), self._seed(seed), self._limit(timeout))
        return {port.name: result for port, result in zip(self.outputs, results, strict=True)}

    def statistics(self) -> Statistics:
        """Returns the memory and threads of the last run of an instance that is idle now."""
        with self._instance() as instance:
            return self._statistics(instance)

    def times(self) -> tuple[Time, ...]:
        """Returns how often and how long each step of the variant ran, in the order of the steps.

        The figures are of one idle instance. Raises `error` if it was loaded without `timed`.
        """
        first, count = ctypes.POINTER(abi.CTime)(), ctypes.c_int64()
        with self._instance() as instance:
            self._check(self._api.times(instance, ctypes.byref(first), ctypes.byref(count)))
            entries = (first[i] for i in range(count.value))
            return tuple(Time(t.count, t.nanoseconds * 1e-9) for t in entries)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copies the artifact to `path`, and the file of its weights if that is separate.

        The file name of `path` becomes the SONAME. Raises `error` if the copy fails, or if another
        file is at the artifact's path by now.
        """
        target = Path(path)
        with self._files(target) as files:
            for suffix, source in files.items():
                soname = "" if suffix else target.name
                copy_file(source, Path(f"{target}{suffix}"), soname)

    @contextmanager
    def _files(self, target: str | os.PathLike[str]) -> Iterator[dict[str, Path]]:
        """Yields {suffix: path}: "" for the artifact, and SIDE_SUFFIX for a separate weights file.

        If the `with` block fails to read or write, the `error` raised names the file or `target`.
        """
        source = self._image.path
        side = self.manifest["weights"]["place"] == "side file"
        try:
            if not self._image.is_at_path():
                raise self._error(
                    "the artifact cannot be copied",
                    where=str(source),
                    why="another file is at its path since it was loaded",
                )
            yield {suffix: Path(f"{source}{suffix}") for suffix in (SIDE_SUFFIX, "")[not side :]}
        except (OSError, ValueError) as failure:
            raise self._error(
                "the artifact cannot be copied",
                where=str(getattr(failure, "filename", None) or target),
                why=getattr(failure, "strerror", None) or str(failure),
            ) from failure

    def __copy__(self) -> Module:
        self._check_copyable()
        threads = None if self._threads < 0 else self._threads
        return Module(self._path, threads, self._flags, self._error, self._late, self, self._comm)

    def __deepcopy__(self, _memo: Any) -> Module:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_copyable()
        with self._files(self._path) as files:
            contents = {suffix: file.read_bytes() for suffix, file in files.items()}
        threads = None if self._threads < 0 else self._threads
        image = self._image
        made_with = threads, self._flags, self._error, self._late
        return _unpickled, (image.path, image.file, contents, *made_with)

    def _check_copyable(self) -> None:
        if self._stateful:
            raise self._error(
                "the module cannot be copied or pickled",
                where=str(self._path),
                why="it has state of its own, which lives in one module",
                hint="load the artifact again for a module whose state begins anew",
            )

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            for instance in self._idle:
                self._api.instance_destroy(instance)
            self._api.model_release(self._handle)
            self._handle = None

    # ---- loading --------------------------------------------------------------------------------

    def _count(self, threads: Any) -> int:
        """Returns the number of threads; raises `error` if C cannot hold it."""
        count = abi.as_number(threads, 1 << 31)
        if count is None:
            raise self._error(
                "that is no number of threads",
                where=str(self._path),
                why=f"threads is {threads!r}",
                hint="give one from 1 on; 0 and None are the default",
            )
        return count

    def _open(self) -> tuple[Image, abi.Api]:
        try:
            image = open_image(self._path)
            entry = image.library.tcc_artifact_api
        except (OSError, ValueError, AttributeError) as failure:
            foreign = foreign_machine(self._path)
            raise self._error(
                "the file cannot be loaded as a tcc artifact",
                where=str(self._path),
                why=foreign or str(failure),
                hint="compile the model for this machine: --target cpu"
                if foreign
                else "make one with: tcc compile MODEL.onnx",
            ) from failure
        entry.restype = ctypes.POINTER(abi.Api)
        api = abi.api_of(entry())
        if api is None:
            raise self._error(
                "the artifact has another C interface than this runtime",
                where=str(self._path),
                why=f"its functions are not those of version {abi.API_VERSION}, or fewer",
                hint="compile the model again",
            )
        return image, api

    def _python_functions(self) -> tuple[Callable[..., Any], Callable[[int], Any]]:
        try:
            return abi.python_functions(self._image.library)
        except (AttributeError, ValueError) as failure:
            raise self._error(
                "the artifact cannot be called from this Python",
                where=str(self._path),
                why="its calls were not built for the binary interfaces of Python "
                f"{sys.version.split()[0]} with NumPy {np.__version__}",
                hint="compile the model again with a tcc that supports these",
            ) from failure

    def _ports(self, count: Any, describe: Any) -> tuple[ModulePort, ...]:
        ports = []
        for i in range(count(self._handle)):
            port = abi.CPort()
            self._check(describe(self._handle, i, ctypes.byref(port)))
            try:
                ports.append(port_of(port))
            except ValueError as failure:
                raise self._damage(failure) from failure
        return tuple(ports)

    def _damage(self, failure: ValueError) -> Exception:
        """Returns the error for a value whose type differs from that of its port."""
        where, hint = str(self._path), "compile the model again"
        return self._error("the artifact is damaged", where=where, why=str(failure), hint=hint)

    def _check(self, status: int, hint: str = "") -> None:
        if status:
            message = self._api.last_error().decode(errors="replace")
            raise self._error(message, where=str(self._path), hint=hint)

    # ---- instances ------------------------------------------------------------------------------

    @contextmanager
    def _instance(self, limit: Limit | None = None) -> Iterator[int]:
        """Yields an instance for one run.

        A module with state or a comm has one instance, so its callers wait for one another.
        """
        if self._alone:
            lock = self._lock
            if not lock.acquire(timeout=-1 if limit is None else limit.left()):
                raise self._lateness(limit)
            try:
                if not self._idle:
                    self._idle.append(self._create())
                yield self._idle[0]
            finally:
                lock.release()
            return
        instance = self._take()
        try:
            yield instance
        finally:
            self._idle.append(instance)

    def _take(self) -> int:
        """Returns an idle instance, or else a new one (for modules without state or comm)."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._create()

    def _forked(self) -> None:
        """Replaces the lock in a forked child, where the thread that held it does not exist."""
        if self._lock.locked():
            self._lock = Lock()
            if self._alone:
                self._idle.clear()  # the run that holds this instance never ends in the child

    def _create(self) -> int:
        handle = ctypes.c_void_p()
        create, comm = self._api.instance_create_on, self._comm and self._comm.handle
        self._check(create(self._handle, self._flags, comm, ctypes.byref(handle)))
        instance: int = handle.value or 0
        if self._threads >= 0:
            status = self._api.instance_set_threads(instance, self._threads)
            if status:
                self._api.instance_destroy(instance)
                self._check(status)
        watch = Watch()
        polled = answers(watch)
        next(polled)
        self._polls[instance] = abi.POLL(polled.send), watch
        self._check(self._api.instance_set_poll(instance, self._polls[instance][0], None))
        return instance

    def _statistics(self, instance: int | None) -> Statistics:
        numbers = abi.CStatistics()
        self._check(self._api.statistics(self._handle, instance, ctypes.byref(numbers)))
        return Statistics(*(getattr(numbers, field) for field, _ in abi.CStatistics._fields_))

    # ---- running --------------------------------------------------------------------------------

    def _in_order(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        if not isinstance(named, Mapping):
            raise self._error(
                "run takes a mapping of arrays by input name",
                where=str(self._path),
                why=f"it was given an object of type {type(named).__name__}",
                hint="call the module itself with arrays in order: module(array)",
            )
        for name in named:
            if name not in self._input_index:
                raise self._error(
                    f"the model has no input '{name}'",
                    where=str(self._path),
                    hint=signature(self.inputs, self.outputs),
                )
        missing = [port.name for port in self.inputs if port.name not in named]
        if missing:
            raise self._error(
                f"inputs are missing: {', '.join(missing)}",
                where=str(self._path),
                hint=signature(self.inputs, self.outputs),
            )
        return tuple([named[port.name] for port in self.inputs])

    def _view(self, index: int, value: Any) -> Given:
        port = self.inputs[index]
        try:
            if is_value(port.dtype):
                return describe(value, port.dtype)
            return view_of(in_parts(value, port.shape), port.dtype, index in self._updated)
        except (TypeError, ValueError, OverflowError, BufferError) as failure:
            raise self._error(
                f"input '{port.name}' cannot be used as an array of {port.dtype}{port.text}",
                where=str(self._path),
                why=str(failure),
                hint=signature(self.inputs, self.outputs),
            ) from failure

    def _seed(self, seed: Any) -> int | None:
        """Returns the seed, or None without a seed; raises `error` if C cannot hold it."""
        number = abi.as_number(seed, 1 << 64)
        if seed is not None and number is None:
            raise self._error(
                "that is no seed",
                where=str(self._path),
                why=f"seed is {seed!r}",
                hint="give an integer from 0 to 2**64 - 1, or None for a new one in each run",
            )
        return number

    def _limit(self, timeout: Any) -> Limit | None:
        try:
            return limit_of(timeout)
        except (TypeError, ValueError) as failure:
            raise self._error(
                "that is no time for a run",
                where=str(self._path),
                why=f"timeout is {timeout!r}",
                hint="give a number of seconds above 0, or None for no limit",
            ) from failure

    def _lateness(self, limit: Limit | None) -> Exception:
        return self._late(
            f"the run took longer than {limit.seconds if limit else 0:g} seconds",
            where=str(self._path),
            hint="allow it more with `timeout`, or give it less to do",
        )

    def _run(
        self, values: tuple[Any, ...], seed: int | None = None, limit: Limit | None = None
    ) -> tuple[Any, ...]:
        if self._image.overwritten:
            raise self._error(
                "the artifact was overwritten while it was loaded",
                where=str(self._path),
                why="its weights are mapped from the file",
                hint="write another file and rename it, as Module.save does",
            )
        try:
            if self._plain and seed is None and limit is None:
                instance = self._take()
                try:
                    results: Any = self._run_plain(instance, values)
                    if type(results) is tuple:
                        return results
                    if results > 0:
                        self._raise(results, instance, None, None)
                finally:
                    self._idle.append(instance)
            return self._run_described(values, seed, limit)
        except MemoryError as failure:
            raise self._error(
                "there is not enough memory for the arrays of the run",
                where=str(self._path),
                why=str(failure) or "no more is granted to this process",
                hint="give inputs, or sizes in them, for which results fit",
            ) from failure

    def _run_described(
        self, values: tuple[Any, ...], seed: int | None, limit: Limit | None
    ) -> tuple[Any, ...]:
        """Returns the outputs for inputs of any kind."""
        values = values or self._in_order({})  # no values: raises an error that names the inputs
        if len(values) != len(self.inputs):
            raise self._error(
                f"expected {len(self.inputs)} inputs, got {len(values)}",
                where=str(self._path),
                hint=signature(self.inputs, self.outputs),
            )
        views = [self._view(i, value) for i, value in enumerate(values)]
        tensors = (abi.CTensor * max(1, len(views)))(*(item.tensor for item in views))
        pairs = zip(values, views, strict=True)
        device = next((v for v, item in pairs if item.tensor.device.type not in HOST), None)
        maker = None if device is None else self._maker(device)
        stream = None if device is None else stream_of(device)
        results = self._results.start(tensors, maker)
        allocator = results.allocator() if self._results.asks else None
        with self._instance(limit) as instance:
            watch = self._polls[instance][1]
            try:
                watch.limit = limit
                with abi.seeded(self._api, instance, seed):
                    status = self._api.run(
                        instance, tensors, len(values), results.tensors, len(self.outputs),
                        ctypes.byref(allocator) if allocator else None, stream,
                    )  # fmt: skip
            finally:
                watch.limit = None
            self._raise(status, instance, results, limit)
        results.unpack()
        kind = None if maker else self._kind_of(values)
        outputs = zip(results.arrays, self.outputs, strict=True)
        try:
            return tuple(
                [
                    values[port.state] if port.state >= 0 else finished(array, port.dtype, kind)
                    for array, port in outputs
                ]
            )
        except WrongTypeError as failure:
            raise self._damage(failure) from failure

    def _kind_of(self, values: Sequence[Any]) -> Callable[[Any, str], Any]:
        pairs = zip(values, self.inputs, strict=True)
        return kind_of([array for value, port in pairs for array in arrays_in(value, port.dtype)])

    def _maker(self, device: Any) -> Maker:
        try:
            return maker_like(device)
        except TypeError as failure:
            raise self._error(
                "results cannot be made on the device of the inputs",
                where=str(self._path),
                why=str(failure),
                hint="give all inputs in the host's memory",
            ) from failure

    def _raise(
        self, status: int, instance: int, results: Results | None, limit: Limit | None
    ) -> None:
        """Raises the error that ended the run, if there is one."""
        if results and results.failure is not None:
            raise results.failure
        watch = self._polls[instance][1]
        late, watch.late = watch.late, False
        if status == abi.CANCELLED and watch.raised:
            raise watch.raised.pop()
        if status == abi.CANCELLED and late:
            raise self._lateness(limit)
        if status == abi.CANCELLED and b"the caller ended" in self._api.last_error():
            raise KeyboardInterrupt
        if status and results and b"': the allocator " in self._api.last_error():
            # A signal handler raised before the callback's first line; ctypes dropped its error.
            raise KeyboardInterrupt
        refused = status == abi.INVALID_ARGUMENT
        self._check(status, signature(self.inputs, self.outputs) if refused else "")


def _unpickled(
    path: Path,
    file: Any,
    contents: Mapping[str, bytes],
    threads: int | None,
    flags: int,
    error: Callable[..., Exception],
    late: Callable[..., Exception],
) -> Module:
    try:
        artifact = place(path, file, contents)
    except OSError as failure:
        raise error(
            "the pickled artifact cannot be written",
            where=str(failure.filename),
            why=str(failure.strerror),
            hint="TMPDIR names a folder with room",
        ) from failure
    return Module(artifact, threads, flags, error, late)


_MODULES: WeakSet[Module] = WeakSet()


def _renew_locks() -> None:
    for module in _MODULES:
        module._forked()


os.register_at_fork(after_in_child=_renew_locks)
