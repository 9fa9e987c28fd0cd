"""Collectives between processes on NumPy arrays: tcc_comm.h in Python.

    comm = tcc.runtime.comm.open()      # the launcher says which rank this is
    total = comm.all_reduce(x)          # on every rank the sum of all ranks' x
    started = comm.start("all_gather", x)
    ...                                 # work that does not need the result
    rows = started.wait()

tcc_comm.h states what every operation guarantees.  Element types are f16, f32, f64, i8, u8, i32
and i64, and bfloat16 of ml_dtypes.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tcc.runtime.abi import DTYPE_CODES, CDType

LIBRARY = Path(__file__).parent / "lib" / "libtcc_comm.so"
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
# The operations of `Comm.start`, with their numbers in tcc_comm_kind.
KINDS = MappingProxyType(
    {"all_reduce": 1, "reduce_scatter": 2, "all_gather": 3, "all_to_all": 5, "broadcast": 7}
)
# The names of the values of tcc_status.
STATUSES = MappingProxyType(
    {
        1: "invalid argument", 2: "out of memory", 3: "unsupported", 7: "cancelled", 8: "timeout",
        9: "peer dead", 10: "mismatch", 11: "system",
    }
)  # fmt: skip

Array = NDArray[Any]

# Maps the names of NumPy's types to those in DTYPE_CODES.
_NAMES = MappingProxyType(
    {
        "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
        "int8": "i8", "uint8": "u8", "int32": "i32", "int64": "i64",
    }
)  # fmt: skip
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class CommError(RuntimeError):
    """An operation failed; `status` is the kind of failure, one of the values of STATUSES."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{reason} ({status})")
        self.status = status


class _Config(ctypes.Structure):
    """The struct tcc_comm_config."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("rank", _INT), ("size", _INT), ("local_rank", _INT), ("local_size", _INT), ("epoch", _INT),
        ("rendezvous", ctypes.c_char_p), ("token", ctypes.c_char_p), ("backends", ctypes.c_char_p),
        ("open_milliseconds", _INT), ("operation_milliseconds", _INT),
    )  # fmt: skip


class _Call(ctypes.Structure):
    """The struct tcc_comm_call."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32), ("kind", _INT), ("reduction", _INT), ("dtype", CDType),
        ("root", _INT), ("count", _LONG), ("send_counts", _POINTER), ("receive_counts", _POINTER),
    )  # fmt: skip


def _variable(name: str) -> str:
    """Returns the value of the environment variable `name`.

    Returns "" if it is not set, or if the process has raised privileges.
    """
    getenv = ctypes.CDLL(None).secure_getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(name.encode())
    return os.fsdecode(value or b"")


@cache
def _library() -> ctypes.CDLL:
    path = _variable("TCC_COMM_LIBRARY") or str(LIBRARY)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise CommError(
            "unsupported",
            f"the communication library cannot be loaded: {error}; compile it with python -m "
            "tcc.backends.artifact.comm_library FOLDER and set TCC_COMM_LIBRARY to its path",
        ) from error
    signatures: dict[str, tuple[Any, ...]] = {
        "all_reduce": (_POINTER, _POINTER, _LONG, CDType, _INT),
        "reduce_scatter": (_POINTER, _POINTER, _LONG, CDType, _INT),
        "all_gather": (_POINTER, _POINTER, _LONG, CDType),
        "all_to_all": (_POINTER, _POINTER, _LONG, CDType),
        "broadcast": (_POINTER, _POINTER, _LONG, CDType, _INT),
        "send": (_POINTER, _LONG, CDType, _INT),
        "receive": (_POINTER, _LONG, CDType, _INT),
        "barrier": (),
        "split": (_INT, _INT, ctypes.POINTER(_POINTER)),
        "shrink": (ctypes.POINTER(_INT), _INT, ctypes.POINTER(_POINTER)),
        "failed": (ctypes.POINTER(_INT), _INT, ctypes.POINTER(_INT)),
        "symmetric": (ctypes.c_size_t, ctypes.POINTER(_POINTER)),
        "scratch": (ctypes.c_size_t, ctypes.POINTER(_POINTER)),
        "start": (ctypes.POINTER(_Call), _POINTER, _POINTER, ctypes.POINTER(ctypes.c_uint64)),
        "wait": (ctypes.c_uint64,),
        "memory_keep": (_POINTER, ctypes.POINTER(_POINTER)),
        "abort": (ctypes.c_char_p,),
        "error": (),
        "group_start": (),
        "group_end": (),
    }
    for name, arguments in signatures.items():
        getattr(library, f"tcc_comm_{name}").argtypes = (_POINTER, *arguments)
    for name in ("rank", "size", "local_rank", "local_size", "close", "backend_name", "share"):
        getattr(library, f"tcc_comm_{name}").argtypes = (_POINTER,)
    for name in ("keep", "drop", "memory_drop"):
        getattr(library, f"tcc_comm_{name}").argtypes = (_POINTER,)
    library.tcc_comm_open.argtypes = (ctypes.POINTER(_Config), ctypes.POINTER(_POINTER))
    library.tcc_comm_backend_name.restype = ctypes.c_char_p
    library.tcc_comm_last_error.restype = ctypes.c_char_p
    for name in ("close", "drop", "memory_drop"):
        getattr(library, f"tcc_comm_{name}").restype = None
    return library


