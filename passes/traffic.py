"""Bytes that a model moves through memory: node by node, and as its kernels do.

    matmul -> add -> relu      unfused: x, w, y + y, b, z + z, r      one kernel: x, w, b, r

A run reads every element of an operand that is needed at least once, and writes every result; what
a kernel keeps to itself moves nothing.  A gather counts the rows it takes, not its table; a weight
counts once however often it is read; reshapes and what depends on weights alone count nothing.
Requires fixed sizes and trip counts: without them the answer is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Read, Scalar, indices_in, walk
from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.index import Index, Var, as_int, free_vars
from tcc.ir.types import TensorType, element_count
from tcc.ops.control import IfAttrs, LoopAttrs, ScanAttrs, scan_length
from tcc.passes.fuse.compose import node_expr
from tcc.passes.layout.assign import Placed
from tcc.passes.program.lower_graph import place_graph
from tcc.record import record

# Movement of elements that stay in row-major order: the same storage under another type.
_VIEWS = frozenset({"reshape", "identity"})


@record
class Traffic:
    """One run of the kernels: how many are launched, bytes moved, how many of these are weights."""

    launches: int
    bytes: int
    weights: int


@dataclass(slots=True)
class _Count:
    """Launches, bytes of activations, and of each constant as far as it is read."""

    launches: int = 0
    activations: int = 0
    constants: dict[str, int] = field(default_factory=dict)

    @property
    def weights(self) -> int:
        return sum(self.constants.values())

    @property
    def total(self) -> int:
        return self.activations + self.weights


class _UnknownError(Exception):
    """A size or a number of trips that only the run knows."""


def unfused_bytes(graph: Graph) -> int | None:
    """What a run of `graph` moves with each node a kernel of its own."""
    count = _Count()
    try:
        _count_nodes(graph, count, {}, 1)
    except _UnknownError:
        return None
    return count.total


def traffic(placed: Placed) -> Traffic | None:
    """What a run of the kernels of `placed` moves."""
    count = _Count()
    try:
        _count_steps(placed, count, {}, 1)
    except _UnknownError:
        return None
    return Traffic(count.launches, count.total, count.weights)


# ---- walks: what runs, how often ----------------------------------------------------------------


def _count_nodes(graph: Graph, count: _Count, outer: Mapping[Value, str], trips: int) -> None:
    """Every node as a kernel of its own; nodes that only weights reach are left out."""
    constants = {**outer, **_digests(graph)}
    for node in graph.nodes:
        if bodies(node):
            _count_bodies(graph, node, count, constants, trips, fused=False)
        elif all(v is None or v in constants for v in node.inputs):
            constants.update((v, f"{node.loc}/{v.name}") for v in node.outputs)
        elif node.op.name not in _VIEWS:
            _add(node_expr(node), node.inputs, node.outputs, count, constants, trips)


def _count_steps(placed: Placed, count: _Count, outer: Mapping[Value, str], trips: int) -> None:
    constants = {**outer, **_digests(placed.graph)}
    for step in placed.steps:
        kernel, node = step.kernel, step.node
        if kernel is not None and kernel.condition is not None:
            continue
        if kernel is not None:
            count.launches += 0 if step.every else trips
            _add(kernel.expr, kernel.operands, kernel.results, count, constants, trips)
        elif node is not None and bodies(node):
            _count_bodies(placed.graph, node, count, constants, trips, fused=True)
        elif node is not None:
            _add(None, node.inputs, node.outputs, count, constants, trips)


def _count_bodies(
    graph: Graph,
    node: Node,
    count: _Count,
    constants: Mapping[Value, str],
    trips: int,
    *,
    fused: bool,
) -> None:
    """Bodies as often as they run; of two branches the one that moves more."""
    times = trips * _trips(graph, node)
    found: list[_Count] = []
    for body in bodies(node):
        inner = _Count(constants=count.constants)
        if fused:
            placed = place_graph(body, outer=dict.fromkeys(constants, graph))
            _count_steps(placed, inner, constants, times)
        else:
            _count_nodes(body, inner, constants, times)
        found.append(inner)
    count.launches += max(inner.launches for inner in found)
    count.activations += max(inner.activations for inner in found)


def _trips(graph: Graph, node: Node) -> int:
    match node.attrs:
        case ScanAttrs() as attrs:
            types = [v.type for v in node.inputs if v is not None]
            return _known(scan_length(types[-attrs.num_scan_inputs :], attrs.input_axes))
        case LoopAttrs() if (array := graph.constant(node.inputs[0])) is not None:
            return int(array)
        case IfAttrs():
            return 1
        case _:
            raise _UnknownError


def _digests(graph: Graph) -> dict[Value, str]:
    return {value: handle.digest for value, handle in graph.constants.items()}


# ---- bytes ------------------------------------------------------------------------------------


def _known(size: Index) -> int:
    known = as_int(size)
    if known is None:
        raise _UnknownError
    return known


def _add(
    expr: Expr | None,
    operands: Sequence[Value | None],
    results: Sequence[Value],
    count: _Count,
    constants: Mapping[Value, str],
    trips: int,
) -> None:
    """One thing that reads operands and writes results; without an `expr` it reads all of them."""
    for number, value in enumerate(operands):
        if value is None:
            continue
        read = _elements(value.type)
        if expr is not None:
            read = min(read, _needed(expr, number))
        read = read * value.type.dtype.bits // 8
        if value in constants:
            key = constants[value]
            count.constants[key] = max(count.constants.get(key, 0), read)
        else:
            count.activations += trips * read
    for value in results:
        count.activations += trips * (_elements(value.type) * value.type.dtype.bits // 8)


def _elements(type_: TensorType) -> int:
    return _known(element_count(type_.shape))


def _needed(expr: Expr, operand: int) -> int:
    """How many elements of an operand are read, counted once per read of different iterators."""
    total = 0
    for stage in expr.stages:
        inside = {*stage.loops}
        for scalar in dict.fromkeys(walk(*stage.body)):
            if isinstance(scalar, Read) and scalar.source == operand:
                total += prod(_known(extent(v)) for v in _varies(scalar) & inside)
    return total


def _varies(node: Scalar) -> set[Var]:
    """The variables a read moves with, those of data-dependent indices included."""
    indices = (index for scalar in walk(node) for index in indices_in(scalar))
    return {v for index in indices for v in free_vars(index)}
