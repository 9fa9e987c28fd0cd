"""The verifier of graphs: every pass may rely on these properties and must keep them.

A value is defined once and before its uses.  No two values have the same name, and size symbols of
one name have the same range and divisor.  Bodies read only their own values and values of enclosing
graphs.  Results have the inferred types, and constants in the store the types of their values.  An
alias connects an output and an input of equal type.
"""

from typing import Any

from tcc.errors import require_none
from tcc.ir.graph import (
    Graph,
    Node,
    Value,
    Values,
    bodies,
    types_of,
)
from tcc.ir.graph.text import variables
from tcc.ir.index import Var


def verify_graph(graph: Graph) -> None:
    """Raises `InternalError` whose `why` lists every problem, one on each line."""
    verifier = _Verifier()
    verifier.graph(graph, set())
    require_none(f"graph {graph.name} is not well formed", verifier.problems)


class _Verifier:
    """Collects problems over a graph and its bodies, which share names and size symbols."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._names: dict[str, Value] = {}
        self._symbols: dict[str, Var] = {}
        self._defined: set[Value] = set()

    def graph(self, graph: Graph, outer: set[Value]) -> None:
        visible = set(outer)
        for value in graph.inputs:
            self._define(value, visible, f"input of {graph.name}")
        for value in graph.constants:
            self._define(value, visible, f"constant of {graph.name}")
            self._constant(graph, value)
        for node in graph.nodes:
            self._node(node, visible)
        for value in graph.outputs:
            if value not in visible:
                self.problems.append(f"output %{value.name} of {graph.name} is not defined")
        for output, source in graph.aliases:
            pair = f"alias %{output.name} = %{source.name}"
            if output not in graph.outputs or source not in graph.inputs:
                self.problems.append(f"{pair} does not join an output and an input")
            if output.type != source.type:
                self.problems.append(f"{pair} joins {output.type!r} and {source.type!r}")

    def _define(self, value: Value, visible: set[Value], where: str) -> None:
        if value in self._defined:
            self.problems.append(f"%{value.name} is defined again as {where}")
        elif self._names.setdefault(value.name, value) is not value:
            self.problems.append(f"two values have the name {value.name}, one is {where}")
        self._defined.add(value)
        visible.add(value)
        self._sizes(value.type, f"%{value.name}")

    def _sizes(self, item: Any, where: str) -> None:
        for var in variables(item):
            if var.extent is not None:
                self.problems.append(f"{where} has the iterator {var.key} in a size")
            elif self._symbols.setdefault(var.name, var) is not var:
                self.problems.append(f"{where} has the size {var.key} with other facts")

    def _constant(self, graph: Graph, value: Value) -> None:
        try:
            array = graph.store.arrays(graph.constants[value])[0]  # all ranks' have one type
        except KeyError:
            self.problems.append(f"constant %{value.name} is not in the store")
            return
        if (array.dtype, array.shape) != (value.dtype.carrier, value.type.static_shape):
            self.problems.append(
                f"constant %{value.name} is {array.dtype}{list(array.shape)} in the store, "
                f"{value.type!r} in the graph"
            )

    def _node(self, node: Node, visible: set[Value]) -> None:
        where = f"{node.op.name} at {node.loc or _names(node.outputs)}"
        missing = [v for v in node.inputs if v is not None and v not in visible]
        self.problems.extend(f"{where} reads %{v.name}, not defined here" for v in missing)
        minimum, maximum = node.op.arity
        if not minimum <= len(node.inputs) <= maximum:
            self.problems.append(
                f"{where} has {len(node.inputs)} inputs, not {minimum} to {maximum}"
            )
        if not isinstance(node.attrs, node.op.attrs):
            self.problems.append(f"{where} has attributes of type {type(node.attrs).__name__}")
            return
        self._sizes(node.attrs, where)
        for body in bodies(node):
            self.graph(body, visible)
        self._types(node, where)
        for value in node.outputs:
            self._define(value, visible, f"result of {where}")

    def _types(self, node: Node, where: str) -> None:
        declared = types_of(node.outputs)
        try:
            due = node.op.infer(types_of(node.inputs), node.attrs)
        except ValueError as error:
            self.problems.append(f"{where} does not take its operands: {error}")
            return
        if declared != due:
            self.problems.append(f"{where} has results {declared}, {due} is due")


def _names(values: Values) -> str:
    return ", ".join(f"%{v.name}" for v in values)