def _check(status: int) -> None:
    if status:
        reason = _library().tcc_comm_last_error().decode(errors="replace")
        raise CommError(STATUSES.get(status, "internal"), reason)


def _dtype(array: Array) -> CDType:
    try:
        code, bits = DTYPE_CODES[_NAMES[array.dtype.name if array.dtype.isnative else "swapped"]]
    except KeyError:
        raise CommError(
            "unsupported", f"element type {array.dtype}: expected one of {', '.join(_NAMES)}"
        ) from None
    return CDType(code, bits, 1)


def _reduction(name: str) -> int:
    if name not in REDUCTIONS:
        raise CommError(
            "invalid argument", f"reduction {name!r}: expected one of {', '.join(REDUCTIONS)}"
        )
    return REDUCTIONS.index(name)


def open(
    rank: int = -1,
    size: int = -1,
    *,
    rendezvous: str | None = None,
    token: str | None = None,
    epoch: int = -1,
    backends: str | None = None,
    open_seconds: float = 60.0,
    operation_seconds: float = 300.0,
) -> Comm:
    """Joins this process to a job as one rank; returns when all ranks have joined.

    Defaults come from environment variables that the launcher sets. Ranks on several hosts need a
    secret, `token` or TCC_TOKEN; the token "none" turns the secret off. Raises CommError.
    """
    config = _Config(
        ctypes.sizeof(_Config), rank, size, -1, -1, epoch,
        *(text if text is None else text.encode() for text in (rendezvous, token, backends)),
        max(1, round(open_seconds * 1000)), max(1, round(operation_seconds * 1000)),
    )  # fmt: skip
    handle = _POINTER()
    _check(_library().tcc_comm_open(config, handle))
    return Comm(handle)


class Started:
    """A collective in progress.

    Until `wait` returns, its operand must not change and its result must not be read.
    """

    def __init__(self, comm: Comm, ticket: int, result: Array) -> None:
        self._comm, self._ticket, self._result = comm, ticket, result

    def wait(self) -> Array:
        """Waits for this operation and all earlier ones, and returns the result.

        Later calls return the same result.  Raises CommError.
        """
        self._comm._land(self._ticket)
        return self._result


class _MappedMemory:
    """Keeps memory of a comm mapped while arrays lie in it."""

    def __init__(self, comm: Comm, address: ctypes.c_void_p) -> None:
        self._library = comm._library
        self._memory = _POINTER()
        comm._call("memory_keep", address, ctypes.byref(self._memory))

    def __del__(self) -> None:
        memory, self._memory = self._memory, _POINTER()
        self._library.tcc_comm_memory_drop(memory)


