"""One ONNX node as its converter sees it: typed attributes, operands, sizes, emitted nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto
from tcc.errors import UserError
from tcc.frontends.onnx_schema import schema_of
from tcc.frontends.onnx_scope import Operand, Scope, Session
from tcc.frontends.onnx_tensors import element_type
from tcc.ir.graph import GraphBuilder
from tcc.ir.index import Index, IndexLike, as_index, const
from tcc.ir.op import Array
from tcc.ir.types import BOOL, F32, I64, STRING, DType
from tcc.ops import OPS

_KINDS = {
    AttributeProto.INT: "int",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "float",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "string",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSOR: "tensor",
    AttributeProto.GRAPH: "graph",
}
LARGEST = (1 << 63) - 1


class NodeContext:
    """What a converter may ask about its node, and how it adds nodes to the graph."""

    def __init__(self, node: onnx.NodeProto, scope: Scope) -> None:
        self.node = node
        self.scope = scope
        self.domain = "" if node.domain == "ai.onnx" else node.domain
        self.loc = node_location(node, scope)
        self._attributes = {a.name: a for a in node.attribute}
        self.defaults = self._check_schema()
        self.inputs = [self._find(name) for name in node.input]
        self._check_required()

    def _find(self, name: str) -> Operand | None:
        try:
            return self.scope.find(name)
        except KeyError:
            raise UserError(
                f"'{name[:200]}' is read before anything defines it",
                where=self.loc,
                why="no input, initialiser or earlier node has that name",
                hint="the model's nodes must be in topological order, without cycles",
            ) from None

    def _check_schema(self) -> dict[str, AttributeProto]:
        """Checks the node against ONNX's own description; returns the attributes' defaults."""
        if len(self._attributes) != len(self.node.attribute):
            raise self.fail("an attribute is given twice")
        schema: Any = schema_of(self.node, self.opset)  # its stubs leave attributes out
        if schema is None:
            return {}
        for kind, count, least, most in (
            ("inputs", len(self.node.input), schema.min_input, schema.max_input),
            ("outputs", len(self.node.output), schema.min_output, schema.max_output),
        ):
            if not least <= count <= most:
                raise self.fail(f"it has {count} {kind}; {least} to {most} are due")
        for name, attribute in self._attributes.items():
            if name not in schema.attributes:
                raise self.fail(f"opset {self.opset} has no attribute {name[:200]}")
            due = schema.attributes[name].type
            if attribute.type != due.value:
                found = _KINDS.get(attribute.type, str(attribute.type))
                raise self.fail(f"attribute {name} is of kind {found}; {due.name} is due")
        defaults = {n: a.default_value for n, a in schema.attributes.items()}
        return {n: d for n, d in defaults.items() if d.type != AttributeProto.UNDEFINED}

    def _check_required(self) -> None:
        schema: Any = schema_of(self.node, self.opset)
        if schema is None:
            return
        optional = type(schema).FormalParameterOption.Optional
        for number, operand in enumerate(self.inputs):
            declared = schema.inputs[min(number, len(schema.inputs) - 1)]
            if operand is None and declared.option != optional:
                raise self.fail(f"input {number} is missing")

    def inside(self, scope: Scope) -> NodeContext:
        """The same node, emitting into `scope` (that of a body it builds)."""
        other = copy(self)
        other.scope = scope
        return other

    def body_scope(self, name: str) -> Scope:
        """A scope for a body of this node; it sees the names around it."""
        builder = GraphBuilder(f"{self.loc}/{name}", parent=self.scope.builder)
        return Scope(self.session, builder, self.scope.opsets, self.scope, f"{self.loc}/{name}/")

    @property
    def session(self) -> Session:
        return self.scope.session

    @property
    def opset(self) -> int:
        """The version of the node's domain that the model imports."""
        version = self.scope.opsets.get(self.domain)
        if version is None:
            raise self.fail(f"the model imports no opset for the domain '{self.domain}'")
        return version

    def fail(self, why: str, hint: str = "") -> UserError:
        """The error to raise where the node cannot be imported."""
        return UserError(
            f"{self.node.op_type} cannot be imported", where=self.loc, why=why, hint=hint
        )

    # ---- attributes

    def has(self, name: str) -> bool:
        return name in self._attributes

    def has_value(self, name: str) -> bool:
        """Whether the node, or else ONNX's default for its opset, gives the attribute."""
        return name in self._attributes or name in self.defaults

    def _attribute(self, name: str, kind: str) -> Any:
        attribute = self._attributes.get(name) or self.defaults[name]
        found = _KINDS.get(attribute.type, str(attribute.type))
        if found != kind:
            raise self.fail(f"attribute {name} is of kind {found}; {kind} is due")
        return attribute

    def _missing(self, name: str) -> UserError:
        return self.fail(f"attribute {name} is missing")

    def integer(self, name: str, default: int | None = None) -> int:
        if self.has_value(name):
            return int(self._attribute(name, "int").i)
        if default is None:
            raise self._missing(name)
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, default))

    def real(self, name: str, default: float | None = None) -> float:
        if self.has_value(name):
            return float(self._attribute(name, "float").f)
        if default is None:
            raise self._missing(name)
        return default

    def text(self, name: str, default: str | None = None) -> str:
        if self.has_value(name):
            raw: bytes = self._attribute(name, "string").s
            return raw.decode("utf-8", "replace")
        if default is None:
            raise self._missing(name)
        return default

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        if self.has_value(name):
            return tuple(self._attribute(name, "ints").ints)
        if default is None:
            raise self._missing(name)
        return tuple(default)

    def reals(self, name: str, default: Sequence[float] = ()) -> tuple[float, ...]:
        return (
            tuple(self._attribute(name, "floats").floats)
            if self.has_value(name)
            else tuple(default)
        )

    def texts(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        if not self.has_value(name):
            return tuple(default)
        raw = self._attribute(name, "strings").strings
        return tuple(text.decode("utf-8", "replace") for text in raw)

    def tensor(self, name: str) -> Operand:
        """A tensor attribute as a constant."""
        if not self.has_value(name):
            raise self._missing(name)
        array, dtype = self.session.tensors.array(self._attribute(name, "tensor").t, self.loc)
        return self.constant(array, dtype)

    def graph(self, name: str) -> onnx.GraphProto:
        if not self.has_value(name):
            raise self._missing(name)
        found: onnx.GraphProto = self._attribute(name, "graph").g
        return found

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """An attribute that holds the number of an element type."""
        if not self.has_value(name) and default is not None:
            return default
        return element_type(self.integer(name), self.loc)

    def axis(self, value: int, rank: int) -> int:
        """`value` counted from the front; raises `UserError` outside `[-rank, rank)`."""
        if not -rank <= value < rank:
            raise self.fail(f"axis {value} is outside a tensor of rank {rank}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from the front, in the order given."""
        axes = tuple(self.axis(v, rank) for v in values)
        if len(set(axes)) != len(axes):
            raise self.fail(f"axes {tuple(values)} name an axis twice")
        return axes

    # ---- operands

    def optional(self, number: int) -> Operand | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def input(self, number: int) -> Operand:
        found = self.optional(number)
        if found is None:
            raise self.fail(f"input {number} is missing")
        return found

    def present(self) -> list[Operand]:
        """All inputs, of an op of which none may be absent."""
        return [self.input(n) for n in range(len(self.inputs))]

    def wants(self, output: int) -> bool:
        """Whether the model names this output."""
        return output < len(self.node.output) and bool(self.node.output[output])

    def static(self, number: int, what: str) -> Array:
        """The contents of an input that must be constant."""
        operand = self.input(number)
        if operand.array is None:
            raise self.fail(f"{what} must be constant; input {number} is computed")
        return operand.array

    def static_ints(self, number: int, what: str) -> tuple[int, ...]:
        array = self.static(number, what)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise self.fail(f"{what} must be a vector of integers")
        return tuple(int(v) for v in array.reshape(-1))

    def sizes(self, operand: Operand, hint: str, lo: int = 0) -> tuple[Index, ...]:
        """The elements of an integer vector; where only the run knows them, new size symbols.

        `lo` is the least value such a symbol may have; the run refuses smaller ones.
        """
        known = operand.known
        if known is not None:
            return tuple(known.reshape(-1))
        if lo not in operand.bound:
            shape = operand.type.static_shape
            if shape is None or len(shape) > 1:
                raise self.fail(f"{hint} is a tensor of type {operand.type!r}, not a short vector")
            symbols = []
            for element in range(shape[0] if shape else 1):
                fresh = self.session.fresh_symbol(f"{operand.name}.{element}", lo)
                attrs = OPS["bind_size"].attrs(fresh, element)
                self.scope.builder.add(OPS["bind_size"], [operand.value], attrs, loc=self.loc)
                symbols.append(fresh)
            operand.bound[lo] = tuple(symbols)
        return operand.bound[lo]

    # ---- emitting

    def constant(self, array: Any, dtype: DType | None = None) -> Operand:
        name = self.node.output[0] if self.node.output else "const"
        return self.scope.constant(array, dtype, name or "const")

    def part_of(self, operand: Operand, array: Any) -> Operand:
        """`array`, a part or a turn of a constant operand, under that one's name."""
        return self.scope.constant(array, operand.dtype, operand.name)

    def filled(self, value: float | int | bool, dtype: DType) -> Operand:
        """A scalar constant of `dtype`; an empty string stands for any value of strings."""
        if dtype is STRING:
            return self.constant(np.array("", object), STRING)
        return self.constant(np.array(value).astype(dtype.carrier), dtype)

    def size_vector(self, values: Sequence[IndexLike], dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(v) for v in values], dtype)

    def size_scalar(self, value: IndexLike, dtype: DType = I64) -> Operand:
        return self.scope.sizes([as_index(value)], dtype, scalar=True)

    def emit_all(
        self, op: str, operands: Sequence[Operand | None], **attrs: Any
    ) -> tuple[Operand, ...]:
        """All results of a node of `op`; `attrs` are the fields of its attribute type."""
        row = OPS.get(op)
        if row is None:
            raise self.fail(f"it needs the op {op}, which this tcc does not have")
        names = [name for name in self.node.output if name]
        return self.scope.emit(op, operands, row.attrs(**attrs), loc=self.loc, names=names)

    def emit(self, op: str, *operands: Operand | None, **attrs: Any) -> Operand:
        """The first result of a node of `op`."""
        return self.emit_all(op, operands, **attrs)[0]

    def reshape(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        target = tuple(as_index(d) for d in shape)
        return x if target == x.shape else self.emit("reshape", x, shape=target)

    def transpose(self, x: Operand, perm: Sequence[int]) -> Operand:
        if tuple(perm) == tuple(range(x.rank)):
            return x
        return self.emit("transpose", x, perm=tuple(perm))

    def expand(self, x: Operand, shape: Sequence[IndexLike]) -> Operand:
        target = tuple(as_index(d) for d in shape)
        return x if target == x.shape else self.emit("expand", x, shape=target)

    def cast(self, x: Operand, dtype: DType) -> Operand:
        if x.dtype is dtype:
            return x
        if STRING in (x.dtype, dtype):
            return self._cast_text(x, dtype)
        return self.emit("cast", x, to=dtype)

    def _cast_text(self, x: Operand, dtype: DType) -> Operand:
        """Numbers from strings, or strings of numbers; narrow floats by way of f32."""
        if dtype is STRING:
            narrow = x.dtype.is_float and x.dtype.bits < F32.bits
            return self.emit("string_format", self.cast(x, F32) if narrow else x)
        if dtype.is_float and dtype.bits < F32.bits:
            return self.cast(self.emit("string_parse", x, to=F32), dtype)
        return self.emit("string_parse", x, to=dtype)

    def slice_axis(self, x: Operand, axis: int, start: IndexLike, size: IndexLike) -> Operand:
        """`size` elements of one axis from `start` on."""
        starts = [const(0)] * x.rank
        sizes = list(x.shape)
        starts[axis], sizes[axis] = as_index(start), as_index(size)
        if tuple(sizes) == x.shape:
            return x
        return self.emit("slice", x, starts=tuple(starts), steps=(1,) * x.rank, sizes=tuple(sizes))

    def concat(self, parts: Sequence[Operand], axis: int) -> Operand:
        return parts[0] if len(parts) == 1 else self.emit_all("concat", parts, axis=axis)[0]

    def require(self, left: Index, right: Index, reason: str) -> None:
        """Demands that two sizes are equal; every run checks it."""
        attrs = OPS["require"].attrs(left, right, reason)
        self.scope.builder.add(OPS["require"], (), attrs, loc=self.loc)

    def agree(self, x: Operand, shape: Sequence[Index]) -> Operand:
        """`x` with its last dimensions those of `shape`, symbols that differ required to be equal.

        Dimensions that broadcast, and those that are numbers, stay.
        """
        dims = list(x.shape)
        for back in range(1, min(x.rank, len(shape)) + 1):
            own, other = dims[-back], shape[-back]
            if own is not other and own.terms and other.terms:
                self.require(own, other, "operands are combined element by element")
                dims[-back] = other
        if tuple(dims) == x.shape:
            return x
        zeros = (const(0),) * x.rank
        return self.emit("slice", x, starts=zeros, steps=(1,) * x.rank, sizes=tuple(dims))

    def aligned(self, operands: Sequence[Operand | None]) -> list[Operand | None]:
        """Operands of a pointwise op with symbolic dimensions made to agree with earlier ones."""
        result: list[Operand | None] = []
        seen: list[Operand] = []
        for operand in operands:
            if operand is None:
                result.append(None)
                continue
            for earlier in seen:
                operand = self.agree(operand, earlier.shape)
            result.append(operand)
            seen.append(operand)
        return result

    def truth(self, operand: Operand) -> bool | None:
        """The value of a one-element condition, where the import knows it."""
        if operand.dtype is not BOOL:
            raise self.fail(f"a condition has type {operand.type!r}")
        if operand.array is None or operand.array.size != 1:
            return None
        return bool(operand.array.reshape(()))


Converter: TypeAlias = Callable[[NodeContext], Sequence["Operand | None"]]


def node_location(node: onnx.NodeProto, scope: Scope) -> str:
    """Where a node is, for messages: the path of bodies and functions, its name, its op."""
    outputs = [name for name in node.output if name]
    name = node.name or (f"-> {outputs[0]}" if outputs else "unnamed")
    return f"{scope.path}{name[:200]} ({node.op_type})"
