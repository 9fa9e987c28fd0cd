"""Ends an import: the values that a graph returns, and their names."""

from collections.abc import Iterable, Mapping
from itertools import chain, count

from tcc.frontends.operand import Operand
from tcc.frontends.scope import Scope
from tcc.ir.graph import Graph, Value, bodies
from tcc.ir.graph.rewrite import substituted
from tcc.ir.lists import ListType
from tcc.ops import OPS


def output_values(
    scope: Scope, inputs: Iterable[Operand], results: Iterable[tuple[str, Operand]]
) -> list[Value]:
    """Returns distinct values for the named `results`.

    A result that is one of the `inputs`, a constant or an earlier result becomes a copy.
    """
    named = {operand.graph_value for operand in inputs}
    values: list[Value] = []
    for name, operand in results:
        value = operand.value
        if value in named or operand.array is not None:
            value = _copied(scope, value, name)
        named.add(value)
        values.append(value)
    return values


def _copied(scope: Scope, value: Value, name: str) -> Value:
    listed = isinstance(value.dtype, ListType)
    row = OPS["list_expect" if listed else "identity"]
    attrs = row.attrs(value.dtype) if listed else row.attrs()
    (copy,) = scope.builder.add(row, [value], attrs, loc=f"output {name}", names=[name])
    return copy


def rename(graph: Graph, names: Mapping[Value, str]) -> Graph:
    """Returns the graph with new names for some values; other values with these names are
    renamed."""
    new_names = set(names.values())
    changed = {v: Value(name, v.type) for v, name in names.items() if v.name != name}
    everything = _values(graph)
    used_names = {value.name for value in everything} | new_names
    for value in everything:
        if value.name in new_names and value not in names and value not in graph.inputs:
            changed[value] = Value(free_name(value.name, used_names), value.type)
    return substituted(graph, changed) if changed else graph


def _values(graph: Graph) -> list[Value]:
    values = [*graph.inputs, *graph.constants]
    for node in graph.nodes:
        values += node.outputs
        for body in bodies(node):
            values += _values(body)
    return values


def free_name(name: str, used_names: set[str], mark: str = ".") -> str:
    """Returns `name` if it is not used, else with `mark` and a number; adds it to the used
    names."""
    candidates = chain([name], (f"{name}{mark}{number}" for number in count(1)))
    free = next(candidate for candidate in candidates if candidate not in used_names)
    used_names.add(free)
    return free
