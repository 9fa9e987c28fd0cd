"""The context of a converter for one ONNX node: typed attributes, operands, sizes, new nodes."""

import itertools
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Annotated, Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto
from tcc.errors import UserError, printable
from tcc.frontends.emit import Emitter, checked_axis, parameters, with_optional
from tcc.frontends.onnx.schema import domain_of, schema_of
from tcc.frontends.onnx.scope import OnnxScope, OnnxSession
from tcc.frontends.onnx.tensors import element_type
from tcc.frontends.operand import Operand, Operands, Refusal
from tcc.ir.op import Array
from tcc.ir.types import BOOL, DType

LARGEST = (1 << 63) - 1


Results: TypeAlias = Operand | Operands
Axis: TypeAlias = Annotated[int, "an axis of the first input, counted from the front"]
# A function whose parameters `NodeContext.run` fills.
Converter: TypeAlias = Callable[..., Results]
Converters: TypeAlias = dict[str, Converter]


class NodeContext(Emitter):
    """Reads the attributes and operands of one node, and adds nodes to the graph."""

    scope: OnnxScope

    def __init__(self, node: onnx.NodeProto, scope: OnnxScope) -> None:
        self.node = node
        self.scope = scope
        self.domain = domain_of(node)
        self.loc = node_location(node, scope)
        self.operation = node.op_type
        self.names = [name for name in node.output if name]
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
        """Checks the node against ONNX's schema; returns the defaults of its attributes."""
        if len(self._attributes) != len(self.node.attribute):
            raise self.fail("an attribute is given twice")
        if any(attribute.ref_attr_name for attribute in self.node.attribute):
            raise self.fail("an attribute is that of a function, but the node is in none")
        schema: Any = schema_of(self.node, self.opset)  # Any: onnx's type stubs lack `attributes`
        if schema is None:
            return {}
        for kind, count, minimum, maximum in (
            ("inputs", len(self.node.input), schema.min_input, schema.max_input),
            ("outputs", len(self.node.output), schema.min_output, schema.max_output),
        ):
            if not minimum <= count <= maximum:
                raise self.fail(f"it has {count} {kind}; {minimum} to {maximum} are due")
        for name, attribute in self._attributes.items():
            if name not in schema.attributes:
                raise self.fail(f"opset {self.opset} has no attribute {name[:200]}")
            due = schema.attributes[name].type
            if attribute.type != due.value:
                actual = _kind(attribute)
                raise self.fail(f"attribute {name} is of kind {actual}; {due.name} is due")
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

    @property
    def session(self) -> OnnxSession:
        return self.scope.session

    @property
    def opset(self) -> int:
        """The version of the node's domain that the model imports."""
        version = self.scope.opsets.get(self.domain)
        if version is None:
            raise self.fail(f"the model imports no opset for the domain '{self.domain}'")
        return version

    # ---- attributes

    def has(self, name: str) -> bool:
        return name in self._attributes

    def has_value(self, name: str) -> bool:
        """True if the node gives the attribute, or ONNX has a default for it in the node's
        opset."""
        return name in self._attributes or name in self.defaults

    def _value(self, name: str, kind: str, default: Any = None) -> Any:
        attribute = self._attributes.get(name) or self.defaults.get(name)
        if attribute is not None:
            if _kind(attribute) != kind:
                raise Refusal(f"attribute {name} is of kind {_kind(attribute)}; {kind} is due")
            return onnx.helper.get_attribute_value(attribute)
        if default is None:
            raise Refusal(f"attribute {name} is missing")
        return default

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._value(name, "int", default))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, default))

    def real(self, name: str, default: float | None = None) -> float:
        return float(self._value(name, "float", default))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, "string", default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        return tuple(self._value(name, "ints", default))

    def reals(self, name: str) -> tuple[float, ...]:
        return tuple(self._value(name, "floats", ()))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(text.decode("utf-8", "replace") for text in self._value(name, "strings", ()))

    def tensor(self, name: str) -> Operand:
        """Returns a tensor attribute as a constant."""
        array, dtype = self.session.tensors.array(self._value(name, "tensor"))
        return self.constant(array, dtype)

    def axis_of(self, name: str, rank: int, default: int | None = None) -> int:
        """Returns an attribute that is an axis of a tensor of `rank`, counted from the front."""
        return checked_axis(self.integer(name, default), rank)

    def graph(self, name: str) -> onnx.GraphProto:
        body: onnx.GraphProto = self._value(name, "graph")
        return body

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """Returns the element type whose ONNX number an attribute holds."""
        if not self.has_value(name) and default is not None:
            return default
        return element_type(self.integer(name))

    # ---- operands

    def optional(self, number: int) -> Operand | None:
        return self.inputs[number] if number < len(self.inputs) else None

    def input(self, number: int) -> Operand:
        operand = self.optional(number)
        if operand is None:
            raise Refusal(f"input {number} is missing")
        return operand

    def present(self, count: int | None = None) -> list[Operand]:
        """Returns the first `count` inputs, by default all; raises `UserError` if one is absent."""
        return [self.input(n) for n in range(len(self.inputs) if count is None else count)]

    def run(self, converter: Converter) -> Operands:
        """Returns the results of a converter for this node.

        The converter's parameter `ctx` is this context.  Its other positional parameters are the
        node's first inputs; an input whose parameter has a default may be absent, and an attribute
        of the parameter's name, as older opsets have it, takes its place.  Parameters by keyword
        are attributes, read as their annotations say.  Raises `UserError` where an input or
        attribute that it requires is absent.
        """
        operands: list[Any] = []
        attributes, numbers = {}, itertools.count()
        for parameter in parameters(converter):
            if parameter.name == "ctx":
                operands.append(self)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                attributes[parameter.name] = self._attribute_for(parameter)
            else:
                operands.append(self._input_for(parameter, next(numbers)))
        results = converter(*operands, **attributes)
        return (results,) if isinstance(results, Operand) else results

    def _input_for(self, parameter: Parameter, number: int) -> Operand | None:
        if self.domain or not self.has(parameter.name):
            required = parameter.default is parameter.empty
            return self.input(number) if required else self.optional(number)
        value = onnx.helper.get_attribute_value(self._attributes[parameter.name])
        if isinstance(value, float):
            return self.input(0).like(value)
        return self.constant(np.array(value))

    def _attribute_for(self, parameter: Parameter) -> Any:
        name, kind, value = parameter.name, parameter.annotation, parameter.default
        if value is parameter.empty or self.has_value(name):
            value = READERS[kind](self, name)
        is_axis = kind in (Axis, Axis | None) and value is not None
        return checked_axis(value, self.input(0).rank) if is_axis else value

    def wants(self, output: int) -> bool:
        """True if the model names this output."""
        return output < len(self.node.output) and bool(self.node.output[output])

    @property
    def wanted(self) -> int:
        """The number of outputs up to the last one that the model names."""
        return max((n + 1 for n in range(len(self.node.output)) if self.wants(n)), default=1)

    def truth(self, operand: Operand) -> bool | None:
        """Returns the value of a one-element condition; None if it is known only at run time."""
        size = operand.type.count
        if operand.dtype is not BOOL or size not in (1, None):
            raise Refusal(f"a condition has type {operand.type!r}")
        if operand.array is None:
            return None
        return bool(operand.array.reshape(()))


