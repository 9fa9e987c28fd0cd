"""The weights of a serialised model, found without copying them.

A protobuf parser copies every byte field, several times.  `split_weights` walks the wire format of
a mapped file down to the graph's initialisers and cuts out their `raw_data`: what is left is a
small protobuf, and each weight is a view of the file.

    ModelProto.graph = 7    GraphProto.initializer = 5    TensorProto.raw_data = 9
"""

from collections.abc import Iterator, Mapping

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_BYTES = 2  # the wire type of what has a length
_WORTH_IT = 4096  # smaller fields stay in the protobuf

Field = tuple[int, int, int, int, int]  # number, wire type, tag's start, content's start, its end


class _Malformed(Exception):
    """The bytes are not the wire format; the protobuf parser says so better."""


def split_weights(data: memoryview) -> tuple[bytes, Mapping[int, memoryview]] | None:
    """The model without its large weights, and those by the number of their initialiser.

    None where there are none to cut out, or where the bytes do not read as one model.
    """
    try:
        graphs = [field for field in _fields(data, 0, len(data)) if field[0] == _GRAPH]
        if len(graphs) != 1 or graphs[0][1] != _BYTES:
            return None
        cuts = _cuts(data, graphs[0])
    except _Malformed:
        return None
    if not cuts:
        return None
    _, _, tag, start, end = graphs[0]
    graph, weights = _without(data, start, end, cuts)
    model: list[bytes | memoryview] = [data[:tag], _head(_GRAPH, len(graph)), graph, data[end:]]
    return b"".join(model), weights


def _cuts(data: memoryview, graph: Field) -> list[tuple[int, Field, Field]]:
    """(number, tensor, raw data) of each initialiser with one large raw data field."""
    cuts = []
    number = 0
    for tensor in _fields(data, graph[3], graph[4]):
        if tensor[0] != _INITIALIZER:
            continue
        if tensor[1] != _BYTES:
            raise _Malformed
        raw = [field for field in _fields(data, tensor[3], tensor[4]) if field[0] == _RAW_DATA]
        if len(raw) == 1 and raw[0][1] == _BYTES and raw[0][4] - raw[0][3] >= _WORTH_IT:
            cuts.append((number, tensor, raw[0]))
        number += 1
    return cuts


def _without(
    data: memoryview, start: int, end: int, cuts: list[tuple[int, Field, Field]]
) -> tuple[bytes, dict[int, memoryview]]:
    """The graph's bytes with the cuts' raw data left out, and these."""
    pieces: list[bytes | memoryview] = []
    weights: dict[int, memoryview] = {}
    for number, tensor, raw in cuts:
        weights[number] = data[raw[3] : raw[4]]
        left = tensor[4] - tensor[3] - (raw[4] - raw[2])
        pieces.append(data[start : tensor[2]])
        pieces.append(_head(_INITIALIZER, left))
        pieces += [data[tensor[3] : raw[2]], data[raw[4] : tensor[4]]]
        start = tensor[4]
    pieces.append(data[start:end])
    return b"".join(pieces), weights


def _fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in `data[at:end]`."""
    while at < end:
        tag = at
        key, at = _varint(data, at, end)
        wire = key & 7
        if wire == 0:
            start = at
            _, at = _varint(data, at, end)
        elif wire in (1, 5):
            start, at = at, at + (8 if wire == 1 else 4)
        elif wire == _BYTES:
            size, start = _varint(data, at, end)
            at = start + size
        else:
            raise _Malformed
        if at > end:
            raise _Malformed
        yield key >> 3, wire, tag, start, at


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _Malformed
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Malformed


def _head(number: int, size: int) -> bytes:
    """Tag and length of a field of `size` bytes."""
    out = bytearray([number << 3 | _BYTES])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
