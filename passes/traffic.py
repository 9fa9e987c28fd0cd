"""Bytes that a model moves through memory: node by node, and as its kernels do.

    matmul -> add -> relu      unfused: x, w, y + y, b, z + z, r      one kernel: x, w, b, r

A run reads every element of an operand that is needed at least once, and writes every result; what
a kernel keeps to itself moves nothing.  A gather counts the rows it takes, not its table; a weight
counts once however often it is read; reshapes and what depends on weights alone count nothing.
Requires fixed sizes and trip counts: without them the answer is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import IndexValue, Read, Scalar, walk
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


@record
class _Work:
    """One thing that reads operands and writes results; `expr` None reads all of them."""

    expr: Expr | None
    operands: tuple[Value | None, ...]
    results: tuple[Value, ...]


def unfused_bytes(graph: Graph) -> int | None:
    """What a run of `graph` moves with each node a kernel of its own."""
    count = _Count()
    return count.total if _count_nodes(graph, count, {}, 1) else None


def traffic(placed: Placed) -> Traffic | None:
    """What a run of the kernels of `placed` moves."""
    count = _Count()
    done = _count_steps(placed, count, {}, 1)
    return Traffic(count.launches, count.total, count.weights) if done else None


# ---- walks: what runs, how often; False where that is not known ---------------------------------


def _count_nodes(graph: Graph, count: _Count, outer: Mapping[Value, str], trips: int) -> bool:
    """Every node as a kernel of its own; nodes that only weights reach are left out."""
    constants = {**outer, **_digests(graph)}
    for node in graph.nodes:
        if all(v is None or v in constants for v in node.inputs) and not bodies(node):
            constants.update((v, f"{node.loc}/{v.name}") for v in node.outputs)
        elif bodies(node):
            if not _count_bodies(graph, node, count, constants, trips, fused=False):
                return False
        elif node.op.name not in _VIEWS:
            work = _Work(node_expr(node), node.inputs, node.outputs)
            if not _add(work, count, constants, trips):
                return False
    return True


def _count_steps(placed: Placed, count: _Count, outer: Mapping[Value, str], trips: int) -> bool:
    constants = {**outer, **_digests(placed.graph)}
    for step in placed.steps:
        if step.kernel is not None:
            work = _Work(step.kernel.expr, step.kernel.operands, step.kernel.results)
            count.launches += 0 if step.every else trips
        elif step.node is not None and not bodies(step.node):
            work = _Work(None, step.node.inputs, step.node.outputs)
        else:
            assert step.node is not None
            if not _count_bodies(placed.graph, step.node, count, constants, trips, fused=True):
                return False
            continue
        if not _add(work, count, constants, trips):
            return False
    return True


def _count_bodies(
    graph: Graph,
    node: Node,
    count: _Count,
    constants: Mapping[Value, str],
    trips: int,
    *,
    fused: bool,
) -> bool:
    """Bodies as often as they run; of two branches the one that moves more."""
    times = _trips(graph, node)
    if times is None:
        return False
    found: list[_Count] = []
    for body in bodies(node):
        inner = _Count(constants=count.constants)
        outer = dict.fromkeys(constants, graph)
        done = (
            _count_steps(place_graph(body, outer=outer), inner, constants, trips * times)
            if fused
            else _count_nodes(body, inner, constants, trips * times)
        )
        if not done:
            return False
        found.append(inner)
    count.launches += max(inner.launches for inner in found)
    count.activations += max(inner.activations for inner in found)
    return True


def _trips(graph: Graph, node: Node) -> int | None:
    match node.attrs:
        case ScanAttrs() as attrs:
            types = [v.type for v in node.inputs if v is not None]
            return as_int(scan_length(types[-attrs.num_scan_inputs :], attrs.input_axes))
        case LoopAttrs():
            array = graph.constant(node.inputs[0])
            return None if array is None else int(array)
        case IfAttrs():
            return 1
        case _:
            return None


def _digests(graph: Graph) -> dict[Value, str]:
    return {value: handle.digest for value, handle in graph.constants.items()}


# ---- bytes ------------------------------------------------------------------------------------


def _add(work: _Work, count: _Count, constants: Mapping[Value, str], trips: int) -> bool:
    for number, value in enumerate(work.operands):
        if value is None:
            continue
        size = _elements(value.type)
        needed = size if work.expr is None else _needed(work.expr, number)
        if size is None or needed is None:
            return False
        read = min(size, needed) * value.type.dtype.bits // 8
        if value in constants:
            key = constants[value]
            count.constants[key] = max(count.constants.get(key, 0), read)
        else:
            count.activations += trips * read
    for value in work.results:
        size = _elements(value.type)
        if size is None:
            return False
        count.activations += trips * (size * value.type.dtype.bits // 8)
    return True


def _elements(type_: TensorType) -> int | None:
    return as_int(element_count(type_.shape))


def _needed(expr: Expr, operand: int) -> int | None:
    """How many elements of an operand are read, counted once per read of different iterators."""
    total = 0
    for stage in expr.stages:
        inside = {*stage.iters, *stage.reduce}
        for scalar in dict.fromkeys(walk(*stage.body)):
            if isinstance(scalar, Read) and scalar.source == operand:
                size = _product(v for v in _varies(scalar) if v in inside)
                if size is None:
                    return None
                total += size
    return total


def _varies(node: Scalar) -> dict[Var, None]:
    """The variables a read moves with, those of data-dependent indices included."""
    found: dict[Var, None] = {}
    indices: list[Index] = []
    for scalar in walk(node):
        if isinstance(scalar, Read):
            indices += scalar.indices
        elif isinstance(scalar, IndexValue):
            indices.append(scalar.index)
    for index in indices:
        found.update(dict.fromkeys(free_vars(index)))
    return found


def _product(variables: Iterable[Var]) -> int | None:
    total = 1
    for variable in variables:
        size = as_int(extent(variable))
        if size is None:
            return None
        total *= size
    return total