class Comm:
    """A comm: a group of ranks that call collectives together.

    `close` or the end of `with` closes it. Garbage collection closes it too, with a
    ResourceWarning.

    A comm serves one thread at a time. If two threads call it at once, both calls raise CommError,
    and so do later calls on all ranks. Any thread may use `abort`, `raise_error`, `close` and the
    properties at any time.

    Operands may be strided. Results are new row-major arrays, or `out`, which must be row-major and
    have the result's shape and dtype.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._library = _library()
        self._library.tcc_comm_keep(handle)  # the handle stays valid even after `close`
        self._handle = handle
        self._process = os.getpid()
        self._closers = [None]  # only one thread can pop this entry: that thread closes the comm
        # Both maps keep the operand and the result of started operations alive. `_flying` has the
        # operations by ticket, `_starting` those that have no ticket yet.
        self._flying: dict[int, tuple[Array, Array]] = {}
        self._starting: dict[object, tuple[Array, Array]] = {}
        self._landed = 0  # operations up to this ticket have finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the comm: later calls raise CommError, and started operations lose their results.

        Arrays of `symmetric` and `scratch` stay valid. A call that is running in another thread is
        waited for; it ends at its deadline, or at once after `abort`.
        """
        try:
            self._closers.pop()
        except IndexError:
            return
        self._library.tcc_comm_close(self._handle)
        self._flying.clear()
        self._starting.clear()

    def __del__(self) -> None:
        if not hasattr(self, "_closers"):
            return
        try:
            if self._closers and self._process == os.getpid():
                text = "a comm was dropped without close"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        finally:
            # A signal may have interrupted `close`, so the comm is closed here in every case.
            self._library.tcc_comm_close(self._handle)
            self._closers.clear()
            # The warning may keep this object alive, so the object must not use the handle again.
            handle, self._handle = self._handle, _POINTER()
            self._library.tcc_comm_drop(handle)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a comm can be neither copied nor pickled: it is of this process alone")

    @property
    def rank(self) -> int:
        return int(self._library.tcc_comm_rank(self._open()))

    @property
    def size(self) -> int:
        return int(self._library.tcc_comm_size(self._open()))

    @property
    def local_rank(self) -> int:
        """Returns the index of this process among the job's processes on its host, from 0.

        Comms made by `split` and `shrink` keep this number.
        """
        return int(self._library.tcc_comm_local_rank(self._open()))

    @property
    def local_size(self) -> int:
        """Returns how many processes of the job run on this host."""
        return int(self._library.tcc_comm_local_size(self._open()))

    @property
    def backend(self) -> str:
        name: bytes = self._library.tcc_comm_backend_name(self._open())
        return name.decode()

    @property
    def handle(self) -> ctypes.c_void_p:
        """Returns the C handle (tcc_comm), which is valid as long as this object.

        Raises CommError if the comm is closed.
        """
        return self._open()

    def share(self) -> None:
        """Makes this comm the shared comm of the process until it is closed.

        Models with collectives that are loaded without a comm use it. Raises CommError if the
        process already has another shared comm.
        """
        _check(self._library.tcc_comm_share(self._open()))

    def _open(self) -> ctypes.c_void_p:
        if not self._closers:
            raise CommError("invalid argument", "the comm is closed")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> None:
        _check(getattr(self._library, f"tcc_comm_{name}")(self._handle, *arguments))

    @staticmethod
    def _result(shape: tuple[int, ...], like: Array, out: Array | None) -> Array:
        if out is None:
            return np.empty(shape, like.dtype)
        if out.shape != shape or out.dtype != like.dtype or not out.flags.carray:
            raise CommError(
                "invalid argument", f"out: expected a row-major {like.dtype} array of shape {shape}"
            )
        return out

    def all_reduce(self, x: Array, reduction: str = "sum", *, out: Array | None = None) -> Array:
        """Returns the reduction of all ranks' `x`, element by element; `out` may be `x`."""
        x = np.asarray(x, order="C")
        result = self._result(x.shape, x, out)
        self._call(
            "all_reduce",
            x.ctypes.data,
            result.ctypes.data,
            x.size,
            _dtype(x),
            _reduction(reduction),
        )
        return result

    def reduce_scatter(self, x: Array, reduction: str = "sum") -> Array:
        """Returns the reduction of all ranks' x[rank]; x has shape [size, ...]."""
        x = self._parts(x)
        result = self._result(x.shape[1:], x, None)
        self._call(
            "reduce_scatter", x.ctypes.data, result.ctypes.data, result.size, _dtype(x),
            _reduction(reduction),
        )  # fmt: skip
        return result

    def all_gather(self, x: Array) -> Array:
        """Returns all ranks' `x`, of one shape, as an array of shape [size, *x.shape]."""
        x = np.asarray(x, order="C")
        result = self._result((self.size, *x.shape), x, None)
        self._call("all_gather", x.ctypes.data, result.ctypes.data, x.size, _dtype(x))
        return result

    def all_to_all(self, x: Array) -> Array:
        """Returns an array whose element [r] is rank r's x[rank]; both have shape [size, ...]."""
        x = self._parts(x)
        result = self._result(x.shape, x, None)
        self._call("all_to_all", x.ctypes.data, result.ctypes.data, x.size // self.size, _dtype(x))
        return result

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """Returns rank root's `x`; the other ranks pass an array of its shape and dtype."""
        x = np.asarray(x, order="C")
        result = self._result(x.shape, x, None)
        self._call("broadcast", x.ctypes.data, result.ctypes.data, x.size, _dtype(x), root)
        return result

    def start(
        self,
        kind: str,
        x: Array,
        reduction: str = "sum",
        root: int = 0,
        *,
        out: Array | None = None,
    ) -> Started:
        """Starts the operation `kind`, one of KINDS, on `x`.

        The shapes of `x` and of the result (or `out`) are as for the method named `kind`.
        Operations start and end in the order of their calls, blocking calls included. Raises
        CommError, as does `wait`.
        """
        if kind not in KINDS:
            raise CommError(
                "invalid argument", f"kind {kind!r}: expected one of {', '.join(KINDS)}"
            )
        sends_parts = kind in ("reduce_scatter", "all_to_all")
        x = self._parts(x) if sends_parts else np.asarray(x, order="C")
        shapes = {"reduce_scatter": x.shape[1:], "all_gather": (self.size, *x.shape)}
        result = self._result(shapes.get(kind, x.shape), x, out)
        count = x.size // self.size if sends_parts else x.size
        call = _Call(
            ctypes.sizeof(_Call), KINDS[kind], _reduction(reduction), _dtype(x), root, count
        )
        ticket = ctypes.c_uint64()
        mark = object()
        # `_starting` keeps the arrays alive if a signal handler raises an exception after the
        # operation has started and before `_flying` has its ticket.
        self._starting[mark] = x, result
        try:
            self._call("start", call, x.ctypes.data, result.ctypes.data, ctypes.byref(ticket))
        except CommError:
            self._starting.pop(mark, None)
            raise
        self._flying[ticket.value] = x, result
        self._starting.pop(mark, None)
        return Started(self, ticket.value, result)

    def _land(self, ticket: int) -> None:
        if ticket <= self._landed:
            return
        self._call("wait", ticket)
        self._landed = ticket
        for past_ticket in [number for number in [*self._flying] if number <= ticket]:
            self._flying.pop(past_ticket, None)

    def send(self, x: Array, peer: int) -> None:
        """Sends `x` to rank `peer`, which must receive an array of the size and dtype of `x`."""
        x = np.asarray(x, order="C")
        self._call("send", x.ctypes.data, x.size, _dtype(x), peer)

    def receive(self, out: Array, peer: int) -> Array:
        """Receives from rank `peer` into `out`, a row-major array, and returns `out`."""
        self._result(out.shape, out, out)
        self._call("receive", out.ctypes.data, out.size, _dtype(out), peer)
        return out

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        self._call("barrier")

    def split(self, color: int, key: int = 0) -> Comm | None:
        """Returns a comm of all ranks that pass this `color`, or None if `color` is negative.

        Its ranks are in the order of their `key`.
        """
        handle = _POINTER()
        self._call("split", color, key, ctypes.byref(handle))
        return Comm(handle) if handle else None

    def failed(self) -> list[int]:
        """Returns the ranks that are gone: their processes ended, or they closed the comm.

        This works on a failed comm too. Raises CommError on the backends `plugin` and `mpi`.
        """
        ranks, count = (_INT * self.size)(), _INT()
        self._call("failed", ranks, len(ranks), ctypes.byref(count))
        return ranks[: count.value]

    def shrink(self, excluded: Sequence[int] = ()) -> Comm:
        """Returns a comm of the remaining ranks; all of them call this and agree on the members.

        This works on a failed comm too. `excluded` names living ranks that will not call it. Ranks
        that are gone need not be named.
        """
        handle = _POINTER()
        self._call("shrink", (_INT * len(excluded))(*excluded), len(excluded), ctypes.byref(handle))
        return Comm(handle)

    def symmetric(self, size: int) -> Array:
        """Returns the symmetric arena: `size` zero bytes (u8), which stay valid even after
        `close`."""
        return self._shared_memory("symmetric", size)

    def scratch(self, size: int) -> Array:
        """Returns the first `size` bytes (u8) of the scratch memory that runs on this comm share.

        All ranks call it with equal sizes. Every rank has this memory, mapped so that the ranks
        reduce arrays in it without copies. If a run or a call later needs more bytes, the comm
        moves to other memory. The array stays valid even then, and after `close`.
        """
        return self._shared_memory("scratch", size)

    def _shared_memory(self, name: str, size: int) -> Array:
        address = _POINTER()
        self._call(name, size, ctypes.byref(address))
        assert address.value is not None
        memory = (ctypes.c_uint8 * size).from_address(address.value)
        # NumPy's array keeps `memory` alive, and this field keeps the mapping alive. mypy does not
        # know that a ctypes array can get a new field.
        memory.kept = _MappedMemory(self, address)  # type: ignore[attr-defined]
        return np.ctypeslib.as_array(memory)

    def abort(self, reason: str) -> None:
        """Revokes the comm: operations of all ranks then raise CommError with `reason`."""
        self._call("abort", reason.encode())

    def raise_error(self) -> None:
        """Raises CommError if the comm was revoked, or if a rank's process has ended."""
        self._call("error")

    def _parts(self, x: Array) -> Array:
        x = np.asarray(x, order="C")
        if x.ndim == 0 or x.shape[0] != self.size:
            raise CommError(
                "invalid argument", f"expected shape [{self.size}, ...], got {list(x.shape)}"
            )
        return x
