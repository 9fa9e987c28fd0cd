"""Finds the weights of a serialised model without copying them.

A protobuf parser copies every byte field several times.  `split_weights` walks the wire format of a
mapped file down to the graph's initialisers and cuts out their `raw_data`.  The remaining protobuf
is small, and each weight is a view of the file.

    ModelProto.graph = 7    GraphProto.initializer = 5    TensorProto.raw_data = 9
"""

from collections.abc import Iterator, Mapping
from typing import Any

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_BYTES = 2  # the wire type of fields with a length
_WORTH_IT = 4096  # fields of fewer bytes stay in the protobuf
_ELEMENTS = (4, 5, 6, 7, 9, 10, 11)  # the fields of a TensorProto that hold its elements
# Messages of at most `_SMALL` bytes are not checked. `_MOST_FRAME` is the most bytes of a message
# without the elements of its tensors.
_SMALL, _MOST_FRAME = 1 << 19, 64 << 20
_MOST_FIELDS, _MOST_MESSAGES = 1_500_000, 300_000

# Field number, wire type, and the offsets of the tag's start, the content's start and its end.
Field = tuple[int, int, int, int, int]


class MalformedError(Exception):
    """The bytes are not the wire format; the protobuf parser has the better message."""


def check_size(data: memoryview, kind: Any) -> None:
    """Raises ValueError if parsing a message would take too much memory.

    A field of two bytes may become two hundred in memory. The elements of tensors do not count.
    `kind` is the message's descriptor. Raises MalformedError where the bytes are not the wire
    format.
    """
    if len(data) <= _SMALL:
        return
    frame, pending = len(data), [(kind, 0, len(data))]
    field_budget, messages = iter(range(_MOST_FIELDS)), iter(range(_MOST_MESSAGES))
    while pending:
        kind, start, end = pending.pop()
        elements = _ELEMENTS if kind.name == "TensorProto" else ()
        for number, wire, _, first, last in _fields(data, start, end, field_budget):
            descriptor = kind.fields_by_number.get(number)
            if wire != _BYTES or descriptor is None:
                continue
            if descriptor.message_type is not None:
                pending.append((descriptor.message_type, first, last))
                if next(messages, None) is None:
                    raise ValueError(f"more than {_MOST_MESSAGES} nodes, attributes and the like")
            elif number in elements:
                frame -= last - first
    if frame > _MOST_FRAME:
        raise ValueError(f"{frame} bytes beside the elements of its tensors")


def split_weights(data: memoryview) -> tuple[bytes, Mapping[int, memoryview]] | None:
    """Returns the model without its large weights, and the weights by the number of the
    initialiser.

    Returns None where there is nothing to cut out, or where the bytes do not read as one model.
    Raises ValueError for more fields than a model has.
    """
    field_budget = iter(range(_MOST_FIELDS))
    try:
        graphs = [
            field for field in _fields(data, 0, len(data), field_budget) if field[0] == _GRAPH
        ]
        if len(graphs) != 1 or graphs[0][1] != _BYTES:
            return None
        cuts = _cuts(data, graphs[0], field_budget)
    except MalformedError:
        return None
    if not cuts:
        return None
    _, _, tag, start, end = graphs[0]
    graph, weights = _without(data, start, end, cuts)
    model: list[bytes | memoryview] = [data[:tag], _head(_GRAPH, len(graph)), graph, data[end:]]
    return b"".join(model), weights


def _cuts(
    data: memoryview, graph: Field, field_budget: Iterator[int]
) -> list[tuple[int, Field, Field]]:
    """Returns (number, tensor's field, raw data's field) for each initialiser with large raw data.

    An initialiser is left out if it has several fields of raw data.
    """
    cuts = []
    number = 0
    for tensor in _fields(data, graph[3], graph[4], field_budget):
        if tensor[0] != _INITIALIZER:
            continue
        if tensor[1] != _BYTES:
            raise MalformedError
        fields = _fields(data, tensor[3], tensor[4], field_budget)
        raw = [field for field in fields if field[0] == _RAW_DATA]
        if len(raw) == 1 and raw[0][1] == _BYTES and raw[0][4] - raw[0][3] >= _WORTH_IT:
            cuts.append((number, tensor, raw[0]))
        number += 1
    return cuts


def _without(
    data: memoryview, start: int, end: int, cuts: list[tuple[int, Field, Field]]
) -> tuple[bytes, dict[int, memoryview]]:
    """Returns the bytes from `start` to `end` without the raw data of `cuts`, and the raw data by
    the number of the initialiser."""
    pieces: list[bytes | memoryview] = []
    weights: dict[int, memoryview] = {}
    for number, tensor, raw in cuts:
        weights[number] = data[raw[3] : raw[4]]
        size = tensor[4] - tensor[3] - (raw[4] - raw[2])
        pieces.append(data[start : tensor[2]])
        pieces.append(_head(_INITIALIZER, size))
        pieces += [data[tensor[3] : raw[2]], data[raw[4] : tensor[4]]]
        start = tensor[4]
    pieces.append(data[start:end])
    return b"".join(pieces), weights


def _fields(data: memoryview, at: int, end: int, field_budget: Iterator[int]) -> Iterator[Field]:
    """Yields the fields of the message in `data[at:end]`.

    Each field takes an item of `field_budget`; raises ValueError when there is none left.
    """
    while at < end:
        if next(field_budget, None) is None:
            raise ValueError(f"more than {_MOST_FIELDS} fields")
        tag = at
        key, at = _varint(data, at, end)
        wire = key & 7
        if key < 8:
            raise MalformedError  # the field number 0, as in the zeros of a sparse file's hole
        if wire == 0:
            start = at
            _, at = _varint(data, at, end)
        elif wire in (1, 5):
            start, at = at, at + (8 if wire == 1 else 4)
        elif wire == _BYTES:
            size, start = _varint(data, at, end)
            at = start + size
        else:
            raise MalformedError
        if at > end:
            raise MalformedError
        yield key >> 3, wire, tag, start, at


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise MalformedError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedError


def _head(number: int, size: int) -> bytes:
    """Returns the tag and the length that begin a field of `size` bytes."""
    out = bytearray([number << 3 | _BYTES])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
