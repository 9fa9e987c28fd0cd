"""A fuzz target: ONNX files. For any bytes, the import makes a graph or refuses.

Mutations of plain bytes seldom get past the parser, so most mutations change a field of the decoded
message.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto
from tcc.errors import UserError
from tcc.frontends.onnx import importer as onnx_import
from tcc.frontends.onnx import reader as onnx_reader

from tests.lib.fuzz.hostile import cases
from tests.lib.fuzz.hostile_case import Action, Outcome

_INTEGERS = (0, 1, -1, 2, 7, 64, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_TEXTS = ("", "x", "y", "t", "w", "Add", "If", "ai.onnx", "com.microsoft", "axis", "NCHW", "a\0b")
_LONGEST = 1 << 16


def check(data: bytes) -> None:
    """Raises an exception that a user must not see."""
    try:
        onnx_import.import_model(onnx_reader.read_model(data))
    except UserError as error:
        if not error.what:
            raise


def seeds(folder_of: Callable[[str], Path]) -> Iterator[tuple[str, bytes]]:
    """Yields the hostile corpus's small models that compile, or that fail only when they run."""
    for case in cases():
        if case.action is Action.LOAD or case.outcome is Outcome.REFUSED:
            continue
        folder = folder_of(case.name)
        case.write_to(folder)
        model = folder / "m.onnx"
        if model.is_file() and model.stat().st_size <= 2048:
            yield case.name, model.read_bytes()


def mutate(data: bytes, seed: int, other: Callable[[bytes], bytes]) -> bytes:
    """Returns the model with one to three changed fields; `other` mutates bytes that are not a
    model."""
    rng = random.Random(seed)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return other(data)
    if rng.random() < 0.1:
        return other(data)
    for _ in range(rng.randrange(1, 4)):
        _change(rng.choice(list(_messages(model))), model, rng)
    changed = model.SerializeToString()
    return changed if len(changed) <= _LONGEST else data


def _messages(message: Message) -> Iterator[Message]:
    """Yields a message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                yield from _messages(part)


def _change(message: Message, model: Message, rng: random.Random) -> None:
    fields = [field for field, _ in message.ListFields()]
    if not fields or rng.random() < 0.1:
        fields = list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, model, rng)
    elif field.cpp_type == Field.CPPTYPE_MESSAGE:
        getattr(message, field.name).CopyFrom(_alike(field, model, rng))
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng))


def _change_list(values: Any, field: Field, model: Message, rng: random.Random) -> None:
    is_message = field.cpp_type == Field.CPPTYPE_MESSAGE
    count = len(values)
    at = rng.randrange(count) if count else 0
    choice = rng.random()
    if count and choice < 0.3:
        del values[at]
    elif count and choice < 0.7 and not is_message:
        values[at] = _scalar(field, values[at], rng)
    elif is_message:
        values.add().CopyFrom(_alike(field, model, rng))
    else:
        values.append(_scalar(field, None, rng))


def _alike(field: Field, model: Message, rng: random.Random) -> Message:
    """Returns a copy of any message of the field's type in the model, or an empty message."""
    message_type = field.message_type
    candidates = [m for m in _messages(model) if m.DESCRIPTOR is message_type]
    copy: Message = message_type._concrete_class()
    if candidates:
        copy.ParseFromString(rng.choice(candidates).SerializeToString())
    return copy


def _scalar(field: Field, value: object, rng: random.Random) -> object:
    kind = field.cpp_type
    if kind == Field.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if kind in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 0.5, 1e30, float("nan"), float("inf")))
    if kind == Field.CPPTYPE_STRING and field.type == Field.TYPE_BYTES:
        data = bytes(value) if isinstance(value, bytes) else b""
        return rng.choice((b"", data[: len(data) // 2], data + b"\xff", rng.randbytes(8)))
    if kind == Field.CPPTYPE_STRING:
        return rng.choice(_TEXTS)
    neighbour = int(value) + rng.choice((-1, 1)) if isinstance(value, int) else 1
    wide = kind in (Field.CPPTYPE_INT64, Field.CPPTYPE_UINT64)
    least, most = (-(1 << 63), (1 << 63) - 1) if wide else (-(1 << 31), (1 << 31) - 1)
    if kind in (Field.CPPTYPE_UINT64, Field.CPPTYPE_UINT32):
        least, most = 0, most
    return min(max(rng.choice((neighbour, *_INTEGERS)), least), most)
