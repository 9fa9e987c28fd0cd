"""Counts the bytes that a model moves through memory: node by node, and by its kernels.

    matmul -> add -> relu      three kernels: x, w, y | y, b, z | z, r      one kernel: x, w, b, r

A kernel reads every needed element of an operand once, and writes every result.  Values inside a
kernel move nothing.  A gather counts the rows that it reads, not its whole table.  A weight counts
once, even if it is read several times.  Reshapes, and nodes that depend on weights alone, count
nothing.  The result is None unless all sizes and numbers of iterations are fixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tcc.frozen import frozen
from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Read, Scalar, indices_in, walk
from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.index import Index, Var, as_int, free_vars
from tcc.ir.types import TensorType, element_count
from tcc.ops.control import IfAttrs, LoopAttrs, ScanAttrs, scan_length
from tcc.passes.fuse.compose import node_expr
from tcc.passes.layout.assign import Placed

# Ops whose result has the operand's elements in the same row-major order.
_VIEWS = frozenset({"reshape", "identity"})


@frozen
class Traffic:
    """The traffic of a run: kernels launched, bytes moved, and how many of the bytes are
    weights.
    """

    launches: int
    bytes: int
    weights: int


@dataclass(slots=True)
class _Count:
    """Counts of launches, bytes of activations, and bytes read of each constant."""

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
    """Raised for a size or a number of iterations that only the run decides."""


def unfused_bytes(graph: Graph) -> int | None:
    """Returns the bytes that a run of `graph` moves if each node is a kernel of its own; None if
    sizes are symbolic."""
    count = _Count()
    try:
        _count_nodes(graph, count, {}, 1)
    except _UnknownError:
        return None
    return count.total


def traffic(placed: Placed, placed_bodies: Mapping[Graph, Placed]) -> Traffic | None:
    """Returns what a run of the kernels of `placed` moves; None if sizes are symbolic.

    `placed_bodies` has the kernels of the bodies of loops and branches.
    """
    count = _Count()
    try:
        _count_steps(placed, count, {}, 1, placed_bodies)
    except _UnknownError:
        return None
    return Traffic(count.launches, count.total, count.weights)


# ---- the nodes and steps that run, and how often -------------------------------------------------


def _count_nodes(graph: Graph, count: _Count, outer: Mapping[Value, str], trips: int) -> None:
    """Counts every node as a kernel of its own, which runs `trips` times.

    Nodes that depend on weights alone are left out.  `outer` has the names of the constants of
    enclosing graphs.
    """
    constants = {**outer, **_digests(graph)}
    for node in graph.nodes:
        if bodies(node):
            _count_bodies(graph, node, count, constants, trips)
        elif all(v is None or v in constants for v in node.inputs):
            constants.update((v, f"{node.loc}/{v.name}") for v in node.outputs)
        elif node.op.name not in _VIEWS:
            _add(node_expr(node), node.inputs, node.outputs, count, constants, trips)


def _count_steps(
    placed: Placed,
    count: _Count,
    outer: Mapping[Value, str],
    trips: int,
    placed_bodies: Mapping[Graph, Placed],
) -> None:
    """Counts every kernel and every other node that runs."""
    constants = {**outer, **_digests(placed.graph)}
    for step in placed.steps:
        kernel, node = step.kernel, step.node
        if kernel is not None and kernel.condition is not None:
            continue
        if kernel is not None:
            count.launches += 0 if step.every else trips
            _add(kernel.expr, kernel.operands, kernel.results, count, constants, trips)
        elif node is not None and bodies(node):
            _count_bodies(placed.graph, node, count, constants, trips, placed_bodies)
        elif node is not None:
            _add(None, node.inputs, node.outputs, count, constants, trips)


def _count_bodies(
    graph: Graph,
    node: Node,
    count: _Count,
    constants: Mapping[Value, str],
    trips: int,
    placed_bodies: Mapping[Graph, Placed] | None = None,
) -> None:
    """Counts the bodies of a node as often as they run.

    For If, the branch that moves more bytes counts.  Without `placed_bodies`, every node counts as
    a kernel of its own.
    """
    times = trips * _trips(graph, node)
    counts: list[_Count] = []
    for body in bodies(node):
        inner = _Count(constants=count.constants)
        if placed_bodies is None:
            _count_nodes(body, inner, constants, times)
        else:
            _count_steps(placed_bodies[body], inner, constants, times, placed_bodies)
        counts.append(inner)
    count.launches += max(inner.launches for inner in counts)
    count.activations += max(inner.activations for inner in counts)


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
    number = as_int(size)
    if number is None:
        raise _UnknownError
    return number


def _add(
    expr: Expr | None,
    operands: Sequence[Value | None],
    results: Sequence[Value],
    count: _Count,
    constants: Mapping[Value, str],
    trips: int,
) -> None:
    """Counts a kernel or a node that runs `trips` times.

    Without an `expr`, it reads all elements of its operands.  `constants` has the names of
    constants.
    """
    for number, value in enumerate(operands):
        if value is None:
            continue
        bytes_ = _elements(value.type)
        if expr is not None:
            bytes_ = min(bytes_, _needed(expr, number))
        bytes_ = bytes_ * value.dtype.bits // 8
        if value in constants:
            key = constants[value]
            count.constants[key] = max(count.constants.get(key, 0), bytes_)
        else:
            count.activations += trips * bytes_
    for value in results:
        count.activations += trips * (_elements(value.type) * value.dtype.bits // 8)


def _elements(type_: TensorType) -> int:
    return _known(element_count(type_.shape))


def _needed(expr: Expr, operand: int) -> int:
    """Returns the number of elements of an operand that an expression reads.

    Each different read adds the product of the extents of the loops that it depends on.
    """
    elements = 0
    for stage in expr.stages:
        inside = {*stage.loops}
        for scalar in dict.fromkeys(walk(*stage.body)):
            if isinstance(scalar, Read) and scalar.source == operand:
                elements += prod(_known(extent(v)) for v in _varies(scalar) & inside)
    return elements


def _varies(node: Scalar) -> set[Var]:
    """Returns the variables that a read depends on, including those of data-dependent indices."""
    indices = (index for scalar in walk(node) for index in indices_in(scalar))
    return {v for index in indices for v in free_vars(index)}