# How attributes are read, by the annotations of converters' parameters and of rows' fields.
READERS = with_optional(
    {
        int: NodeContext.integer,
        tuple[int, ...]: NodeContext.integers,
        float: NodeContext.real,
        tuple[float, ...]: NodeContext.reals,
        bool: NodeContext.flag,
        str: NodeContext.text,
        tuple[str, ...]: NodeContext.texts,
        DType: NodeContext.dtype,
        Axis: NodeContext.integer,
    }
)


def _kind(attribute: AttributeProto) -> str:
    name: str = AttributeProto.AttributeType.Name(attribute.type)
    return name.lower()


def named(*converters: Converter) -> Converters:
    """Returns converters by the operators that they are called after: `_eye_like` converts
    `EyeLike`."""
    return {c.__name__.title().replace("_", ""): c for c in converters}


def static(operand: Operand, what: str) -> Array:
    """Returns the contents of an operand that must be constant; `what` names it in messages."""
    if operand.array is None:
        raise Refusal(f"{what} must be constant; the model computes it")
    return operand.array


def static_ints(operand: Operand, what: str) -> tuple[int, ...]:
    """Returns the elements of a constant vector of integers."""
    array = static(operand, what)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise Refusal(f"{what} must be a vector of integers")
    return tuple(int(v) for v in array.reshape(-1))


def node_location(node: onnx.NodeProto, scope: OnnxScope) -> str:
    """Returns a node's location for messages.

    It consists of the path of bodies and functions, the node's name, and its operator.
    """
    outputs = [name for name in node.output if name]
    name = node.name or (f"-> {outputs[0]}" if outputs else "unnamed")
    return printable(f"{scope.path}{name[:200]} ({node.op_type[:80]})")
