"""Evaluates graphs with the ops' NumPy references: the executable meaning of `ir.graph`.

Size symbols are bound as values are computed: from the inputs' shapes, by `bind_size`,
`broadcast_size` and `name_size` nodes, and from the shapes of data-dependent results.  Every array
is checked against its value's type, so a wrong inference or reference is found at its node.  An
array is dropped after its last use.
"""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value, bind_attrs, carrier, types_of, uses
from tcc.ir.index import Index, Var, as_int, const, free_vars, step_in, substitute, var_of
from tcc.ir.op import Array, Arrays, NamedArrays, OutArrays
from tcc.ir.types import BF16, DType
from tcc.zipped import zip_equal

Sizes: TypeAlias = dict[Var, Index]
_WORD = (1 << 64) - 1


def evaluate_graph(graph: Graph, inputs: NamedArrays, seed: int = 0) -> dict[str, Array]:
    """Returns the graph's outputs by name, for arrays of its inputs by name.

    Arrays have the carrier type of the value's dtype.  Random nodes draw with the low 64 bits of
    `seed`.

    Raises `UserError` if an input is missing, unknown or does not fit its type, if memory does not
    suffice, or if the graph has a collective.  Raises `InternalError` if an op's result does not
    fit its inferred type, or if a constant differs by rank.
    """
    return GraphEvaluator(seed).evaluate(graph, inputs)


def bind_sizes(values: Sequence[Value], arrays: Sequence[Array], sizes: Sizes) -> list[str]:
    """Adds the values of symbols, which follow from the arrays' shapes, to `sizes`.

    Returns a message for each type, rank or size that does not fit. Dimensions that are a symbol
    are bound first, then dimensions that are linear in a single unbound symbol, such as `2*n`. A
    dimension whose value is still unknown then is not checked.
    """
    problems: list[str] = []
    dims: list[tuple[Value, int, Index, int]] = []
    for value, array in zip_equal(values, arrays):
        if array.dtype != value.dtype.carrier:
            want = f"{value.dtype.name} (as {value.dtype.carrier})"
            problems.append(f"{value.name} has type {array.dtype}, {want} is due")
        if array.ndim != value.rank:
            problems.append(f"{value.name} has rank {array.ndim}, {value.type!r} is due")
            continue
        pairs = zip_equal(value.shape, array.shape)
        dims.extend((value, axis, dim, size) for axis, (dim, size) in enumerate(pairs))
    for value, axis, dim, size in (*(d for d in dims if var_of(d[2])), *dims):
        problem = _bind_dim(dim, size, sizes)
        if problem:
            problems.append(f"dimension {axis} of {value.name} is {size}, {problem}")
    return list(dict.fromkeys(problems))


