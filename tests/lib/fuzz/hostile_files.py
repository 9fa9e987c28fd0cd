"""Hostile bytes, tensors and external data."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .hostile_case import Case, Outcome, changed, plain, refused, writer

_WEIGHT = np.arange(12, dtype=np.float32).tobytes()


def cases() -> Iterator[Case]:
    yield from _bytes()
    yield from _tensors()
    yield from _external()


# ---- bytes ---------------------------------------------------------------------------------------


def _bytes() -> Iterator[Case]:
    model = plain().SerializeToString()
    rng = random.Random(1)
    yield Case("bytes-clean", Outcome.WORKS, writer(model))
    plainly = {
        "empty": b"",
        "zero": b"\0",
        "zeros": bytes(4096),
        "html": b"<!doctype html><html><body>404</body></html>",
        "json": b'{"graph": {"node": []}}',
        "zip": b"PK\x03\x04" + bytes(200),
        "gzip": gzip.compress(model, mtime=0),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(200),
        "pickle": b"\x80\x04cposix\nsystem\n(S'touch pwned'\ntR.",
        "text": "größer als nötig\n".encode() * 50,
        "random": rng.randbytes(1000),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
        "nested": _nested(20_000),
        "nested-shallow": _nested(90),
        "varint": b"\x08" + b"\xff" * 30,
        "long-field": b"\x3a" + b"\xff\xff\xff\xff\x0f" + model,
        "huge-field": b"\x3a" + b"\xff" * 9 + b"\x01" + model,
        "group": b"\x3b" * 5000,
    }
    for name, data in plainly.items():
        yield refused(f"bytes-{name}", data)
    yield Case("bytes-twice", Outcome.EITHER, writer(model + model))
    yield Case("bytes-unknown-field", Outcome.WORKS, writer(model + b"\xfa\x3e\x03abc"))
    for part in range(1, 12):
        yield Case(f"bytes-cut-{part}", Outcome.EITHER, writer(model[: len(model) * part // 12]))
    for number in range(30):
        flipped = bytearray(model)
        at = rng.randrange(len(model))
        flipped[at] ^= 1 << rng.randrange(8)
        yield Case(f"bytes-flip-{number}", Outcome.EITHER, writer(bytes(flipped)))
    for number in range(8):
        mixed = bytearray(model)
        for _ in range(5):
            at = rng.randrange(len(model))
            mixed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        yield Case(f"bytes-mixed-{number}", Outcome.EITHER, writer(bytes(mixed)))


def _nested(depth: int) -> bytes:
    """Returns a model whose graphs nest in attributes of nodes."""
    inner = b""
    for _ in range(depth):
        inner = _field(7 if len(inner) == 0 else 6, inner)
        inner = _field(1, _field(5, inner))
        if len(inner) > 1 << 20:
            break
    return b"\x08\x0a" + _field(7, inner)


def _field(number: int, data: bytes) -> bytes:
    size, out = len(data), bytearray([number << 3 | 2])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


# ---- tensors -------------------------------------------------------------------------------------


def _weight(change: Callable[[onnx.TensorProto], object]) -> Callable[[], onnx.ModelProto]:
    return changed(lambda model: change(model.graph.initializer[0]))


def _dims(*dims: int) -> Callable[[], onnx.ModelProto]:
    def change(tensor: onnx.TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return _weight(change)


def _tensors() -> Iterator[Case]:
    shapes: dict[str, tuple[int, ...]] = {
        "negative": (-3, 4),
        "negatives": (-3, -4),
        "short": (3, 5),
        "long": (3, 3),
        "product-zero": (1 << 32, 1 << 32),
        "product-wraps": (1 << 62, 4),
        "largest": ((1 << 63) - 1, 1),
        "least": (-(1 << 63), 1),
        "scalar": (),
        "rank-65": (1,) * 63 + (3, 4),
        "rank-4096": (1,) * 4096,
        "zero": (0, 4),
        "terabyte": (1 << 20, 1 << 20),
    }
    for name, dims in shapes.items():
        yield refused(f"tensor-{name}", _dims(*dims))
    for number in (0, 999, -1, TensorProto.STRING, TensorProto.COMPLEX64):
        yield refused(
            f"tensor-type-{number}", _weight(lambda t, n=number: setattr(t, "data_type", n))
        )
    changes: dict[str, Callable[[onnx.TensorProto], object]] = {
        "raw-short": lambda t: setattr(t, "raw_data", t.raw_data[:-1]),
        "raw-long": lambda t: setattr(t, "raw_data", t.raw_data + b"x"),
        "raw-empty": lambda t: setattr(t, "raw_data", b""),
        "no-data": lambda t: t.ClearField("raw_data"),
        "two-fields": lambda t: t.float_data.extend([1.0] * 12),
        "field-short": lambda t: (t.ClearField("raw_data"), t.float_data.extend([1.0] * 11)),
        "field-wrong": lambda t: (t.ClearField("raw_data"), t.int64_data.extend([1] * 12)),
        "strings": lambda t: (t.ClearField("raw_data"), t.string_data.extend([b"x"] * 12)),
        "segment": lambda t: (setattr(t.segment, "begin", 0), setattr(t.segment, "end", 99)),
        "integer": lambda t: setattr(t, "data_type", TensorProto.INT64),
    }
    for name, change in changes.items():
        outcome = Outcome.EITHER if name == "segment" else Outcome.REFUSED
        yield Case(f"tensor-{name}", outcome, writer(_weight(change)))
    yield refused("tensor-int32-overflow", _field_values(TensorProto.INT8, [1000] * 12))
    yield refused("tensor-bool-seven", _field_values(TensorProto.BOOL, [7] * 12))
    yield from _sparse()


def _field_values(kind: int, values: list[int]) -> Callable[[], onnx.ModelProto]:
    """Returns a model with elements outside of their type's range."""

    def change(tensor: onnx.TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.data_type = kind
        tensor.int32_data.extend(values)

    return _weight(change)


def _sparse() -> Iterator[Case]:
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    shapes = {
        "bomb": ([0, 1], [1 << 40, 4]),
        "wraps": ([0, 1], [1 << 62, 1 << 62]),
        "negative": ([0, 1], [-3, -4]),
        "outside": ([0, 12], [3, 4]),
        "below": ([-1, 0], [3, 4]),
        "count": ([0, 1, 2], [3, 4]),
    }
    for name, (places, dims) in shapes.items():
        at = numpy_helper.from_array(np.array(places, np.int64))
        sparse = helper.make_sparse_tensor(values, at, dims)

        def change(model: onnx.ModelProto, sparse: onnx.SparseTensorProto = sparse) -> None:
            del model.graph.initializer[:]
            model.graph.sparse_initializer.append(sparse)

        yield refused(f"sparse-{name}", changed(change))


# ---- external data -------------------------------------------------------------------------------


def _external() -> Iterator[Case]:
    yield _outside_case("clean", Outcome.WORKS, {"location": "w.bin"})
    yield _outside_case("deep", Outcome.WORKS, {"location": "a/w.bin"})
    yield _outside_case("dots", Outcome.WORKS, {"location": "./a/.//w.bin"})
    yield _outside_case(
        "range", Outcome.WORKS, {"location": "w.bin", "offset": "0", "length": "48"}
    )
    locations = {
        "parent": "../out.bin", "parent-deep": "a/../../out.bin", "absolute": "/etc/passwd",
        "url": "file:///etc/passwd", "empty": "", "dot": ".", "slashes": "//a/w.bin",
        "dots-parent": "./../out.bin", "file-as-folder": "w.bin/.",
        "back": "a/../w.bin", "nul": "w.bin\0", "nul-tail": "w.bin\0/../../out.bin",
        "backslash": "..\\out.bin", "absent": "no.bin", "link": "link.bin",
        "linked-folder": "linked/out.bin", "hard-link": "hard.bin", "pipe": "pipe",
        "folder": "a", "hollow": "hollow.bin", "device": "/dev/zero", "proc": "/proc/self/mem",
        "memory": "*/_ORT_MEM_ADDR_/*", "itself": "m.onnx/../../out.bin", "tilde": "~/.profile",
        "long": "a/" * 5000 + "w.bin", "command": "|touch pwned", "variable": "$HOME/.profile",
        "loop": "loop", "loop-folder": "loop/w.bin",
    }  # fmt: skip
    for name, location in locations.items():
        yield _outside_case(name, Outcome.REFUSED, {"location": location})
    ranges = {
        "offset-negative": {"offset": "-4"},
        "length-negative": {"length": "-48"},
        "offset-past": {"offset": "4"},
        "offset-wraps": {"offset": "18446744073709551612"},
        "offset-huge": {"offset": "9" * 400},
        "length-short": {"length": "44"},
        "length-long": {"length": "52"},
        "length-petabyte": {"length": str(10**15)},
        "length-text": {"length": "many"},
        "length-float": {"length": "48.0"},
        "length-hex": {"length": "0x30"},
        "digits": {"length": "４８"},
        "key-unknown": {"__class__": "x"},
        "key-path": {"basepath": "/etc"},
    }
    for name, entries in ranges.items():
        yield _outside_case(name, Outcome.REFUSED, {"location": "w.bin", **entries})
    yield _outside_case("no-location", Outcome.REFUSED, {})


def _outside_case(name: str, outcome: Outcome, entries: dict[str, str]) -> Case:
    def write(folder: Path) -> None:
        model = plain()
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        writer(model)(folder)
        _surround(folder)

    return Case(f"external-{name}", outcome, write)


def _surround(folder: Path) -> None:
    """Writes the files that the locations name, inside the folder and beside it."""
    outside = folder.parent / "out.bin"
    if not outside.exists():
        outside.write_bytes(_WEIGHT)
    (folder / "a").mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(_WEIGHT)
    (folder / "a" / "w.bin").write_bytes(_WEIGHT)
    (folder / "hollow.bin").write_bytes(b"")
    for name, target in (("link.bin", outside), ("linked", folder.parent), ("loop", "loop")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    if not (folder / "hard.bin").exists():
        os.link(outside, folder / "hard.bin")
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
