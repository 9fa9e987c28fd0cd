"""Reads an ONNX model: checks the file and returns the protobuf in it.

The checks here concern the file: it is ONNX, of a version that tcc knows. The importer checks the
graph node by node.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import onnx

# protobuf comes with onnx and has no type stubs
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from tcc.errors import UserError
from tcc.file_kind import ONNX, file_kind
from tcc.frontends.model_file import map_file
from tcc.frontends.onnx.schema import domain_of
from tcc.frontends.onnx.wire import MalformedError, check_size, split_weights
from tcc.frontends.place import placed
from tcc.frozen import frozen

_LARGEST = (1 << 31) - 1  # the most bytes of a protobuf
_OLDEST_OPSET = 1
_OLDEST_IR, _NEWEST_IR = 3, onnx.IR_VERSION
_ONNX = "tcc reads ONNX files and .pt2 archives of torch.export"
# The domains of ONNX's own operators, and the newest version of each that this onnx package knows.
_NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}


@frozen
class SourceModel:
    """A model as read: `name` for messages, `path` for external data, `opsets` by domain.

    `weights` maps an initialiser's number to its bytes, where they were cut out of `proto`.  The
    bytes are views of the mapped file.
    """

    proto: onnx.ModelProto
    name: str
    path: Path | None
    opsets: Mapping[str, int]
    weights: Mapping[int, memoryview]


def read_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> SourceModel:
    """Reads and checks a model: a path, bytes, or a `ModelProto`.

    Raises `UserError` where the file is missing, unreadable, truncated, not ONNX, or of an IR
    version or opset that this tcc does not know.
    """
    path: Path | None = None
    weights: Mapping[int, memoryview] = {}
    if isinstance(source, onnx.ModelProto):
        proto, name = source, source.graph.name or "model"
    elif isinstance(source, bytes):
        name = "model"
        proto, weights = _parse(memoryview(source), name)
    elif not isinstance(source, str | os.PathLike):
        raise UserError(
            f"an object of type {type(source).__name__} is no model",
            hint="give a path, an onnx.ModelProto, a torch.nn.Module or an ExportedProgram",
        )
    else:
        path = Path(source)
        name = str(path)
        proto, weights = _parse(map_file(path, _ONNX, _LARGEST), name)
    with placed(name):
        _check_frame(proto)
        _check_text(proto)
        return SourceModel(proto, name, path, check_opsets(proto.opset_import), weights)


def _parse(data: memoryview, where: str) -> tuple[onnx.ModelProto, Mapping[int, memoryview]]:
    with placed(where):
        if not data:
            raise UserError("the model file is empty", hint=_ONNX)
        head = data[:64].tobytes()
        kind = "" if head.startswith(ONNX) else file_kind(head)
        proto = onnx.ModelProto()
        try:
            slim, weights = split_weights(data) or (data, {})
            check_size(memoryview(slim), proto.DESCRIPTOR)
            proto.ParseFromString(bytes(slim))
        except ValueError as error:
            raise UserError("the model is too large", why=f"it has {error}") from error
        except (DecodeError, MalformedError) as error:
            raise UserError(
                "the file is not an ONNX model, or is truncated",
                why=f"it is {kind}" if kind else "its bytes do not decode as the ONNX protobuf",
                hint=_ONNX if kind else "copy or export the model again",
            ) from error
        return proto, weights


def _check_frame(proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph") or not proto.HasField("ir_version"):
        raise UserError(
            "the file is not an ONNX model",
            why="it has no graph or no IR version",
            hint=_ONNX,
        )
    if not _OLDEST_IR <= proto.ir_version <= _NEWEST_IR:
        raise UserError(
            f"ONNX IR version {proto.ir_version} is not supported",
            why=f"versions {_OLDEST_IR} to {_NEWEST_IR} are",
            hint="export the model with another ir_version",
        )


def _check_text(model: Message) -> None:
    """Raises `UserError` for a text in `model` that is not UTF-8; protobuf returns such a text as
    bytes."""
    pending = [model]  # a stack, because models in memory may nest too deep for recursion
    while pending:
        message = pending.pop()
        tensor = isinstance(message, onnx.TensorProto)  # whose data ListFields would copy
        texts = [message.name] if tensor else []
        pending += list(message.external_data) if tensor else []
        for field, value in () if tensor else message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                texts += value if field.is_repeated else (value,)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                pending += value if field.is_repeated else (value,)
        for text in texts:
            if isinstance(text, bytes):
                raise UserError("the model has a text that is not UTF-8", why=ascii(text[:80]))


def check_opsets(entries: object) -> dict[str, int]:
    """Returns versions by domain ('ai.onnx' is ''); raises `UserError` on absent or unknown
    versions."""
    opsets: dict[str, int] = {}
    for entry in entries:  # type: ignore[attr-defined]
        domain = domain_of(entry)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise UserError(f"two versions of the opset '{domain}' are imported")
    if not opsets:
        raise UserError("the model imports no opset", hint=_ONNX)
    version = opsets.get("")
    if version is not None and not _OLDEST_OPSET <= version <= _NEWEST[""]:
        raise UserError(
            f"opset {version} is not supported",
            why=f"opsets {_OLDEST_OPSET} to {_NEWEST['']} are",
            hint="convert the model with onnx.version_converter, or export it again",
        )
    newest_ml = _NEWEST["ai.onnx.ml"]
    if opsets.get("ai.onnx.ml", 1) > newest_ml:
        raise UserError(
            f"ai.onnx.ml version {opsets['ai.onnx.ml']} is not supported",
            why=f"versions up to {newest_ml} are",
        )
    return opsets
