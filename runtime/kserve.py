"""Reads and writes the messages of the KServe v2 protocol over HTTP, for one model.

The protocol is the "Open Inference Protocol" of https://kserve.github.io, with Triton's extension
for binary tensors: a body is JSON, followed by the bytes of its tensors in the order of their
descriptions. The header `Inference-Header-Content-Length` gives the bytes of the JSON.

Messages of clients are hostile input: every fault raises a `RequestError`, and nothing larger than
the message is allocated for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.runtime import abi
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import RuntimeFailure

HEADER_LENGTH = "Inference-Header-Content-Length"
# Maps tcc's element types to those of the protocol.
DATATYPES = MappingProxyType(
    {
        "bool": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
        "i8": "INT8", "i16": "INT16", "i32": "INT32", "i64": "INT64",
        "f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64", "string": "BYTES",
    }
)  # fmt: skip
# Types without a form in JSON.
_BINARY_ONLY = ("f16", "bf16")
# The bytes before each string of a binary tensor, which hold its length.
_PREFIX = 4
_MOST_DIMS = 32


class RequestError(RuntimeFailure):
    """A fault of a request; `status` is the HTTP status of the answer."""

    def __init__(self, what: str, *, where: str = "", why: str = "", status: int = 400) -> None:
        super().__init__(what, where=where, why=why)
        self.status = status


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that a client asks for; with `binary` its bytes follow the JSON."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request for a run: its id ("" without one), the inputs by name, and the outputs."""

    id: str
    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: tuple[OutputRequest, ...]


def check_ports(ports: Sequence[ModulePort], where: str) -> None:
    """Raises RuntimeFailure if the protocol has no type for a port, or if a port has state."""
    for port in ports:
        if port.dtype not in DATATYPES:
            why = f"'{port.name}' has the type {port.dtype}, which the protocol lacks"
        elif port.state >= 0:
            why = f"'{port.name}' updates an input in place, and requests share no memory"
        else:
            continue
        raise RuntimeFailure("the model cannot be served over KServe v2", where=where, why=why)


def metadata(
    name: str, inputs: Sequence[ModulePort], outputs: Sequence[ModulePort]
) -> dict[str, Any]:
    """Returns the answer to GET /v2/models/NAME; a size that only a run knows is -1."""
    described = {
        kind: [
            {
                "name": port.name,
                "datatype": DATATYPES[port.dtype],
                "shape": [-1 if size is None else size for size in port.shape],
            }
            for port in ports
        ]
        for kind, ports in (("inputs", inputs), ("outputs", outputs))
    }
    return {"name": name, "versions": ["1"], "platform": "tcc", **described}


# ---- requests -----------------------------------------------------------------------------------


def read_request(
    body: bytes,
    header_length: str | None,
    inputs: Sequence[ModulePort],
    outputs: Sequence[ModulePort],
) -> InferRequest:
    """Returns the request that a body holds for a model with these ports.

    `header_length` is the value of the header `Inference-Header-Content-Length`, or None without
    that header: then the body is JSON alone. Raises RequestError for a body that breaks the
    protocol, and for arrays that do not fit the ports.
    """
    end = _header_end(header_length, len(body))
    message = _object(_parsed(body[:end]), "the request")
    binary = memoryview(body)[end:]
    arrays = _read_inputs(message, binary, {port.name: port for port in inputs})
    missing = [port.name for port in inputs if port.name not in arrays]
    if missing:
        raise RequestError(f"inputs are missing: {', '.join(missing)}")
    identity = message.get("id", "")
    if not isinstance(identity, str):
        raise RequestError("the id of the request is no string")
    return InferRequest(identity, arrays, _read_outputs(message, outputs))


def _header_end(text: str | None, size: int) -> int:
    if text is None:
        return size
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= size):
        raise RequestError(
            f"{HEADER_LENGTH} is no length of a part of the body",
            why=f"it is {text[:40]!r}, and the body has {size} bytes",
        )
    return int(text)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as failure:
        why = "it is nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        raise RequestError("the request is no JSON", why=why[:200]) from None


def _refuse_constant(text: str) -> None:
    raise ValueError(f"JSON has no {text}: send this tensor in binary form")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{what} is no JSON object")
    return value


