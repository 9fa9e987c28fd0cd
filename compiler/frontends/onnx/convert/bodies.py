"""Bodies of If, Loop and Scan as graphs, and the types of what leaves them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
from tcc.frontends.onnx.context import NodeContext
from tcc.frontends.onnx.convert.lists import coerced
from tcc.frontends.scope import Operand, Scope, are_among
from tcc.ir.graph import Graph
from tcc.ir.index import Index, as_int
from tcc.ir.lists import joined
from tcc.ir.types import DType, TensorType
from tcc.record import record


@record
class Body:
    """An imported body: its graph, and its outputs as the import knows them."""

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
    known: set[str],
    *,
    condition: TensorType | None = None,
    ranks: Sequence[int | None] = (),
    due: Sequence[DType] = (),
    kept: Sequence[TensorType] = (),
    written: int = 0,
) -> Body:
    """Imports a body for inputs of `types`, with the symbols `known` around it.

    The first outputs get the `ranks` where they have one element, and the element types `due`, so
    that an optional stays one; the first of them may be a `condition` of a type.  `kept` are the
    types of those whose sizes every run checks.  The first input counts the trips after the
    `written` ones.
    """
    scope = ctx.body_scope(name, known)
    here = ctx.inside(scope)
    inputs = []
    for declared, type in zip(proto.input, types, strict=False):
        inputs.append(scope.wrap(scope.builder.input(declared.name or name, type)))
    if written:
        inputs[0] = here.emit("add", inputs[0], written)
    outputs = run_body(ctx, proto, scope, inputs)
    if condition is not None and outputs:
        here.truth(outputs[0])
        outputs = (here.reshape(outputs[0], condition.shape), *outputs[1:])
    carried = zip(outputs, (*due, *(o.dtype for o in outputs[len(due) :])), strict=False)
    outputs = tuple(coerced(here, operand, dtype) for operand, dtype in carried)
    states = (_kept(here, o, type) for o, type in zip(outputs, kept, strict=False))
    outputs = (*states, *outputs[len(kept) :])
    return finished(here, outputs, ranks)


def finished(
    ctx: NodeContext, outputs: Sequence[Operand], ranks: Sequence[int | None] = ()
) -> Body:
    """The body that `ctx` writes; the first outputs get the `ranks` where they have one element."""
    ranked = (of_rank(ctx, o, rank) for o, rank in zip(outputs, ranks, strict=False))
    outputs = (*ranked, *outputs[len(ranks) :])
    return Body(ctx.scope.builder.finish(o.value for o in outputs), outputs)


def is_single(type: TensorType) -> bool:
    """Whether a value of the type has one element, whatever its rank."""
    return all(as_int(dim) == 1 for dim in type.shape)


def of_rank(ctx: NodeContext, operand: Operand, rank: int | None) -> Operand:
    """The operand with `rank` axes where it has one element and a rank is given, else as it is."""
    if rank is None or not is_single(operand.type):
        return operand
    return ctx.reshape(operand, (1,) * rank)


def _kept(ctx: NodeContext, state: Operand, type: TensorType) -> Operand:
    """The state after an iteration, of the sizes before: every run checks those that are open."""
    for axis, size in enumerate(type.shape if state.rank == type.rank else ()):
        if state.shape[axis].terms or size.terms:
            state = ctx.sized(state, axis, size, "an iteration keeps the sizes of a state")
    return state


def run_body(
    ctx: NodeContext, proto: onnx.GraphProto, scope: Scope, inputs: Sequence[Operand] = ()
) -> tuple[Operand, ...]:
    """Imports the nodes of a body into `scope` and returns its outputs."""
    if len(proto.input) != len(inputs):
        raise ctx.fail(
            f"the body {proto.name} has {len(proto.input)} inputs; {len(inputs)} are due"
        )
    for declared, operand in zip(proto.input, inputs, strict=True):
        scope.define(declared.name, operand, ctx.loc)
    scope.define_initializers(proto)
    scope.pending, scope.ends = deque(proto.node), declared_ranks(proto)
    ctx.session.run_nodes(scope)
    return tuple(end(ctx, scope, declared.name) for declared in proto.output)


def inlined(
    ctx: NodeContext, proto: onnx.GraphProto, name: str, inputs: Sequence[Operand] = ()
) -> tuple[Operand, ...]:
    """Imports the nodes of a body among those around it and returns its outputs."""
    scope = Scope(ctx.session, ctx.scope.builder, ctx.scope.opsets, ctx.scope, f"{ctx.loc}/{name}/")
    return run_body(ctx, proto, scope, inputs)


def declared_ranks(proto: onnx.GraphProto) -> dict[str, int | None]:
    """The rank of each result that the graph declares one for."""
    types = {value.name: value.type.tensor_type for value in proto.output}
    return {n: len(t.shape.dim) if t.HasField("shape") else None for n, t in types.items()}


def end(ctx: NodeContext, scope: Scope, name: str) -> Operand:
    """The output `name` of the body that `scope` holds."""
    try:
        operand = scope.find(name)
    except KeyError:
        operand = None
    if operand is None:
        raise ctx.fail(f"the body does not define its output '{name[:200]}'")
    return operand


@dataclass(slots=True)
class Outside:
    """Types of a node's results.  Sizes that only its bodies know become new symbols, one for all
    dimensions that are equal whichever way the run goes; `known` are the symbols around it."""

    ctx: NodeContext
    known: set[str]
    made: dict[tuple[Index, Index], Index] = field(default_factory=dict)

    def joined(self, a: TensorType, b: TensorType, name: str) -> TensorType:
        """The type of a result that is of type `a` or `b`."""
        dtype = joined(a.dtype, b.dtype)
        if dtype is None or a.rank != b.rank:
            raise self.ctx.fail(
                f"'{name}' has type {a!r} one way and {b!r} the other",
                "fix the sizes that decide which way it goes (--input NAME=SHAPE)",
            )
        dims = enumerate(zip(a.shape, b.shape, strict=True))
        return TensorType(dtype, tuple(self._dim(x, y, f"{name}.{n}") for n, (x, y) in dims))

    def _dim(self, x: Index, y: Index, name: str) -> Index:
        if x is y and are_among((x,), self.known):
            return x
        if (x, y) not in self.made:
            self.made[x, y] = self.ctx.session.fresh_symbol(name)
        return self.made[x, y]
