"""ONNX's types of sequences and optionals, and the types of their entries."""

import onnx
from tcc.errors import UserError
from tcc.frontends.onnx.context import NodeContext
from tcc.frontends.onnx.tensors import ELEMENT_TYPES, element_type
from tcc.frontends.operand import Refusal
from tcc.ir.index import Index, const
from tcc.ir.lists import NOTHING, Dims, ListType, optional_of, sequence_of
from tcc.ir.types import DType, TensorType

_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
_LISTS = ("sequence_type", "optional_type")


def is_list(proto: onnx.TypeProto) -> bool:
    """True if a declared type is a sequence or an optional."""
    return proto.WhichOneof("value") in _LISTS


def list_type(proto: onnx.TypeProto) -> ListType:
    """Returns the declared list type; raises `UserError` for types that tcc lacks.

    A named dimension of the entries becomes None, because entries may differ in it.
    """
    kind = proto.WhichOneof("value")
    if kind not in _LISTS:
        raise UserError(f"values of type {kind or 'unknown'} are not supported")
    make = optional_of if kind == "optional_type" else sequence_of
    inner = (proto.optional_type if kind == "optional_type" else proto.sequence_type).elem_type
    try:
        if is_list(inner):
            return make(list_type(inner))
        if inner.WhichOneof("value") != "tensor_type":
            kind_of_entries = inner.WhichOneof("value") or "unknown"
            raise UserError(f"entries of type {kind_of_entries} are not supported")
        tensor = inner.tensor_type
        dims = _dims(tensor.shape) if tensor.HasField("shape") else None
        return make(element_type(tensor.elem_type), dims)
    except (ValueError, RecursionError) as error:
        raise UserError("a type cannot be used", why=error) from error


def _dims(shape: onnx.TensorShapeProto) -> Dims:
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in shape.dim
    )


def entry_type(ctx: NodeContext, kind: ListType) -> TensorType:
    """Returns the type of an entry; sizes that may differ between entries are new symbols."""
    if isinstance(kind.item, ListType):
        return TensorType(kind.item, ())
    if kind.dims is None or kind.dims == NOTHING:
        raise Refusal(
            f"the number of dimensions of the entries of {kind.name} is not known",
            "declare the shape of the sequence's tensors, with names for sizes that differ",
        )
    name = next(iter(ctx.names), "entry")
    dims: list[Index] = [
        ctx.session.fresh_symbol(f"{name}.{axis}") if size is None else const(size)
        for axis, size in enumerate(kind.dims)
    ]
    return TensorType(kind.item, tuple(dims))


def type_proto(dtype: DType, shape: tuple[int | None, ...] | None) -> onnx.TypeProto:
    """Returns the ONNX type of a tensor with this dtype and shape, or of a list.

    None stands for an unknown size or an unknown shape.
    """
    if not isinstance(dtype, ListType):
        return onnx.helper.make_tensor_type_proto(_NUMBERS[dtype], shape)
    dims = None if dtype.dims == NOTHING else dtype.dims
    inner = type_proto(dtype.item, dims)
    if dtype.optional:
        return onnx.helper.make_optional_type_proto(inner)
    return onnx.helper.make_sequence_type_proto(inner)