def _objects(message: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    values = message.get(key, [])
    if not isinstance(values, list):
        raise RequestError(f"'{key}' is no list")
    for value in values:
        yield _object(value, f"an entry of '{key}'")


def _read_inputs(
    message: Mapping[str, Any], binary: memoryview, ports: Mapping[str, ModulePort]
) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    begin = 0
    for entry in _objects(message, "inputs"):
        name = entry.get("name")
        port = ports.get(name) if isinstance(name, str) else None
        if port is None:
            raise RequestError(
                f"the model has no input {str(name)[:80]!r}", why=f"it has {', '.join(ports)}"
            )
        if port.name in arrays:
            raise RequestError(f"input '{port.name}' is given twice")
        shape = _read_shape(entry, port)
        parameters = _object(entry.get("parameters", {}), f"'parameters' of input '{port.name}'")
        size = parameters.get("binary_data_size")
        if (size is None) == ("data" not in entry):
            raise RequestError(
                f"input '{port.name}' needs either 'data' or 'binary_data_size'",
                why="it has neither" if size is None else "it has both",
            )
        if size is None:
            arrays[port.name] = _from_json(entry["data"], port, shape)
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - begin:
            raise RequestError(
                f"'binary_data_size' of input '{port.name}' is no length of bytes that follow",
                why=f"{len(binary) - begin} bytes follow, and it is {str(size)[:40]}",
            )
        arrays[port.name] = _from_bytes(binary[begin : begin + size], port, shape)
        begin += size
    if begin != len(binary):
        raise RequestError(f"{len(binary) - begin} bytes of the body belong to no input")
    return arrays


def _read_shape(entry: Mapping[str, Any], port: ModulePort) -> tuple[int, ...]:
    if entry.get("datatype") != DATATYPES[port.dtype]:
        raise RequestError(
            f"input '{port.name}' has the datatype {DATATYPES[port.dtype]}",
            why=f"the request says {str(entry.get('datatype'))[:40]!r}",
        )
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS:
        raise RequestError(f"'shape' of input '{port.name}' is no list of sizes")
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise RequestError(f"'shape' of input '{port.name}' has an entry that is no size")
    fits = len(shape) == len(port.shape) and all(
        expected in (None, size) for size, expected in zip(shape, port.shape, strict=True)
    )
    if not fits:
        raise RequestError(
            f"input '{port.name}' has the shape {port.text}", why=f"the request gives {shape}"
        )
    return tuple(shape)


def _from_bytes(data: memoryview, port: ModulePort, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    if port.dtype == "string":
        return _strings(data, port, count).reshape(shape)
    element = abi.numpy_dtype(port.dtype)
    if len(data) != count * element.itemsize:
        raise RequestError(
            f"input '{port.name}' has another number of bytes than its shape",
            why=f"{list(shape)} takes {count * element.itemsize} bytes, {len(data)} are given",
        )
    if port.dtype == "bool" and np.any(np.frombuffer(data, np.uint8) > 1):
        raise RequestError(f"input '{port.name}' has a byte other than 0 and 1, and is BOOL")
    array = np.frombuffer(data, element).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _strings(data: memoryview, port: ModulePort, count: int) -> np.ndarray[Any, Any]:
    texts = []
    begin = 0
    while begin < len(data):
        size = int.from_bytes(data[begin : begin + _PREFIX], "little")
        begin += _PREFIX + size
        if begin > len(data):
            raise RequestError(f"a string of input '{port.name}' is longer than the body")
        texts.append(bytes(data[begin - size : begin]).decode(errors="surrogateescape"))
    return _string_array(texts, port, count)


def _string_array(texts: Sequence[str], port: ModulePort, count: int) -> np.ndarray[Any, Any]:
    if len(texts) != count:
        raise RequestError(
            f"input '{port.name}' has another number of strings than its shape",
            why=f"it takes {count}, {len(texts)} are given",
        )
    array = np.empty(count, object)
    array[:] = texts
    return array


def _from_json(data: Any, port: ModulePort, shape: tuple[int, ...]) -> Any:
    if port.dtype in _BINARY_ONLY:
        raise RequestError(
            f"input '{port.name}' must be binary", why=f"{DATATYPES[port.dtype]} has no JSON form"
        )
    values = _flat(data, port)
    if port.dtype == "string":
        return _string_array(values, port, math.prod(shape)).reshape(shape)
    if len(values) != math.prod(shape):
        raise RequestError(
            f"input '{port.name}' has another number of elements than its shape",
            why=f"{list(shape)} takes {math.prod(shape)}, {len(values)} are given",
        )
    element = abi.numpy_dtype(port.dtype)
    if not _holds(element, values):
        raise RequestError(
            f"input '{port.name}' has a number that {DATATYPES[port.dtype]} cannot hold"
        )
    return np.array(values, element).reshape(shape)


def _holds(element: np.dtype[Any], values: Sequence[Any]) -> bool:
    """Returns True if a NumPy type has room for the size of each number."""
    if not values or element.kind == "b":
        return True
    least, most = min(values), max(values)
    if element.kind == "f":
        limit = float(np.finfo(element).max)
        return bool(-limit <= least and most <= limit)
    limits = np.iinfo(element)
    return bool(limits.min <= least and most <= limits.max)


def _flat(data: Any, port: ModulePort) -> list[Any]:
    """Returns the elements of nested lists in row-major order, each of the port's kind."""
    values: list[Any] = []
    stack = [iter(data if isinstance(data, list) else [data])]
    while stack:
        value = next(stack[-1], stack)
        if value is stack:
            stack.pop()
        elif isinstance(value, list):
            stack.append(iter(value))
        else:
            values.append(value)
    kinds: tuple[type, ...] = (int,)
    if port.dtype == "string":
        kinds = (str,)
    elif port.dtype == "bool":
        kinds = (bool,)
    elif port.dtype in ("f32", "f64"):
        kinds = (int, float)
    if not all(type(value) in kinds for value in values):
        raise RequestError(f"input '{port.name}' has an element that is no {DATATYPES[port.dtype]}")
    return values


def _read_outputs(
    message: Mapping[str, Any], ports: Sequence[ModulePort]
) -> tuple[OutputRequest, ...]:
    parameters = _object(message.get("parameters", {}), "'parameters'")
    default = _flag(parameters, "binary_data_output", False)
    names = [port.name for port in ports]
    requests: list[OutputRequest] = []
    for entry in _objects(message, "outputs"):
        name = entry.get("name")
        if name not in names:
            raise RequestError(
                f"the model has no output {str(name)[:80]!r}", why=f"it has {', '.join(names)}"
            )
        if any(request.name == name for request in requests):
            raise RequestError(f"output '{name}' is asked for twice")
        settings = _object(entry.get("parameters", {}), f"'parameters' of output '{name}'")
        if settings.get("classification"):
            raise RequestError("the server gives no classifications", status=501)
        requests.append(OutputRequest(str(name), _flag(settings, "binary_data", default)))
    return tuple(requests) or tuple(OutputRequest(name, default) for name in names)


def _flag(parameters: Mapping[str, Any], key: str, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise RequestError(f"'{key}' is neither true nor false")
    return value


# ---- answers ------------------------------------------------------------------------------------


def write_answer(
    name: str,
    request: InferRequest,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    ports: Sequence[ModulePort],
) -> tuple[bytes, dict[str, str]]:
    """Returns the body and the headers of the answer to `request`.

    Raises RequestError if an output has no JSON form (FP16, BF16, NaN, infinity, bytes that are not
    UTF-8) and the client asks for JSON.
    """
    types = {port.name: port.dtype for port in ports}
    entries, blocks = [], []
    for output in request.outputs:
        array, dtype = np.asarray(arrays[output.name]), types[output.name]
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": DATATYPES[dtype],
            "shape": list(array.shape),
        }
        if output.binary:
            block = _bytes_of(array, dtype)
            entry["parameters"] = {"binary_data_size": len(block)}
            blocks.append(block)
        else:
            entry["data"] = _json_of(array, dtype, output.name)
        entries.append(entry)
    message: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": entries}
    if request.id:
        message["id"] = request.id
    text = json.dumps(message, allow_nan=False).encode()
    if not blocks:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join((text, *blocks)), headers


def _bytes_of(array: np.ndarray[Any, Any], dtype: str) -> bytes:
    if dtype != "string":
        return array.tobytes()
    texts = [str(text).encode(errors="surrogateescape") for text in array.ravel()]
    return b"".join(len(text).to_bytes(_PREFIX, "little") + text for text in texts)


def _json_of(array: np.ndarray[Any, Any], dtype: str, name: str) -> list[Any]:
    what = ""
    if dtype in _BINARY_ONLY:
        what = f"{DATATYPES[dtype]} has no JSON form"
    elif dtype in ("f32", "f64") and not np.isfinite(array).all():
        what = "it holds a NaN or an infinity, which JSON lacks"
    elif dtype == "string" and any("\udc80" <= c <= "\udcff" for t in array.ravel() for c in t):
        what = "it holds bytes that are not UTF-8"
    if what:
        raise RequestError(f"output '{name}' must be asked for in binary form", why=what)
    values: list[Any] = array.ravel().tolist()
    return values
