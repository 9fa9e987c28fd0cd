"""Imports bodies of If, Loop and Scan as graphs, and joins the types of their results."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
from tcc.frontends.onnx.context import NodeContext
from tcc.frontends.onnx.convert.lists import coerced
from tcc.frontends.onnx.scope import OnnxScope
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.scope import are_among
from tcc.frozen import frozen
from tcc.ir.graph import Graph
from tcc.ir.index import Index, as_int
from tcc.ir.lists import joined
from tcc.ir.types import DType, TensorType
from tcc.zipped import zip_equal


@frozen
class Body:
    """An imported body: its graph, and its outputs as operands of the import."""

    graph: Graph
    outputs: tuple[Operand, ...]

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.graph.outputs)


def import_body(
    ctx: NodeContext,
    proto: onnx.GraphProto,
    name: str,
    types: Sequence[TensorType],
    symbols: set[str],
    *,
    condition: TensorType | None = None,
    ranks: Sequence[int | None] = (),
    due: Sequence[DType] = (),
    fixed_types: Sequence[TensorType] = (),
    first_trip: int = 0,
) -> Body:
    """Imports a body for inputs of `types`; the body may use the enclosing `symbols`.

    With a `condition`, the first output is a condition of that type. The first input counts the
    iterations from `first_trip` on. Three lists have an entry for each of the first outputs. An
    output of one element is reshaped to its rank in `ranks`. An output is converted to its dtype in
    `due`, so that an optional stays an optional. Every run checks that an output has the sizes of
    its type in `fixed_types`.
    """
    scope = ctx.scope.body(name, symbols)
    with ctx.inside(scope).writing() as here:
        inputs = [
            scope.input(declared.name or name, type)
            for declared, type in zip(proto.input, types, strict=False)
        ]
        if first_trip:
            inputs[0] = inputs[0].add(first_trip)
        outputs = run_body(ctx, proto, scope, inputs)
        if condition is not None and outputs:
            here.truth(outputs[0])
            outputs = (outputs[0].reshape(condition.shape), *outputs[1:])
        carried = zip(outputs, (*due, *(o.dtype for o in outputs[len(due) :])), strict=False)
        outputs = tuple(coerced(here, operand, dtype) for operand, dtype in carried)
        states = (_with_sizes_of(o, type) for o, type in zip(outputs, fixed_types, strict=False))
        outputs = (*states, *outputs[len(fixed_types) :])
        return finished(here, outputs, ranks)


def finished(
    ctx: NodeContext, outputs: Sequence[Operand], ranks: Sequence[int | None] = ()
) -> Body:
    """Returns the body whose nodes `ctx` has added.

    `ranks` has entries for the first outputs: an output of one element is reshaped to its rank.
    """
    ranked = (of_rank(o, rank) for o, rank in zip(outputs, ranks, strict=False))
    outputs = (*ranked, *outputs[len(ranks) :])
    return Body(ctx.scope.builder.finish(o.value for o in outputs), outputs)


def is_single(type: TensorType) -> bool:
    """True if a value of the type has one element, whatever its rank."""
    return all(as_int(dim) == 1 for dim in type.shape)


def of_rank(operand: Operand, rank: int | None) -> Operand:
    """Returns the operand with `rank` axes if it has one element and a rank is given, else
    unchanged."""
    if rank is None or not is_single(operand.type):
        return operand
    return operand.reshape((1,) * rank)


def _with_sizes_of(state: Operand, type: TensorType) -> Operand:
    """Returns the state after an iteration; every run checks that it keeps the symbolic sizes of
    `type`."""
    for axis, size in enumerate(type.shape if state.rank == type.rank else ()):
        if state.shape[axis].terms or size.terms:
            state = state.sized(axis, size, "an iteration keeps the sizes of a state")
    return state


def run_body(
    ctx: NodeContext, proto: onnx.GraphProto, scope: OnnxScope, inputs: Sequence[Operand] = ()
) -> tuple[Operand, ...]:
    """Imports the nodes of a body into `scope` and returns its outputs."""
    if len(proto.input) != len(inputs):
        raise Refusal(f"the body {proto.name} has {len(proto.input)} inputs; {len(inputs)} are due")
    for declared, operand in zip_equal(proto.input, inputs):
        scope.define(declared.name, operand)
    scope.define_initializers(proto)
    scope.pending, scope.ends = deque(proto.node), declared_ranks(proto)
    ctx.session.run_nodes(scope)
    return tuple(end(scope, declared.name) for declared in proto.output)


def inlined(
    ctx: NodeContext, proto: onnx.GraphProto, name: str, inputs: Sequence[Operand] = ()
) -> tuple[Operand, ...]:
    """Inlines the nodes of a body into the enclosing graph and returns its outputs."""
    scope = OnnxScope(ctx.session, ctx.scope.builder, ctx.scope, f"{ctx.loc}/{name}/")
    return run_body(ctx, proto, scope, inputs)


def declared_ranks(proto: onnx.GraphProto) -> dict[str, int | None]:
    """Returns the ranks that the graph declares for its results, by name."""
    types = {value.name: value.type.tensor_type for value in proto.output}
    return {n: len(t.shape.dim) if t.HasField("shape") else None for n, t in types.items()}


def end(scope: OnnxScope, name: str) -> Operand:
    """Returns the output `name` of the body in `scope`."""
    operand = scope.result(name)
    if not operand:
        raise Refusal(f"the body does not define its output '{name[:200]}'")
    return operand


@dataclass(slots=True)
class Outside:
    """The types of a node's results, outside of its bodies.

    Sizes that are known only inside a body become new symbols. Dimensions that are equal in every
    body share one symbol. `symbols` are the enclosing symbols.
    """

    ctx: NodeContext
    symbols: set[str]
    result_sizes: dict[tuple[Index, Index], Index] = field(default_factory=dict)

    def joined(self, a: TensorType, b: TensorType, name: str) -> TensorType:
        """Returns the type of a result that has type `a` or `b`."""
        dtype = joined(a.dtype, b.dtype)
        if dtype is None or a.rank != b.rank:
            raise Refusal(
                f"'{name}' has type {a!r} one way and {b!r} the other",
                "fix the sizes that decide which way it goes (--input NAME=SHAPE)",
            )
        dims = enumerate(zip_equal(a.shape, b.shape))
        return TensorType(dtype, tuple(self._dim(x, y, f"{name}.{n}") for n, (x, y) in dims))

    def _dim(self, x: Index, y: Index, name: str) -> Index:
        if x is y and are_among((x,), self.symbols):
            return x
        if (x, y) not in self.result_sizes:
            self.result_sizes[x, y] = self.ctx.session.fresh_symbol(name)
        return self.result_sizes[x, y]