def _bind_dim(dim: Index, size: int, sizes: Sizes) -> str:
    unbound_dim = substitute(dim, sizes)
    number = as_int(unbound_dim)
    if number is not None:
        return "" if number == size else f"{dim.key} = {number} is due"
    unknown = free_vars(unbound_dim)
    linear = step_in(unbound_dim, unknown[0]) if len(unknown) == 1 else None
    if linear is None:
        return ""
    coeff, offset = linear[0], as_int(linear[1])
    if offset is None:
        return ""
    if (size - offset) % coeff:
        return f"{dim.key} has no such value"
    return bind_symbol(unknown[0], (size - offset) // coeff, sizes)


def bind_symbol(var: Var, size: int, sizes: Sizes) -> str:
    """Sets a size symbol to `size` in `sizes`.

    Returns '', or a message if `size` contradicts the symbol's range, divisor or earlier value.
    """
    if size < var.lo or (var.hi is not None and size > var.hi):
        return f"{var.name} in [{var.lo},{'' if var.hi is None else var.hi}] is due"
    if size % var.divisor:
        return f"a multiple of {var.divisor} is due for {var.name}"
    bound = sizes.setdefault(var, const(size))
    return "" if bound is const(size) else f"{var.name} = {bound.key} is due"


class _Values(ChainMap[Value, Array]):
    """The arrays of a graph's values; a lookup also searches the enclosing graphs."""

    def __missing__(self, value: Value) -> Array:
        raise InternalError(f"%{value.name} is read before it is computed")


@frozen
class _Frame:
    """The state of a graph's evaluation: the arrays of its values and the sizes of its symbols.

    `trip` is the number of the innermost loop's current trip, from 0.
    """

    values: _Values
    sizes: Sizes
    trip: int


class GraphEvaluator:
    """Evaluates a graph and its bodies.

    `_dying` returns for each graph the values that can be dropped after each node.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dying = cache(_dying)

    def evaluate(self, graph: Graph, inputs: NamedArrays) -> dict[str, Array]:
        """Returns and raises what `evaluate_graph` does."""
        names = [value.name for value in graph.inputs]
        if sorted(names) != sorted(inputs):
            raise UserError(
                "the inputs given are not the graph's",
                where=graph.name,
                why=f"given {', '.join(sorted(inputs)) or 'none'}; "
                f"the graph has {', '.join(names) or 'none'}",
            )
        sizes: Sizes = {}
        arrays = [np.asarray(inputs[name]) for name in names]
        for problem in bind_sizes(graph.inputs, arrays, sizes):
            raise UserError("an input does not fit the graph", where=graph.name, why=problem)
        with np.errstate(all="ignore"):
            results = self._run(graph, arrays, _Frame(_Values(), sizes, 0))
        return {value.name: array for value, array in zip_equal(graph.outputs, results)}

    def results(self, node: Node, arrays: Arrays) -> OutArrays:
        """Returns the results of a node whose sizes are bound."""
        return node.op.reference(arrays, node.attrs)

    def constant(self, graph: Graph, value: Value) -> Array:
        """Returns the array of a constant of the graph."""
        return graph.store.get(graph.constants[value])

    def _run(self, graph: Graph, inputs: Sequence[Array], frame: _Frame) -> list[Array]:
        values = frame.values
        values.update(zip_equal(graph.inputs, inputs))
        values.update((value, self.constant(graph, value)) for value in graph.constants)
        for node, dead in zip_equal(graph.nodes, self._dying(graph)):
            results = self._node(node, frame)
            _check(node, results, frame.sizes)
            values.update(zip_equal(node.outputs, results))
            for value in dead:
                del values[value]
        return [values[value] for value in graph.outputs]

    def _node(self, node: Node, frame: _Frame) -> OutArrays:
        arrays = [None if v is None else frame.values[v] for v in node.inputs]
        attrs = bind_attrs(node.attrs, frame.sizes)
        match node.op.name:
            case "if":
                branch = attrs.then if _flag(arrays[0]) else attrs.otherwise
                return tuple(self._body(branch, [], frame, frame.trip))
            case "run_seed":
                return (np.array(self._seed & _WORD, np.uint64).view(np.int64),)
            case "trip_number":
                return (np.array(frame.trip, np.int64),)
            case "loop":
                return self._loop(attrs, arrays, frame)
            case "scan":
                return self._scan(attrs, arrays, frame)
            case "bind_size":
                _bind_size(node, arrays[0], frame.sizes)
            case "broadcast_size" | "name_size":
                frame.sizes[free_vars(node.attrs.symbol)[0]] = attrs.value
        try:
            results = self.results(replace(node, attrs=attrs), arrays)
            return tuple(_rounded(a, v.dtype) for a, v in zip_equal(results, node.outputs))
        except MemoryError as error:
            types = ", ".join(map(repr, types_of(node.outputs)))
            raise UserError(
                f"{node.op.name} needs more memory than there is", where=node.loc, why=types
            ) from error
        except UserError as error:
            error.where = error.where or str(node.loc)
            raise
        except Exception as error:
            error.add_note(f"in the reference of {node.op.name} at {node.loc or node.outputs}")
            raise

    def _body(self, body: Graph, inputs: Sequence[Array], outer: _Frame, trip: int) -> list[Array]:
        sizes = dict(outer.sizes)
        for problem in bind_sizes(body.inputs, inputs, sizes):
            raise InternalError(f"body {body.name}: {problem}")
        return self._run(body, inputs, _Frame(outer.values.new_child(), sizes, trip))

    def _loop(self, attrs: Any, arrays: Arrays, frame: _Frame) -> OutArrays:
        """Evaluates ONNX's Loop.

        The loop ends when the trip count is reached, or when the condition is false before the
        first trip or after a trip.
        """
        body: Graph = attrs.body
        limit = None if arrays[0] is None else int(arrays[0].reshape(()))
        go = arrays[1] is None or _flag(arrays[1])
        carried = [a for a in arrays[2:] if a is not None]
        count, scans = 0, 1 + len(carried)
        rows: list[Sequence[Array]] = []
        while go and (limit is None or count < limit):
            heads = [
                np.full((1,) * body.inputs[n].rank, value, body.inputs[n].dtype.carrier)
                for n, value in enumerate((count, True))
            ]
            results = self._body(body, [*heads, *carried], frame, count)
            go = _flag(results[0])
            rows.append(results[scans:])
            carried = results[1:scans]
            count += 1
        return (*carried, *_stacked(body.outputs[scans:], rows, frame.sizes))

    def _scan(self, attrs: Any, arrays: Arrays, frame: _Frame) -> OutArrays:
        body: Graph = attrs.body
        present = [a for a in arrays if a is not None]
        states = len(present) - attrs.num_scan_inputs
        carried = present[:states]
        sources = [
            np.moveaxis(a, axis, 0)[:: -1 if back else 1]
            for a, axis, back in zip_equal(present[states:], attrs.input_axes, attrs.input_reverse)
        ]
        rows: list[Sequence[Array]] = []
        for trip, slices in enumerate(zip_equal(*sources)):
            results = self._body(body, [*carried, *slices], frame, trip)
            carried = results[:states]
            rows.append(results[states:])
        stacked = _stacked(body.outputs[states:], rows, frame.sizes)
        laid = [
            np.ascontiguousarray(np.moveaxis(a[:: -1 if back else 1], 0, axis))
            for a, axis, back in zip_equal(stacked, attrs.output_axes, attrs.output_reverse)
        ]
        return (*carried, *laid)


def _stacked(
    values: Sequence[Value], rows: Sequence[Sequence[Array]], sizes: Sizes
) -> Iterator[Array]:
    """Yields an array for each of a body's scan outputs `values`.

    It stacks the output's results of all trips along a new first axis; `rows[n]` has the results of
    trip n.  If no trip ran, dimensions with symbols of unknown value are zero.
    """
    for value, column in zip(values, zip_equal(*rows), strict=bool(rows)):
        if len({row.shape for row in column}) > 1:
            raise UserError("a loop stacks rows of different sizes", where=value.name)
        yield np.stack(column)
    for value in () if rows else values:
        shape = (as_int(substitute(dim, sizes)) or 0 for dim in value.shape)
        yield np.empty((0, *shape), value.dtype.carrier)


def _dying(graph: Graph) -> list[list[Value]]:
    """Returns for each node the values of the graph that nothing reads after it."""
    last = {v: n for n, node in enumerate(graph.nodes) for v in (*node.outputs, *uses(node))}
    owned = {*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)}
    dead: list[list[Value]] = [[] for _ in graph.nodes]
    for value in last.keys() & owned.difference(graph.outputs):
        dead[last[value]].append(value)
    return dead


def _check(node: Node, results: Sequence[Array], sizes: Sizes) -> None:
    for problem in bind_sizes(node.outputs, results, sizes):
        where = f"{node.op.name} at {node.loc or node.outputs}"
        raise InternalError(f"{where} gave a result that does not fit: {problem}")


def _rounded(array: Array, dtype: DType) -> Array:
    """Returns a result of an op rounded to its dtype.

    Ops give results that the type does not have: NumPy computes bf16 in f32, and ops that move
    values may insert a zero, which some narrow types lack.
    """
    return carrier(array, dtype) if dtype.is_narrow or dtype is BF16 else np.asarray(array)


def _flag(array: Array | None) -> bool:
    assert array is not None
    return bool(array.reshape(()))


def _bind_size(node: Node, array: Array | None, sizes: Sizes) -> None:
    """Sets the size symbol `attrs.symbol` to an element of the operand.

    `attrs.element` is the element's row-major position.
    """
    var = var_of(node.attrs.symbol)
    assert array is not None
    assert var is not None
    got = int(array.reshape(-1)[node.attrs.element])
    problem = bind_symbol(var, got, sizes)
    if problem:
        raise UserError(
            "a computed size is not in its range", where=node.loc, why=f"{got}: {problem}"
        )
