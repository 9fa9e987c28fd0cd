"""Control flow: the attributes of If, Loop and Scan hold their bodies as graphs.

Bodies read values of enclosing graphs directly (`tcc.ir.graph.captures`). `tcc.ir.graph.evaluate`
defines the meaning of these ops, because it evaluates graphs.

Iterations or branches may return results of different sizes. Then the importer writes new size
symbols into the `types` of the outputs, which get their values at run time.
"""

from collections.abc import Sequence

from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, types_of
from tcc.ir.index import Index
from tcc.ir.lists import fits
from tcc.ir.op import Arity, Arrays, OpSpec, OutArrays, OutTypes, Trait, Types
from tcc.ir.types import BOOL, DTYPES, I64, TensorType
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal


@frozen
class IfAttrs:
    """`then` and `otherwise` take no inputs; `types` are output types that hold for both
    branches."""

    then: Graph
    otherwise: Graph
    types: tuple[TensorType, ...]


@frozen
class LoopAttrs:
    """`body` maps (iteration, condition, carried...) to (condition, carried..., rows...).

    `types` are the types of the outputs: the carried values, then the rows stacked along axis 0.
    """

    body: Graph
    types: tuple[TensorType, ...]


@frozen
class ScanAttrs:
    """`body` maps (states..., slices...) to (states..., rows...).

    The last `num_scan_inputs` operands are sliced. The n-th of them is sliced along axis
    `input_axes[n]`, from the last slice to the first if `input_reverse[n]`. The n-th kind of rows
    is stacked along axis `output_axes[n]`, in reverse order if `output_reverse[n]`.
    """

    body: Graph
    num_scan_inputs: int
    input_axes: tuple[int, ...]
    input_reverse: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_reverse: tuple[bool, ...]


def _if_types(types: Types, attrs: IfAttrs) -> OutTypes:
    _scalar(types[0], BOOL, "the condition")
    for body in (attrs.then, attrs.otherwise):
        if body.inputs:
            raise ValueError("a branch of If takes no inputs")
        _check_same(attrs.types, types_of(body.outputs), "a branch")
    return attrs.types


def _loop_types(types: Types, attrs: LoopAttrs) -> OutTypes:
    if types[0] is not None:
        _scalar(types[0], I64, "the trip count")
    if types[1] is not None:
        _scalar(types[1], BOOL, "the condition")
    body = attrs.body
    carried = len(types) - 2
    if len(body.inputs) != 2 + carried or len(body.outputs) != 1 + len(attrs.types):
        raise ValueError("the body's inputs or outputs do not match the carried values")
    _scalar(body.outputs[0].type, BOOL, "the condition")
    _check_same((body.inputs[1].type,), (body.outputs[0].type,), "the condition")
    _check_same(types_of(body.inputs[2:]), types[2:], "a carried value")
    _check_same(types_of(body.inputs[2:]), attrs.types[:carried], "a carried value")
    results = types_of(body.outputs[1:])
    rows = tuple(TensorType(t.dtype, t.shape[1:]) for t in attrs.types[carried:])
    _check_same((*attrs.types[:carried], *rows), results, "a result of the body")
    return attrs.types


def _scan_types(types: Types, attrs: ScanAttrs) -> OutTypes:
    body = attrs.body
    present = [t for t in types if t is not None]
    states = len(present) - attrs.num_scan_inputs
    if len(present) != len(types) or len(body.inputs) != len(present) or states < 0:
        raise ValueError("the body's inputs do not match the operands")
    if attrs.num_scan_inputs < 1:
        raise ValueError("at least one operand to scan over is due")
    if len(body.outputs) != states + len(attrs.output_axes):
        raise ValueError("the body's outputs do not match the states and the output axes")
    length = scan_length(present[states:], attrs.input_axes)
    slices = [drop_axis(t, a) for t, a in zip_equal(present[states:], attrs.input_axes)]
    _check_same(types_of(body.inputs), (*present[:states], *slices), "an operand")
    _check_same(tuple(present[:states]), types_of(body.outputs[:states]), "a state")
    rows = tuple(
        insert_axis(value.type, axis, length)
        for value, axis in zip_equal(body.outputs[states:], attrs.output_axes)
    )
    return (*(v.type for v in body.inputs[:states]), *rows)


def scan_length(sources: Sequence[TensorType], axes: Sequence[int]) -> Index:
    """Returns the number of iterations; raises ValueError if the scanned axes differ in size."""
    lengths = [t.shape[axis] for t, axis in zip_equal(sources, axes)]
    if any(length is not lengths[0] for length in lengths):
        lengths_text = ", ".join(length.key for length in lengths)
        raise ValueError(f"the scanned axes have different lengths ({lengths_text})")
    return lengths[0]


def drop_axis(type: TensorType, axis: int) -> TensorType:
    """Returns `type` without one axis; raises ValueError if the axis does not exist."""
    if not 0 <= axis < type.rank:
        raise ValueError(f"axis {axis} of {type!r} does not exist")
    return TensorType(type.dtype, replaced(type.shape, axis))


def insert_axis(type: TensorType, axis: int, size: Index) -> TensorType:
    """Returns `type` with one more axis; raises ValueError if the position does not exist."""
    if not 0 <= axis <= type.rank:
        raise ValueError(f"a new axis {axis} has no place in {type!r}")
    return TensorType(type.dtype, (*type.shape[:axis], size, *type.shape[axis:]))


def _scalar(type: TensorType | None, dtype: object, what: str) -> None:
    """Checks that `type` is a scalar of `dtype`; ONNX also allows tensors of one element."""
    if type is None or type.dtype is not dtype or type.static_shape not in ((), (1,)):
        raise ValueError(f"{what} is not a scalar of type {dtype!r}")


def _check_same(due: Types, actual: Types, what: str) -> None:
    """Checks that two lists of types agree.

    The lists must have equal lengths, and each pair of types must have equal element types, ranks
    and constant dims. A symbolic dim agrees with any dim. Raises ValueError otherwise.
    """
    if len(due) != len(actual):
        raise ValueError(f"{len(due)} values are due, there are {len(actual)}")
    for a, b in zip_equal(due, actual):
        is_equal = a is not None and b is not None and fits(a.dtype, b.dtype) and a.rank == b.rank
        if not is_equal or any(
            not x.terms and not y.terms and x is not y
            for x, y in zip_equal(a.shape if a else (), b.shape if b else ())
        ):
            raise ValueError(f"{what} has type {b!r}, {a!r} is due")


def _reference(arrays: Arrays, attrs: object) -> OutArrays:
    raise InternalError("control flow is evaluated by ir.evaluate")


def _row(name: str, attrs: type, arity: Arity, infer: object, doc: str) -> OpSpec:
    return OpSpec(
        name,
        attrs,
        arity,
        infer,  # type: ignore[arg-type]
        _reference,
        tuple(DTYPES.values()),
        doc,
        traits=Trait.OPAQUE | Trait.LISTS,
    )


_MANY = 1 << 16

OPS = (
    _row("if", IfAttrs, (1, 1), _if_types, "The results of one of two bodies."),
    _row("loop", LoopAttrs, (2, _MANY), _loop_types, "A body repeated while its condition holds."),
    _row("scan", ScanAttrs, (1, _MANY), _scan_types, "A body over the slices of its operands."),
)
