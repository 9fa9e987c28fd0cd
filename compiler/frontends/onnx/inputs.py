"""The model's inputs: element types, dimensions, and the shapes that the user fixes."""

from collections.abc import Sequence

import onnx
from tcc.errors import UserError
from tcc.frontends.inputs import Shapes, check_names, check_rank, contradiction
from tcc.frontends.onnx.scope import OnnxScope
from tcc.frontends.onnx.tensors import element_type
from tcc.frontends.onnx.types import is_list, list_type
from tcc.frontends.place import placed
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.zipped import zip_equal

_LONGEST_NAME = 1 << 16


def with_defaults(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of the initialisers, some of which may be inputs."""
    return {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}


def define_inputs(scope: OnnxScope, graph: onnx.GraphProto, shapes: Shapes) -> None:
    """Defines the graph's inputs.

    They are the inputs without an initialiser, and those that `shapes` names, whose initialisers
    are ignored.

    A dimension name is the same symbol wherever it appears; a symbolic dimension without a name
    gets its own symbol. `shapes` replaces dimensions by sizes or names; a size given to a named
    dimension holds everywhere for that name.
    """
    defaulted = with_defaults(graph) - set(shapes)
    inputs = [value for value in graph.input if value.name not in defaulted]
    check_names(shapes, [value.name for value in inputs], "model")
    dims = _Dimensions(scope, inputs, shapes)
    for value in inputs:
        with placed(f"input {value.name[:200]}"):
            if is_list(value.type):
                _define_list(scope, value)
                continue
            type = TensorType(element_type(value.type.tensor_type.elem_type), dims.shape(value))
            scope.define(value.name, scope.input(value.name, type))


def _define_list(scope: OnnxScope, value: onnx.ValueInfoProto) -> None:
    """Defines a sequence or an optional; every run checks the types of its entries."""
    kind = list_type(value.type)
    port = scope.input(value.name, TensorType(kind, ()))
    attrs = OPS["list_expect"].attrs(kind)
    (checked,) = scope.emit("list_expect", [port], attrs, names=(value.name,))
    scope.define(value.name, checked)


def check_name(name: str) -> None:
    """Raises `UserError` for a name that an artifact cannot hold as text."""
    if "\0" in name or len(name) > _LONGEST_NAME or not _is_text(name):
        raise UserError(
            "an input or output has an impossible name",
            where=ascii(name[:80]),
            why=f"names are text without zero bytes, of at most {_LONGEST_NAME} characters",
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def declared_size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Returns the size or the name of a dimension; None for a symbolic one without a usable name.

    Paddle writes sizes below zero for symbolic dimensions, and "?" and "-1" for names.
    """
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    return dim.dim_param if any(map(str.isalpha, dim.dim_param)) else None


class _Dimensions:
    """The symbol or size of each dimension name."""

    def __init__(
        self, scope: OnnxScope, inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes
    ) -> None:
        self._scope = scope
        self._shapes = shapes
        self._named: dict[str, Index] = {}
        for value in inputs:
            self._check(value)
            if value.name in shapes and _declared(value):
                self._fix(value, shapes[value.name])

    def _check(self, value: onnx.ValueInfoProto) -> None:
        if not value.name:
            raise UserError("an input has no name")
        check_name(value.name)
        kind = value.type.WhichOneof("value")
        if is_list(value.type):
            if value.name in self._shapes:
                raise UserError(
                    f"input '{value.name}' is a sequence or an optional, which has no shape",
                    where="--input",
                )
            return
        if kind != "tensor_type":
            raise UserError(
                f"inputs of type {kind or 'unknown'} are not supported", where=value.name[:200]
            )

    def _fix(self, value: onnx.ValueInfoProto, shape: Sequence[int | str]) -> None:
        declared = value.type.tensor_type.shape.dim
        check_rank(value.name, shape, len(declared), "model declares")
        for dim, size in zip_equal(declared, shape):
            declared_dim = declared_size(dim)
            if isinstance(declared_dim, int) and declared_dim != size:
                raise contradiction(value.name, size, "model declares", declared_dim)
            if isinstance(declared_dim, str) and isinstance(size, int):
                fixed = self._named.setdefault(declared_dim, const(_size(size, value.name)))
                if as_int(fixed) != size:
                    raise UserError(
                        f"dimension '{declared_dim}' is given two sizes",
                        where=f"input {value.name}",
                        why=f"{fixed.key} and {size}",
                    )

    def shape(self, value: onnx.ValueInfoProto) -> tuple[Index, ...]:
        fixed_shape = self._shapes.get(value.name)
        if not _declared(value) and fixed_shape is None:
            raise UserError(
                "the model does not say how many dimensions an input has",
                hint="give its shape (--input NAME=SHAPE)",
            )
        declared = list(value.type.tensor_type.shape.dim)
        if fixed_shape is not None:
            return tuple(
                const(_size(size, value.name)) if isinstance(size, int) else self._symbol(size)
                for size in fixed_shape
            )
        return tuple(self._dim(dim, f"{value.name}.{n}") for n, dim in enumerate(declared))

    def _dim(self, dim: onnx.TensorShapeProto.Dimension, name: str) -> Index:
        size = declared_size(dim)
        if isinstance(size, int):
            return const(size)
        return self._scope.session.fresh_symbol(name) if size is None else self._symbol(size)

    def _symbol(self, name: str) -> Index:
        if name not in self._named:
            self._named[name] = self._scope.session.fresh_symbol(name)
        return self._named[name]


def _declared(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.WhichOneof("value") == "tensor_type"
    return tensor and bool(value.type.tensor_type.HasField("shape"))


def _size(size: int, name: str) -> int:
    if size < 0:
        raise UserError(f"the shape given for input '{name}' has a negative size", why=f"{size}")
    return size
